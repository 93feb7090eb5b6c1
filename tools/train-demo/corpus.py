"""The training corpus: an endless, seeded stream of documents, made on the fly.

`documents(seed, max_chars, ...)` yields `Document`s; the same arguments give the same stream on every machine with
the same Python. `python corpus.py` prints samples and the measured mix.
"""

import argparse
import random
from collections import Counter
from dataclasses import dataclass

import lexicon as lex
import phrases
from chat import MARKUP_WEIGHT, render
from smalltalk import small_talk
from stories import Cast, distinct, fact, filler, general, paragraphs, story
from tasks import arithmetic, copying, key_values, passkey, repeats, story_recall, sums, unknown
from toolcalls import tool_use

# Share of documents by kind, for rows of at most 600 tokens and for longer ones. Short rows teach formats and
# language; long ones teach recall over distance, with short documents filling what the long ones leave.
SHORT_MIX = {
    "story": 6,
    "prose": 5,
    "disturbed": 2,
    "facts": 3,
    "sums": 3,
    "repeats": 10,
    "story_recall": 20,
    "unknown": 3,
    "key_values": 14,
    "passkey": 5,
    "copying": 5,
    "arithmetic": 6,
    "small_talk": 14,
    "tools": 22,
}
LONG_MIX = {
    "story": 6,
    "prose": 3,
    "disturbed": 1,
    "facts": 1,
    "sums": 1,
    "repeats": 6,
    "story_recall": 28,
    "unknown": 2,
    "key_values": 14,
    "passkey": 14,
    "copying": 3,
    "arithmetic": 4,
    "small_talk": 12,
    "tools": 20,
}
CHATS = {
    "story_recall": story_recall,
    "unknown": unknown,
    "key_values": key_values,
    "passkey": passkey,
    "copying": copying,
    "arithmetic": arithmetic,
    "small_talk": small_talk,
    "tools": tool_use,
}
END = "<|endoftext|>"
WORDS = sorted(
    {w for s in phrases.SENTENCES for w in s.split() if w.isalpha()}
    | set(
        lex.OBJECTS
        + lex.PLACES
        + lex.ANIMALS
        + lex.JOBS
        + lex.KIN
        + lex.COLOURS
        + lex.MOODS
        + lex.ADJECTIVES
        + lex.NATURE
        + lex.NUMBERS
        + [v for pair in lex.TRANSITIVE for v in pair if " " not in v]
    )
)


@dataclass
class Document:
    task: str
    pieces: list  # (text, loss weight)

    @property
    def text(self):
        return "".join(t for t, _ in self.pieces)


def plain(rng, task, room):
    """Documents without turns; all of their text is supervised."""
    if task == "sums":
        return [*sums(rng), (END, 1.0)]
    if task == "repeats":
        return [*repeats(rng, room), (END, 0.5)]
    if task == "prose":
        text = paragraphs(rng, distinct(rng, filler, rng.randrange(4, 22)))
    elif task == "disturbed":
        text = phrases.disturbed(rng, paragraphs(rng, distinct(rng, filler, rng.randrange(4, 16))), WORDS)
    elif task == "facts":
        text = paragraphs(rng, distinct(rng, general, rng.randrange(4, 14)))
    else:
        cast = Cast(rng, invents=False)
        facts = [fact(rng, cast) for _ in range(rng.randrange(0, 3))]
        text = paragraphs(rng, story(rng, cast, facts, rng.randrange(6, 22)))
    return [(text, 1.0), ("\n" if rng.random() < 0.5 else "", 0.5), (END, 1.0)]


def reach(rng, room):
    """How many characters a conversation's prompt gets: often all there is, else log-uniform above 150."""
    low, high = 150.0, max(room - 400.0, 200.0)
    return int(high if rng.random() < 0.35 else low * (high / low) ** rng.random())


def document(rng, room, task=None, held_out=False):
    """A random document of about at most `room` characters."""
    if task is None:
        mix = SHORT_MIX if room <= 2600 else LONG_MIX
        task = rng.choices(list(mix), list(mix.values()))[0]
    if task not in CHATS:
        return Document(task, plain(rng, task, room))
    return Document(task, [*render(conversation(rng, task, reach(rng, room), held_out)), (END, MARKUP_WEIGHT)])


def conversation(rng, task, room, held_out=False):
    return CHATS[task](rng, room, held_out)


def documents(seed, room, held_out=False):
    """Endless documents of about at most `room` characters each."""
    rng = random.Random(seed)
    while True:
        yield document(rng, room, held_out=held_out)


def check_split(texts):
    """No held-out name occurs in training text."""
    for text in texts:
        for name in lex.HELD_OUT_NAMES:
            assert name + " " not in text and name + "'" not in text, (name, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chars", type=int, default=2000, help="characters that a document may have")
    parser.add_argument("--task", help="only this kind of document")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--mix", action="store_true", help="count characters by kind in 2000 documents instead")
    args = parser.parse_args()
    if args.mix:
        sizes = Counter()
        stream = documents(args.seed, args.chars)
        made = [next(stream) for _ in range(2000)]
        check_split(d.text for d in made)
        for d in made:
            sizes[d.task] += len(d.text)
        for task, size in sizes.most_common():
            print(f"{task:14} {100 * size / sum(sizes.values()):5.1f} %")
        return
    rng = random.Random(args.seed)
    for _ in range(args.count):
        d = document(rng, args.chars, args.task)
        print(f"--- {d.task}\n{d.text}")


if __name__ == "__main__":
    main()
