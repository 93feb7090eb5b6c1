#!/usr/bin/env python3
"""What a token of a prompt costs at growing depths, by operation, as a picture and a table.

    benchmarks/cost_growth.py MODEL [--depths 0,1024,4096] [--prompt 512] [--basert PATH] [-o benchmarks/cost-growth.svg]

Runs `basert profile MODEL --json` once for every depth. The operations "attention" (scores and weighted sums, over all that is
in the cache) make one line; linear layers, the delta rule and the rest are the others. Needs nothing but Python 3.
"""

import argparse
import json
import math
import pathlib
import shlex
import subprocess

GROUPS = [  # name, colour, and the operations; the last one takes what is left
    ("attention", "#c0392b", {"attention"}),
    ("linear layers", "#1f6fb2", {"linear", "head", "route"}),
    ("delta rule and convolution", "#2e8b57", {"delta rule", "convolution"}),
    ("everything else", "#777777", None),
]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 70, 200, 50, 60


def group_of(operation):
    return next(name for name, _, operations in GROUPS if operations is None or operation in operations)


def measured(args, depth):
    """The report of a depth: of an earlier run, where it was kept, or of a new one."""
    kept = args.keep and args.keep / f"{depth}.json"
    if kept and kept.exists():
        return json.loads(kept.read_text())
    sizes = ["-p", str(args.prompt), "-n", "0", "-d", str(depth), "-r", str(args.repetitions)]
    command = [*shlex.split(args.basert), "profile", args.model, *sizes, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    if kept:
        kept.write_bytes(done.stdout)
    return json.loads(done.stdout)


def per_token(report):
    """Microseconds per token of every group."""
    (prefill,) = report["profiles"]
    costs = dict.fromkeys((name for name, _, _ in GROUPS), 0.0)
    for row in prefill["operations"]:
        costs[group_of(row["operation"])] += row["seconds"] * 1e6 / prefill["tokens"]
    return costs


def nice_step(largest):
    """A round distance of about five lines."""
    raw = largest / 5
    power = 10 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)


def text(x, y, words, anchor="middle", size=12, colour="#333333", extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{extra}>{words}</text>'


def short(tokens):
    return f"{tokens // 1024}K" if tokens >= 1024 and tokens % 1024 == 0 else str(tokens)


def frame(depths, top, x, y):
    """Axes, their numbers and the lines across."""
    lines, step = [], nice_step(top)
    for tick in range(int(top / step) + 1):
        at = y(tick * step)
        lines.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#e2e2e2"/>')
        lines.append(text(LEFT - 8, at + 4, f"{tick * step:g}", "end"))
    shown = [d for d in depths if d == 0 or d >= max(depths) / 8]
    lines += [text(x(depth), HEIGHT - BOTTOM + 20, short(depth)) for depth in shown]
    lines.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "tokens in the cache before"))
    turned = f' transform="rotate(-90 18 {HEIGHT / 2})"'
    lines.append(text(18, HEIGHT / 2, "microseconds per token of a prompt", extra=turned))
    return lines


def spread(places, distance=16):
    """Moves labels apart, in order, by as little as keeps them readable."""
    moved = []
    for place in places:
        moved.append(max(place, moved[-1] + distance) if moved else place)
    return moved


def draw(title, depths, costs):
    top = 1.08 * max(max(cost.values()) for cost in costs)

    def x(depth):
        return LEFT + (WIDTH - LEFT - RIGHT) * depth / max(1, *depths)

    def y(cost):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * cost / top

    lines = [text(LEFT, 26, title, "start", 14), *frame(depths, top, x, y)]
    by_height = sorted(GROUPS, key=lambda group: y(costs[-1][group[0]]))
    labels = spread([y(costs[-1][name]) + 4 for name, _, _ in by_height])
    for (name, colour, _), label in zip(by_height, labels):
        points = [(x(depth), y(cost[name])) for depth, cost in zip(depths, costs)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        lines.append(text(WIDTH - RIGHT + 10, label, name, "start", 12, colour))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    return "\n".join([head, background, *lines, "</svg>", ""])


def table(depths, costs):
    names = [name for name, _, _ in GROUPS]
    rows = ["| depth | " + " | ".join(names) + " | together |", "|---" * (len(names) + 2) + "|"]
    for depth, cost in zip(depths, costs):
        cells = [f"{cost[name]:.0f}" for name in names] + [f"{sum(cost.values()):.0f}"]
        rows.append(f"| {depth} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--depths", default="0,1024,2048,4096,8192,16384")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt that is timed")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--basert", default="basert", help="the program, with words before it if need be")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder of reports: those that are there are not made again")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("benchmarks/cost-growth.svg"))
    args = parser.parse_args()
    depths = [int(depth) for depth in args.depths.split(",")]
    reports = [measured(args, depth) for depth in depths]
    costs = [per_token(report) for report in reports]
    selected = reports[0]["selected"]
    name = pathlib.Path(args.model).stem
    title = f"{name}, {selected['isa']}, {selected['threads']} threads, K {selected['k_type']}, V {selected['v_type']}"
    args.output.write_text(draw(title, depths, costs))
    print(table(depths, costs))


if __name__ == "__main__":
    main()
