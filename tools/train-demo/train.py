"""Trains the demo model. Run it again with the same arguments to go on after any interruption.

Two processes of one thread each share the parameters: on a machine that is busy with other work this is several times
faster than one process whose threads wait for each other at every operation. Each computes the gradient of its own
rows; the sum is taken in a fixed order, so a run is repeatable on one machine.
"""

import argparse
import ctypes
import dataclasses
import fcntl
import json
import math
import os
import signal
import sys
import threading
import time

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from tokenizers import Tokenizer

import data
import lookback
import tokenizer as tk
from corpus import CHATS
from model import Config, Model
from optimizer import Optimizer

WORLD = 2
SLOT_TOKENS = 2048  # tokens of one forward pass, or one row if rows are longer
DRAFT_WEIGHT = 0.3
VALIDATION = (
    [(task, 512) for task in ("story", "prose", "sums", "repeats", *CHATS)]
    + [(task, 2048) for task in ("story_recall", "key_values", "passkey")]
    + [("passkey", 4096), ("story_recall", 4096)]
)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--out", default="target/demo", help="checkpoint, log and tokenizer go here [default: %(default)s]"
    )
    parser.add_argument(
        "--tokens",
        type=float,
        default=6e6,
        help="length of the run; the rate falls in its last fifth [default: %(default)s]",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--muon-rate", type=float, default=0.02)
    parser.add_argument("--adam-rate", type=float, default=0.003)
    parser.add_argument("--decay", type=float, default=0.05, help="weight decay of the matrices, times their rate")
    parser.add_argument("--save-seconds", type=float, default=240)
    parser.add_argument("--validate-steps", type=int, default=100)
    return parser.parse_args()


def rate_factor(step, seen, total):
    """Warm-up, constant, and a fall to nothing over the last fifth, as 1 - sqrt."""
    progress = seen / total
    warm = min(1.0, (step + 1) / 40)
    return warm * (1.0 if progress < 0.8 else max(0.0, 1.0 - math.sqrt((progress - 0.8) / 0.2)))


def bind(model, flat, grads):
    """Makes the model's parameters and gradients views of the flat buffers."""
    at = 0
    for p in model.parameters():
        p.data = flat[at : at + p.numel()].view(p.shape)
        p.grad = grads[at : at + p.numel()].view(p.shape)
        at += p.numel()


def loss_sum(model, hidden, ids, weights, shift):
    """Weighted loss of predicting the token `shift` ahead, summed; only positions that count reach the head."""
    targets, w = ids[:, shift:].reshape(-1), weights[:, shift:].reshape(-1)
    at = w.nonzero()[:, 0]
    logits = F.linear(hidden[:, :-shift].reshape(-1, hidden.shape[-1])[at], model.embed)
    return (F.cross_entropy(logits, targets[at], reduction="none") * w[at]).sum()


class Trainer:
    """One of the `WORLD` processes."""

    def __init__(self, rank, args, shared, barrier):
        self.rank, self.args, self.shared, self.barrier = rank, args, shared, barrier
        self.tok = Tokenizer.from_file(os.path.join(args.out, "tokenizer.json"))
        self.end = self.tok.token_to_id(tk.END)
        self.model = Model(Config())
        self.grads = shared["grads"][rank]
        bind(self.model, shared["flat"], self.grads)
        self.optimizer = Optimizer(self.model, shared["flat"], shared["first"], shared["second"], rank, WORLD)

    def slots(self, seen):
        """Forward passes of one process in one step: small batches first, for they teach more per token early."""
        return 1 if seen < 6_000_000 else 2

    def gradient(self, step, seen):
        """Adds up this process's gradient; returns (tokens, loss, weight, draft loss, its weight), all summed."""
        self.grads.zero_()
        tokens = slot = 0
        total = weight = drafts = draft_weight = 0.0
        while tokens < self.slots(seen) * SLOT_TOKENS:
            length = data.row_length(self.args.seed, step, slot, seen)
            rows = max(1, SLOT_TOKENS // length)
            ids, weights = data.batch(f"{self.args.seed} {step} {slot} {self.rank}", self.tok, rows, length, self.end)
            hidden = self.model.hidden(ids)
            loss = loss_sum(self.model, hidden, ids, weights, 1)
            objective = loss
            if (step + slot) % 2 == 0:  # the draft layer learns from every other pass, at twice the weight
                draft = loss_sum(self.model, self.model.draft_hidden(ids, hidden), ids, weights, 2)
                objective = loss + 2 * DRAFT_WEIGHT * draft
                drafts, draft_weight = drafts + draft.item(), draft_weight + weights[:, 2:].sum().item()
            objective.backward()
            total, weight = total + loss.item(), weight + weights[:, 1:].sum().item()
            tokens, slot = tokens + ids.numel(), slot + 1
        return tokens, total, weight, drafts, draft_weight

    def step(self, step, seen):
        """One step of training. All processes return the same (tokens, loss, draft loss)."""
        stats = self.shared["stats"]
        stats[self.rank] = torch.tensor(self.gradient(step, seen), dtype=torch.float64)
        self.barrier.wait()
        tokens, total, weight, drafts, draft_weight = stats.sum(0).tolist()
        factor = rate_factor(step, seen, self.args.tokens)
        with torch.no_grad():
            grad = self.shared["grads"].sum(0).div_(weight)
            self.optimizer.step(
                grad, step + 1, self.args.muon_rate * factor, self.args.adam_rate * factor, self.args.decay
            )
        self.barrier.wait()
        return int(tokens), total / weight, drafts / max(draft_weight, 1.0)

    @torch.no_grad()
    def validate(self, seen):
        """Per task on held-out names and values: loss, share of value tokens predicted, and share of drafts accepted.

        Long rows join once the curriculum has reached them. Each process takes every other task.
        """
        reached = max(max(s) for start, s in data.CURRICULUM if seen >= start)
        out = {}
        for task, length in VALIDATION[self.rank :: WORLD]:
            if length > max(reached, 512):
                continue
            chat = task in CHATS
            ids, weights = data.batch(
                f"validation {task} {length}", self.tok, max(1, 2048 // length), length, self.end, task, chat
            )
            hidden = self.model.hidden(ids)
            w, targets = weights[:, 1:], ids[:, 1:]
            logits = F.linear(hidden[:, :-1], self.model.embed)
            nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(w)
            best, valued = logits.argmax(-1), w >= 2.0
            draft = F.linear(self.model.draft_hidden(ids, hidden)[:, :-2], self.model.embed).argmax(-1)
            counted = w[:, 1:] >= 0.5
            out[f"{task}@{length}"] = {
                "loss": round(((nll * w).sum() / w.sum()).item(), 4),
                "values": round((best == targets)[valued].float().mean().item(), 4) if valued.any() else None,
                "drafts": round((draft == best[:, 1:])[counted].float().mean().item(), 4) if counted.any() else None,
            }
        return out


def save(path, shared, step, seen, args):
    """The checkpoint appears whole or not at all."""
    state = {k: shared[k] for k in ("flat", "first", "second")}
    torch.save(
        {**state, "step": step, "seen": seen, "seed": args.seed, "config": dataclasses.asdict(Config())}, path + ".new"
    )
    with open(path + ".new", "rb+") as f:
        os.fsync(f.fileno())
    os.replace(path + ".new", path)


def log(args, record):
    line = json.dumps(record)
    with open(os.path.join(args.out, "log.jsonl"), "a") as f:
        f.write(line + "\n")
    print(line, flush=True)


def keep_memory():
    """Makes malloc keep what it has: glibc gives large tensors back at once, and half of the time went into page faults."""
    if sys.platform == "linux":
        mmap_max, trim_threshold, top_pad = -4, -1, -2
        libc = ctypes.CDLL(None)
        for option, value in ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 1 << 28)):
            libc.mallopt(option, value)


def die_with_parent():
    """A worker must not outlive a killed main process."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(2)
    os._exit(1)


def die_with_worker(worker):
    """The main process must not wait for a worker that has failed."""
    worker.join()
    if worker.exitcode:
        os._exit(1)


def run(rank, args, shared, barrier):
    keep_memory()
    torch.set_num_threads(1)
    stopping = []
    if rank == 0:
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, lambda *_: stopping.append(True))
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=die_with_parent, daemon=True).start()
    trainer = Trainer(rank, args, shared, barrier)
    step, seen = (int(x) for x in shared["position"])
    saved = started = time.monotonic()
    mean, since, last_draft = None, 0, 0.0
    while seen < args.tokens:
        tokens, loss, draft = trainer.step(step, seen)
        step, seen, since = step + 1, seen + tokens, since + tokens
        mean = loss if mean is None else 0.95 * mean + 0.05 * loss
        last_draft = draft or last_draft
        if rank == 0 and step % 10 == 0:
            now = time.monotonic()
            log(
                args,
                {
                    "step": step,
                    "seen": seen,
                    "loss": round(loss, 4),
                    "mean": round(mean, 4),
                    "draft": round(last_draft, 4),
                    "tokens_per_second": round(since / (now - started)),
                    "time": round(time.time()),
                },
            )
            started, since = now, 0
        if step % args.validate_steps == 0 or seen >= args.tokens:
            found = trainer.validate(seen)
            log(args, {"step": step, "seen": seen, "validation": found})
            barrier.wait()
        if rank == 0:
            shared["stop"][0] = bool(stopping)
            if stopping or seen >= args.tokens or time.monotonic() - saved > args.save_seconds:
                save(os.path.join(args.out, "checkpoint.pt"), shared, step, seen, args)
                saved = time.monotonic()
        barrier.wait()
        if shared["stop"][0]:
            return


def lock(folder):
    """Holds the folder as long as this process lives; two runs in one folder would overwrite each other."""
    held = open(os.path.join(folder, "lock"), "w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(f"another run is at work in {folder}")
    return held


def main():
    args = arguments()
    torch.set_num_threads(1)
    os.makedirs(args.out, exist_ok=True)
    held = lock(args.out)
    if not os.path.exists(os.path.join(args.out, "tokenizer.json")):
        tk.save(tk.build(args.seed), args.out)
    torch.manual_seed(args.seed)
    fresh = Model(Config())
    lookback.seed(fresh)
    flat = torch.cat([p.data.flatten() for p in fresh.parameters()])
    shared = {
        "flat": flat,
        "first": torch.zeros_like(flat),
        "second": torch.zeros_like(flat),
        "grads": torch.zeros(WORLD, len(flat)),
        "stats": torch.zeros(WORLD, 5, dtype=torch.float64),
        "position": torch.zeros(2, dtype=torch.int64),
        "stop": torch.zeros(1, dtype=torch.bool),
    }
    path = os.path.join(args.out, "checkpoint.pt")
    if os.path.exists(path):
        found = torch.load(path)
        if found["config"] != dataclasses.asdict(Config()) or found["seed"] != args.seed:
            sys.exit(f"{path} belongs to another configuration or seed; give another --out")
        for key in ("flat", "first", "second"):
            shared[key].copy_(found[key])
        shared["position"].copy_(torch.tensor([found["step"], found["seen"]]))
    for tensor in shared.values():
        tensor.share_memory_()
    context = mp.get_context("spawn")
    barrier = context.Barrier(WORLD, timeout=1800)
    worker = context.Process(target=run, args=(1, args, shared, barrier), daemon=True)
    worker.start()
    threading.Thread(target=die_with_worker, args=(worker,), daemon=True).start()
    run(0, args, shared, barrier)
    worker.join()
    held.close()


if __name__ == "__main__":
    main()
