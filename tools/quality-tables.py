#!/usr/bin/env python3
"""Measures what every target, method and KV type costs in quality, and writes the tables and pictures of docs/.

    tools/quality-tables.py                       the demo and SmolLM2, about half an hour on two cores
    tools/quality-tables.py --models demo         one of them; --tables kv: one of its tables
    tools/quality-tables.py --print               prints the tables instead of changing docs/

Needs target/release/basert (`cargo build --release`) and the model that tools/smollm2.sh fetches. Only Python's standard
library is used.

The source of all conversions is a GGUF in f32 with the values of the model at hand: the demo's bundle, or SmolLM2's
Q4_1 checkpoint. KL divergence and top-1 agreement are against that source run in f32 with an f32 cache. SmolLM2's weights
lie on a 4-bit grid with groups of 32, so from 4 bits on groups are 64 or 128, which makes every width quantise again.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTHS = (2, 3, 4, 5, 6, 8)
GROUPS = {2: 32, 3: 32, 4: 64, 5: 64, 6: 64, 8: 128}
METHODS = ("rtn", "mse", "mse+importance", "awq")
FLOATS = ("f16", "bf16")
KV_TYPES = ("f32", "16", "8", "84", "4")


@dataclass
class Model:
    """A model and what it is measured on."""

    name: str
    file: Path
    text: Path
    calibration: Path
    recall: tuple  # arguments of --recall


MODELS = {
    "demo": Model(
        "demo",
        ROOT / "models/demo/demo.base",
        ROOT / "models/demo/evaluation/text.txt",
        ROOT / "models/demo/evaluation/calibration.txt",
        ("--lengths", "512,1024,2048", "--trials", "2"),
    ),
    "smollm2": Model(
        "smollm2",
        ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf",
        ROOT / "tools/data/alice.txt",
        ROOT / "tools/data/darwin.txt",
        ("--lengths", "512", "--trials", "2"),
    ),
}


class Basert:
    """The program, and a folder for what it makes."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def run(self, *arguments):
        command = [str(self.program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        return done.stdout

    def source(self, model):
        """A checkpoint whose values are those of the model."""
        if model.file.suffix == ".gguf":
            return model.file
        gguf = self.folder / f"{model.name}.gguf"
        if not gguf.exists():
            self.run("export", model.file, "--gguf", gguf, "--outtype", "f32")
        return gguf

    def convert(self, source, name, *options):
        out = self.folder / f"{name}.base"
        self.run("convert", source, "-o", out, "--no-check", "--allow-quant-from-quant", "--force", *options)
        return out

    def measure(self, model, bundle, reference, *options):
        """One row for each KV type in `options`."""
        text = ("--text-file", model.text, "--against", reference, "--window", 1024)
        recall = ("--recall", *model.recall)
        out = self.run("eval", bundle, *text, *recall, "--json", *options)
        return [json.loads(line) for line in out.splitlines()]


def weights(basert, model):
    """The table of targets and methods, and the picture of what is made by default."""
    source = basert.source(model)
    reference = basert.convert(source, f"{model.name}-f32", "--target", "f32")
    importance = basert.folder / f"{model.name}.importance"
    calibration = ("--calibration", model.calibration, "--calibration-tokens", 16384, "--save-importance", importance)
    basert.convert(source, "calibrated", "--target", "q4", "--group", 64, *calibration)
    rows, pictured = [], []
    for target in FLOATS:
        bundle = basert.convert(source, f"{model.name}-{target}", "--target", target)
        rows.append((target, "", basert.measure(model, bundle, reference, "--kv-type", "f32")[0]))
    for width in WIDTHS:
        for method in METHODS:
            options = ["--target", f"q{width}", "--group", GROUPS[width], "--method", method.removesuffix("+importance")]
            if method in ("mse+importance", "awq"):
                options += ["--importance", importance]
            keep = method == ("mse" if width < 5 else "rtn")
            bundle = basert.convert(source, f"{model.name}-q{width}" if keep else "model", *options)
            rows.append((f"q{width}, {GROUPS[width]}", method, basert.measure(model, bundle, reference, "--kv-type", "f32")[0]))
            pictured += [bundle] if keep else []
    picture = basert.folder / f"quality-{model.name}.svg"
    text = ("--text-file", model.text, "--against", reference, "--window", 1024)
    basert.run("eval", *pictured, *text, "--kv-type", "f32", "--picture", picture, "--force")
    return table(("target, group", "method"), rows, weight_cells), picture.read_text()


def caches(basert, model):
    """The table of KV types, on the weights as they are."""
    source = basert.source(model)
    reference = basert.convert(source, f"{model.name}-f32", "--target", "f32")
    rows = [(kv, basert.measure(model, reference, reference, "--with-kv", kv)[0]) for kv in KV_TYPES]
    return table(("KV",), rows, kv_cells)


def table(first, rows, cells):
    """Markdown."""
    lines = [(*labels, cells(found)) for *labels, found in rows]
    headings = list(lines[0][-1])
    out = ["| " + " | ".join((*first, *headings)) + " |", "|" + "---|" * (len(first) + len(headings))]
    out += ["| " + " | ".join((*labels, *(found[h] for h in headings))) + " |" for *labels, found in lines]
    return "\n".join(out) + "\n"


def quality_cells(found):
    against = found["against"]
    return {
        "mean KL, nats": f"{against['kl']:.4f} ± {against['kl_standard_error']:.4f}",
        "same likeliest token": f"{100 * against['top1_agreement']:.1f} %",
        "perplexity": f"{found['perplexity']:.2f}",
        "recall": f"{100 * found['recall']['share']['mean']:.0f} %",
    }


def weight_cells(found):
    return {"bits per weight": f"{found['footprint']['bits_per_weight']:.2f}", **quality_cells(found)}


def kv_cells(found):
    return {"bytes per token": str(found["footprint"]["kv_bytes_per_token"]), **quality_cells(found)}


def show(args, page, mark, text):
    """Prints a table, or puts it into its page."""
    if args.print:
        print(f"{mark}\n\n{text}")
    else:
        replace(ROOT / page, mark, text)


def replace(path, mark, text):
    """Puts `text` between the two lines of a document that carry `mark`."""
    begin, end = f"<!-- {mark}: made by tools/quality-tables.py -->", "<!-- end -->"
    old = path.read_text(encoding="utf-8")
    new, count = re.subn(f"({re.escape(begin)}\n).*?({re.escape(end)})", lambda m: m[1] + text + m[2], old, flags=re.S)
    if count != 1:
        sys.exit(f"{path} has {count} places for '{mark}'")
    path.write_text(new, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--basert", type=Path, default=target / "release/basert", help="the program [default: %(default)s]")
    parser.add_argument("--models", default="demo,smollm2", help="[default: %(default)s]")
    parser.add_argument("--tables", default="weights,kv", help="[default: %(default)s]")
    parser.add_argument("--print", action="store_true", help="print the tables and leave docs/ as it is")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        basert = Basert(args.basert, Path(folder))
        for model in (MODELS[name] for name in args.models.split(",")):
            if "weights" in args.tables.split(","):
                methods, picture = weights(basert, model)
                show(args, "docs/quantization.md", f"{model.name} weights", methods)
                if not args.print:
                    (ROOT / f"docs/quality-{model.name}.svg").write_text(picture, encoding="utf-8")
            if "kv" in args.tables.split(","):
                show(args, "docs/kv-cache.md", f"{model.name} KV", caches(basert, model))


if __name__ == "__main__":
    main()
