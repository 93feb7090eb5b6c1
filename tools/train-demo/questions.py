"""Writes what `basert eval` asks the demo: held-out text, multiple choice and requests for tool calls.

`python questions.py FOLDER` writes text.txt, choices.jsonl and tool-calls.jsonl, and calibration.txt, which is another text
of the same kind. All names, numbers and combinations are ones that training never sees, and another seed is used than for
validation and `evaluate.py`.
"""

import argparse
import json
import os
import random

import corpus
from chat import Conversation, clean, render, user
from evaluate import cut
from stories import Cast, fact, paragraphs, story
from tasks import problem


LISTS = ("repeats", "key_values")


def held_out_text(rng, size):
    """Documents of the training mix, `size` characters or a little more, as the model sees them.

    Lists of random words and numbers are left out: training never asks for what is in them, and nobody can foretell it.
    """
    out = ""
    while len(out) < size:
        document = corpus.document(rng, 2600, held_out=True)
        if document.task not in LISTS:
            out += document.text
    return out


def recall_question(rng):
    """A story, a question, and four answers that differ in the value."""
    while True:
        cast = Cast(rng, held_out=True)
        asked, others = fact(rng, cast), [fact(rng, Cast(rng, held_out=True)) for _ in range(60)]
        same_kind = [f.value for f in others if f.key[-1:] == asked.key[-1:] and f.value != asked.value]
        wrong = list(dict.fromkeys(same_kind))[:3]
        if len(wrong) == 3 and asked.value in asked.answer:
            break
    text = paragraphs(rng, story(rng, cast, [asked], 14))
    conversation = Conversation("recall", [user(f"Read this story.\n\n{text}\n\n{asked.questions[0]}")])
    return ask(rng, prompt(conversation), [asked.answer.replace(asked.value, v) for v in (asked.value, *wrong)])


def sum_question(rng):
    """A sum or difference, and four results that are near each other."""
    expression, _, result, _ = problem(rng, True)
    wrong = rng.sample([d for d in (-10, -2, -1, 1, 2, 10) if int(result) + d >= 0], 3)
    values = [result, *(str(int(result) + d) for d in wrong)]
    conversation = Conversation("sum", [user(f"What is {expression}?")])
    return ask(rng, prompt(conversation), [f"{expression} = {v}" for v in values])


def prompt(conversation):
    return "".join(t for t, _ in render(conversation)) + "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def ask(rng, text, answers):
    """A line of choices.jsonl; the first of `answers` is right."""
    order = rng.sample(range(len(answers)), len(answers))
    return {"prompt": text, "choices": [answers[i] + "<|im_end|>" for i in order], "answer": order.index(0)}


def tool_request(rng):
    """A line of tool-calls.jsonl: the first turn of a conversation that has to call."""
    while True:
        c = corpus.conversation(rng, "tools", 2500, held_out=True)
        index = next((i for i, m in enumerate(c.messages) if m.get("tool_calls")), None)
        if index is not None:
            break
    calls = [t["function"] for t in c.messages[index]["tool_calls"]]
    return {"messages": [clean(m) for m in cut(c, index).messages[:-1]], "tools": c.tools, "calls": calls}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--seed", default="questions 0")
    parser.add_argument("--text", type=int, default=48_000, help="characters of each text [default: %(default)s]")
    parser.add_argument("--count", type=int, default=100, help="questions of each kind [default: %(default)s]")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    os.makedirs(args.folder, exist_ok=True)
    makers = (recall_question, sum_question)
    files = {
        "text.txt": held_out_text(rng, args.text),
        "calibration.txt": held_out_text(rng, args.text),
        "choices.jsonl": lines(makers[i % 2](rng) for i in range(args.count)),
        "tool-calls.jsonl": lines(tool_request(rng) for _ in range(args.count)),
    }
    for name, text in files.items():
        with open(os.path.join(args.folder, name), "w", encoding="utf-8") as file:
            file.write(text)


def lines(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


if __name__ == "__main__":
    main()
