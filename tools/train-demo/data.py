"""Batches: documents packed into rows. Everything follows from (seed, step, slot), so a resumed run sees the same data."""

import random

import torch

import corpus
import tokenizer as tk

CHARS_PER_TOKEN = 3.7  # of the least compressible documents


def row(rng, tok, length, end_id, task=None, held_out=False):
    """(ids, weights), each `length` long: documents one after the other, the last one cut off."""
    ids, weights = [], []
    while (left := length - len(ids)) > 0:
        if left < 40:
            ids += [end_id] * left
            weights += [0.0] * left
            break
        room = left * CHARS_PER_TOKEN
        for _ in range(4):
            more, w = tk.encode(tok, corpus.document(rng, room, task, held_out))
            if len(more) <= left:
                break
            room *= 0.6
        ids += more[:left]
        weights += w[:left]
    return ids, weights


def batch(seed, tok, rows, length, end_id, task=None, held_out=False):
    """(ids [rows, length], weights [rows, length]); weights belong to the token as a target."""
    rng = random.Random(seed)
    made = [row(rng, tok, length, end_id, task, held_out) for _ in range(rows)]
    return torch.tensor([m[0] for m in made]), torch.tensor([m[1] for m in made])


# (tokens seen, {row length: share}): rows grow as the model learns.
CURRICULUM = (
    (0, {256: 0.4, 512: 0.6}),
    (400_000, {256: 0.15, 512: 0.5, 1024: 0.35}),
    (1_200_000, {512: 0.4, 1024: 0.35, 2048: 0.25}),
    (2_400_000, {512: 0.3, 1024: 0.25, 2048: 0.25, 4096: 0.2}),
)


def row_length(seed, step, slot, seen):
    """The length of the rows of one slot; the same in all processes, so that they finish together."""
    shares = [s for start, s in CURRICULUM if seen >= start][-1]
    return random.Random(f"{seed} length {step} {slot}").choices(list(shares), list(shares.values()))[0]
