"""Training curves as an SVG: `python curves.py RUN OUT.svg` draws the smoothed loss and, per task, the share of value
tokens (answers, arguments, results) that are predicted on held-out names and numbers."""

import argparse
import json
import os

WIDTH, HEIGHT, MARGIN = 720, 260, 45


def read(run):
    """(tokens, smoothed loss) points, and task -> (tokens, share) points."""
    losses, shares = {}, {}
    with open(os.path.join(run, "log.jsonl")) as f:
        for line in f:
            record = json.loads(line)
            if "mean" in record:
                losses[record["seen"]] = record["mean"]
            for task, found in record.get("validation", {}).items():
                if found["values"] is not None:
                    shares.setdefault(task, {})[record["seen"]] = found["values"]
    return sorted(losses.items()), {task: sorted(points.items()) for task, points in sorted(shares.items())}


def colour(index, count):
    """Of so many that can be told apart: neighbours also differ in lightness."""
    return f"hsl({210 + 360 * index / count:.0f} 70% {30 + 18 * (index % 2)}%)"


def panel(title, curves, top, end, high):
    """One diagram as SVG elements; `curves` are (label, colour, points), `high` is the value at its upper edge."""
    width, height = WIDTH - MARGIN - 150, HEIGHT - 2 * MARGIN
    place = lambda x, y: (MARGIN + width * x / end, top + MARGIN + height * (1 - min(y, high) / high))
    out = [f'<text x="{MARGIN}" y="{top + 25}" font-weight="bold">{title}</text>']
    for i in range(5):
        x, y = place(end * i / 4, high * i / 4)
        anchor = "end" if i == 4 else "middle"
        out.append(f'<line x1="{MARGIN}" x2="{MARGIN + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{high * i / 4:g}</text>')
        out.append(
            f'<text x="{x:.1f}" y="{top + HEIGHT - MARGIN + 16}" text-anchor="{anchor}">{end * i / 4e6:.1f} M</text>'
        )
    for i, (label, colour, points) in enumerate(curves):
        line = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out.append(f'<text x="{MARGIN + width + 10}" y="{top + MARGIN + 12 * i}" fill="{colour}">{label}</text>')
    return out


def main():
    parser = argparse.ArgumentParser(description="Training curves as an SVG.")
    parser.add_argument("run", help="the --out of train.py")
    parser.add_argument("out", help="SVG to write")
    args = parser.parse_args()
    losses, shares = read(args.run)
    end = losses[-1][0]
    curves = [(task, colour(i, len(shares)), points) for i, (task, points) in enumerate(shares.items())]
    parts = panel("Training loss per weighted token", [("loss", colour(0, 1), losses)], 0, end, 8.0)
    parts += panel("Share of value tokens right, held out, by tokens seen", curves, HEIGHT, end, 1.0)
    with open(args.out, "w") as f:
        f.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{2 * HEIGHT}" font-family="sans-serif" font-size="11">\n'
        )
        f.write('<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    main()
