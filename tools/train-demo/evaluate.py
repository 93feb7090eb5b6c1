"""Measures a training run: chat format, recall over distance, tool calls, arithmetic, perplexity, accepted drafts.

`python evaluate.py RUN [--count N]` prints a table and, with `--json FILE`, writes it. Everything is asked with names,
numbers and combinations that training never sees, and decoded greedily. Where a prompt opens the answer with
`<think>`, so does the measurement: half of the questions are asked each way.
"""

import argparse
import json
import math
import os
import random
import re

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import corpus
import data
import export
import tokenizer as tk
from chat import Conversation, render
from decode import greedy
from toolcalls import TOOLS

SPECIAL = re.compile("|".join(re.escape(text) for text, _ in tk.ADDED))
BATCH = 16


class Probe:
    """A prompt, how its answer is judged, and whether it thinks."""

    def __init__(self, group, conversation, thinks, judge):
        self.group, self.thinks, self.judge = group, thinks, judge
        text = "".join(t for t, _ in render(conversation))
        # `render` writes a turn that is asked for without thinking as one with empty thinking.
        start = text.rindex("<|im_start|>assistant\n")
        self.prompt = text[:start] + "<|im_start|>assistant\n<think>\n" + ("" if thinks else "\n</think>\n\n")
        answer = text[start:].partition("</think>\n\n")[2].removesuffix("\n")
        self.reference = ("I know.\n</think>\n\n" if thinks else "") + answer


def well_formed(text, thinks, calls=False):
    """Whether a whole generated turn keeps the format, and its visible part."""
    if not text.endswith(tk.TURN_END):
        return False, text
    body = text[: -len(tk.TURN_END)]
    if thinks:
        thought, mark, body = body.partition("\n</think>\n\n")
        if not mark or not thought.strip() or SPECIAL.search(thought):
            return False, body
    plain = re.sub(r"</?tool_call>", "", body) if calls else body
    return bool(body.strip()) and not SPECIAL.search(plain), body


def cut(conversation, index):
    """The conversation up to and with message `index`."""
    return Conversation(conversation.task, conversation.messages[: index + 1], conversation.tools)


def first_answer(conversation):
    return next(i for i, m in enumerate(conversation.messages) if m["role"] == "assistant")


def format_probes(rng, count):
    """Last turns of conversations of every kind without tools."""
    tasks = ("small_talk", "small_talk", "arithmetic", "story_recall", "key_values", "copying", "unknown")
    for i in range(count):
        c = corpus.conversation(rng, tasks[i % len(tasks)], rng.choice((300, 800, 1600)), held_out=True)
        yield Probe("format", c, i % 2 == 0, lambda text, thinks: well_formed(text, thinks)[0])


def recall_probes(rng, tok, count, distance, tasks, group):
    """First questions about something between `distance` and 1.4 times `distance` tokens before the end of the prompt."""
    made = 0
    while made < count:
        task = tasks[made % len(tasks)]
        c = corpus.conversation(rng, task, int(distance * rng.uniform(4.3, 6.5)), held_out=True)
        index = first_answer(c)
        value = re.compile(rf"\b{re.escape(c.messages[index]['_values'][0])}\b", re.I)
        thinks = made % 2 == 0 and task != "key_values"
        probe = Probe(
            group, cut(c, index), thinks, lambda text, thinks, value=value: value.search(well_formed(text, thinks)[1])
        )
        at = probe.prompt.index(c.messages[index]["_source"])
        back = len(tok.encode(probe.prompt[at:], add_special_tokens=False).ids)
        if distance <= back <= 1.4 * distance:
            made += 1
            yield probe


def arithmetic_probes(rng, count):
    for i in range(count):
        c = corpus.conversation(rng, "arithmetic", 300, held_out=True)
        value = c.expect[0]
        judge = lambda text, thinks, value=value: re.findall(r"\d+", well_formed(text, thinks)[1])[-1:] == [value]
        yield Probe("arithmetic", c, i % 2 == 0, judge)


def parse_calls(body):
    """[(name, {parameter: text})], or None if the text is not one well-formed run of calls at its end."""
    start = body.find("<tool_call>")
    if start < 0:
        return None
    one = re.compile(
        r"<tool_call>\n<function=(\w+)>\n((?:<parameter=\w+>\n.*?\n</parameter>\n)*)</function>\n</tool_call>\n?", re.S
    )
    calls, at = [], start
    while at < len(body):
        found = one.match(body, at)
        if not found:
            return None
        calls.append((found[1], dict(re.findall(r"<parameter=(\w+)>\n(.*?)\n</parameter>\n", found[2], re.S))))
        at = found.end()
    return calls


def typed(text, schema):
    """The value of a parameter's text under its schema; raises ValueError if it has another type."""
    kind = schema["type"]
    if kind == "string":
        if "enum" in schema and text not in schema["enum"]:
            raise ValueError(text)
        return text
    if kind == "boolean":
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else typed_error(text)
    value = json.loads(text)
    check_type(value, schema)
    return value


def typed_error(text):
    raise ValueError(text)


def check_type(value, schema):
    kinds = {"string": str, "number": (int, float), "integer": int, "boolean": bool, "array": list, "object": dict}
    if not isinstance(value, kinds[schema["type"]]):
        raise ValueError(value)
    if schema["type"] == "array":
        for item in value:
            check_type(item, schema["items"])
    if schema["type"] == "object":
        for key, item in value.items():
            if key not in schema["properties"]:
                raise ValueError(key)
            check_type(item, schema["properties"][key])


def valid_calls(body):
    """The calls with typed arguments, or None if any of them breaks its schema."""
    out = []
    for name, given in parse_calls(body) or [(None, {})]:
        if name not in TOOLS:
            return None
        parameters = TOOLS[name][0]["function"]["parameters"]
        try:
            arguments = {k: typed(v, parameters["properties"][k]) for k, v in given.items()}
        except (ValueError, KeyError):
            return None
        if any(k not in arguments for k in parameters["required"]):
            return None
        out.append((name, arguments))
    return out


def tool_probes(rng, count):
    """Turns that have to call: valid under the schema, and equal to what was asked."""
    made = 0
    while made < count:
        c = corpus.conversation(rng, "tools", 2500, held_out=True)
        index = next((i for i, m in enumerate(c.messages) if m.get("tool_calls")), None)
        if index is None:
            continue
        wanted = [(t["function"]["name"], t["function"]["arguments"]) for t in c.messages[index]["tool_calls"]]
        declared = {t["function"]["name"] for t in c.tools}

        def judge(text, thinks, wanted=wanted, declared=declared):
            fine, body = well_formed(text, thinks, calls=True)
            calls = valid_calls(body) if fine else None
            valid = calls is not None and all(name in declared for name, _ in calls)
            return {"tools: well-formed": valid, "tools: exact": valid and calls == wanted}

        yield Probe("tools", cut(c, index), made % 2 == 0, judge)
        made += 1


def ask(model, tok, probes, limit=160):
    """{group: (right, asked)} and the ids of prompts with their answers."""
    stop, results, texts = {tok.token_to_id(tk.TURN_END), tok.token_to_id(tk.END)}, {}, []
    probes = sorted(probes, key=lambda p: len(p.prompt))
    for start in range(0, len(probes), BATCH):
        group = probes[start : start + BATCH]
        prompts = [tok.encode(p.prompt, add_special_tokens=False).ids for p in group]
        for probe, prompt, ids in zip(group, prompts, greedy(model, prompts, limit, stop)):
            text = tok.decode(ids, skip_special_tokens=False)
            texts.append((prompt, ids, probe, text))
            verdict = probe.judge(text, probe.thinks)
            for name, right in (verdict if isinstance(verdict, dict) else {probe.group: verdict}).items():
                good, asked = results.get(name, (0, 0))
                results[name] = (good + bool(right), asked + 1)
    return results, texts


@torch.no_grad()
def drafts_accepted(model, texts):
    """Share of generated tokens that the draft layer, one step ahead, would have guessed."""
    right = total = 0
    for prompt, ids, _, _ in texts:
        if len(ids) < 3:
            continue
        row = torch.tensor([prompt + ids])
        padded = F.pad(row, (0, -row.shape[1] % 64))
        draft = F.linear(
            model.draft_hidden(padded, model.hidden(padded))[0, len(prompt) - 1 : row.shape[1] - 2], model.embed
        ).argmax(-1)
        right += (draft == row[0, len(prompt) + 1 :]).sum().item()
        total += len(draft)
    return right, total


@torch.no_grad()
def perplexities(model, tok, rows=4):
    """Per task: perplexity over the tokens that are supervised, on held-out documents."""
    out = {}
    for task in ("story", "prose", "facts", "sums", *corpus.CHATS):
        ids, weights = data.batch(f"test {task}", tok, rows, 1024, tok.token_to_id(tk.END), task, task in corpus.CHATS)
        nll = F.cross_entropy(
            F.linear(model.hidden(ids)[:, :-1], model.embed).flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        counted = weights[:, 1:].flatten() >= 0.5
        out[task] = math.exp(nll[counted].mean().item())
    return out


def measure(model, tok, count, seed):
    rng = random.Random(f"evaluation {seed}")
    every = ("story_recall", "passkey", "key_values")
    probes = [*format_probes(rng, count), *arithmetic_probes(rng, count), *tool_probes(rng, count)]
    for distance in (512, 1024, 2048, 3072):
        for task in every if distance < 2000 else ("story_recall", "passkey"):
            probes += recall_probes(rng, tok, max(4, count // 4), distance, (task,), f"recall {distance}: {task}")
    return ask(model, tok, probes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="the --out of train.py")
    parser.add_argument("--count", type=int, default=100, help="questions per group [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--show", type=int, default=0, help="print this many answers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, seen = export.load(os.path.join(args.run, "checkpoint.pt"))
    tok = Tokenizer.from_file(os.path.join(args.run, "tokenizer.json"))
    with torch.no_grad():
        results, texts = measure(model, tok, args.count, args.seed)
    results["drafts accepted"] = drafts_accepted(model, texts)
    perplexity = perplexities(model, tok)
    for prompt, _, probe, text in texts[:: max(1, len(texts) // max(args.show, 1))][: args.show]:
        print(f"--- {probe.group}\n...{tok.decode(prompt, skip_special_tokens=False)[-200:]}|{text}")
    print(f"after {seen} tokens")
    for name, (right, asked) in sorted(results.items()):
        print(f"{name:28} {100 * right / asked:6.1f} % of {asked}")
    for task, value in perplexity.items():
        print(f"perplexity of {task:14} {value:8.2f}")
    if args.json:
        shares = {k: {"share": right / asked, "asked": asked} for k, (right, asked) in results.items()}
        with open(args.json, "w") as f:
            json.dump({"tokens": seen, "shares": shares, "perplexity": perplexity}, f, indent=2)


if __name__ == "__main__":
    main()
