"""Compares our network with transformers' Qwen3_5ForCausalLM on an exported float32 checkpoint, and our chat
rendering with `apply_chat_template`. `python verify.py RUN`; without a checkpoint in RUN, random weights are compared.
"""

import argparse
import dataclasses
import os
import random
import tempfile

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen3_5ForCausalLM

import corpus
import evaluate
import export
import fused
import tokenizer as tk
from chat import clean, render
from decode import Decoder
from model import Config, Model


def random_run(folder):
    """A run with random weights, also in the norms, so that every convention shows."""
    torch.manual_seed(1)
    model = Model(Config())
    flat = torch.cat([(p.data + 0.05 * torch.randn_like(p)).flatten() for p in model.parameters()])
    torch.save(
        {
            "flat": flat,
            "first": flat,
            "second": flat,
            "step": 0,
            "seen": 0,
            "seed": 0,
            "config": dataclasses.asdict(Config()),
        },
        os.path.join(folder, "checkpoint.pt"),
    )
    tk.save(tk.build(count=300), folder)


def compare_logits(run, folder):
    export.export(run, folder, torch.float32)
    theirs = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours, _ = export.load(os.path.join(run, "checkpoint.pt"))
    worst = 0.0
    for length in (1, 5, 64, 130, 300):
        ids = torch.randint(0, 3000, (2, length), generator=torch.Generator().manual_seed(length))
        with torch.no_grad():
            a, b = ours(ids), theirs(ids).logits
        worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp(min=1.0)).item())
    print(f"logits: largest difference {worst:.2e} of the largest logit")
    assert worst < 1e-4, worst


def compare_kernels():
    """The C forms of the element-wise parts, and their gradients, against PyTorch's in float64."""
    torch.manual_seed(2)
    wide = torch.randn(2, 70, 96)
    cases = {
        "norm": (lambda x, g: fused.norm(x, g, 1 / 64, 1e-6), (torch.randn(2, 70, 64), torch.randn(64))),
        "l2": (lambda x, g: fused.norm(x, g, 1.0, 1e-6), (torch.randn(2, 70, 4, 32), torch.randn(32))),
        "gated_norm": (
            lambda x, g, z: fused.gated_norm(x, g, z[..., 32:], 1e-6),
            (torch.randn(2, 70, 2, 32), torch.randn(32), wide),
        ),
        "swiglu": (fused.swiglu, (wide,)),
        "conv_silu": (lambda x, w: fused.conv_silu(x[..., 32:], w), (wide, torch.randn(4, 64))),
    }
    worst = 0.0
    for name, (function, inputs) in cases.items():
        results = []
        for use_c, dtype in ((True, torch.float32), (False, torch.float64)):
            fused.USE_C = use_c
            leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
            out = function(*leaves)
            out.backward(torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape))
            results.append([out, *(x.grad for x in leaves)])
        for a, b in zip(*results):
            worst = max(worst, ((a - b).abs().max() / b.abs().max()).item())
        assert worst < 1e-5, (name, worst)
    fused.USE_C = True
    print(f"kernels: largest difference {worst:.2e} of the largest value")


def compare_decoding(run):
    """Token by token and in chunks, prompts of different lengths at once: the same logits."""
    model, _ = export.load(os.path.join(run, "checkpoint.pt"))
    rows = [torch.randint(0, 3000, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (10, 70, 131)]
    worst = 0.0
    with torch.no_grad():
        decoder = Decoder(model, [r[:-8] for r in rows], 8)
        for left in range(8, 0, -1):
            got = decoder.step(torch.tensor([r[-left] for r in rows]))
            for i, r in enumerate(rows):
                want = model(torch.tensor([r[: len(r) - left + 1]]))[0, -1]
                worst = max(worst, ((got[i] - want).abs().max() / want.abs().max()).item())
    print(f"decoding: largest difference {worst:.2e} of the largest logit")
    assert worst < 1e-4, worst


def compare_judges(folder):
    """The answers that the corpus gives are right in the eyes of evaluate.py, and turns that do not end are malformed."""
    tok, rng = Tokenizer.from_file(os.path.join(folder, "tokenizer.json")), random.Random(5)
    probes = [*evaluate.format_probes(rng, 60), *evaluate.arithmetic_probes(rng, 60), *evaluate.tool_probes(rng, 60)]
    for task in ("story_recall", "passkey", "key_values"):
        probes += evaluate.recall_probes(rng, tok, 20, 512, (task,), "recall")
    for probe in probes:
        verdict = probe.judge(probe.reference, probe.thinks)
        assert all(verdict.values()) if isinstance(verdict, dict) else verdict, (probe.prompt, probe.reference)
        assert not evaluate.well_formed(probe.reference.removesuffix(tk.TURN_END), probe.thinks)[0]
    print(f"judges: {len(probes)} answers of the corpus found right")


def compare_template(folder):
    tok, rng, count = AutoTokenizer.from_pretrained(folder), random.Random(7), 0
    for i in range(400):
        c = corpus.conversation(rng, sorted(corpus.CHATS)[i % len(corpus.CHATS)], 1200, i % 3 == 0)
        ours = "".join(t for t, _ in render(c))
        theirs = tok.apply_chat_template([clean(m) for m in c.messages], tools=c.tools or None, tokenize=False)
        assert ours == theirs, f"{ours}\n---\n{theirs}"
        prompt = tok.apply_chat_template(
            c.prompt(), tools=c.tools or None, tokenize=False, add_generation_prompt=True, enable_thinking=c.thinks
        )
        assert ours.startswith(prompt), f"{ours}\n---\n{prompt}"
        count += 1
    print(f"chat template: {count} conversations alike")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", nargs="?", help="the --out of train.py")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if fused.USE_C:
        compare_kernels()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as blank:
        run = args.run
        if not run or not os.path.exists(os.path.join(run, "checkpoint.pt")):
            random_run(blank)
            run = blank
        compare_logits(run, folder)
        compare_decoding(run)
        compare_template(folder)
        compare_judges(folder)


if __name__ == "__main__":
    main()
