#!/usr/bin/env python3
"""docs/images/two_nodes.svg: what groups of any size gain over other planners, by the speed of a link.

    benchmarks/two_nodes_picture.py benchmarks/results/two_nodes_text_{100,200,400,800,0}.json \\
      benchmarks/results/two_nodes_size_{100,200,800}.json

The files are those of benchmarks/two_nodes.py, which say how fast the link was; several of one speed may have
different planners.  Points are ratios of medians,
bars the least and the most of the repeats, in turn; dashed lines are what the runs predicted.
"""
import argparse
import json
import pathlib
import shlex

PICTURE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "images" / "two_nodes.svg"
RIVALS = {"groups-of-4": ("groups of 4", "#1f5a9e"), "groups-by-homogeneous": ("best size of each batch", "#3a7d44"),
          "borders": ("short whole, long split (borders)", "#b5651d")}
WIDTH, HEIGHT, LEFT, TOP = 600, 260, 60, 60


def read(file):
    """Speed of the link; of each rival that had a plan what groups gain: measured, its range, and predicted."""
    found = json.loads(pathlib.Path(file).read_text())
    words = shlex.split(found["command"])
    mbit = float(words[words.index("--mbit") + 1])
    ours = found["rows_per_s"]["groups"]
    gains = {}
    for rival in RIVALS:
        if found["rows_per_s"].get(rival):
            ratios = [a / b for a, b in zip(ours, found["rows_per_s"][rival], strict=True)]  # repeat by repeat
            over = found["groups_over"][rival]
            gains[rival] = (over["measured"], min(ratios), max(ratios), over["predicted"])
    return mbit, gains


def svg(points):
    points.sort(key=lambda point: point[0] or float("inf"))
    top = max(max(gain[2:]) for _, gains in points for gain in gains.values())
    x_of = [LEFT + 40 + i * (WIDTH - 80) / (len(points) - 1) for i in range(len(points))]

    def y_of(ratio):
        return TOP + HEIGHT * (1 - ratio / (1.1 * top))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + LEFT + 20} {TOP + HEIGHT + 60}" '
             'font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH + LEFT + 20}" height="{TOP + HEIGHT + 60}" fill="#fff"/>',
             f'<text x="{LEFT}" y="20" font-size="15">Tokens/s of groups of any size over other planners, two nodes '
             'of two ranks</text>']
    ratio = 0
    while ratio < 1.1 * top:
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y_of(ratio):.1f}" y2="{y_of(ratio):.1f}" '
                     f'stroke="{"#888" if ratio in (0, 1) else "#ddd"}"/>'
                     f'<text x="{LEFT - 8}" y="{y_of(ratio) + 4:.1f}" text-anchor="end">{ratio:g}</text>')
        ratio += 0.5
    for (mbit, _), x in zip(points, x_of):
        name = f"{mbit:g} Mbit/s" if mbit else "unthrottled"
        parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle">{name}</text>')
    label = LEFT
    for row, (rival, (name, colour)) in enumerate(RIVALS.items()):
        gains = [(x, gains[rival]) for x, (_, gains) in zip(x_of, points) if rival in gains]
        line = " ".join(f"{x:.1f},{y_of(predicted):.1f}" for x, (_, _, _, predicted) in gains)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-dasharray="5 4"/>')
        for x, (measured, least, most, _) in gains:
            x += 6 * row - 6  # beside one another
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y_of(least):.1f}" y2="{y_of(most):.1f}" '
                         f'stroke="{colour}" stroke-width="2"/>'
                         f'<circle cx="{x:.1f}" cy="{y_of(measured):.1f}" r="4" fill="{colour}"/>')
        parts.append(f'<circle cx="{label + 5}" cy="{TOP - 18}" r="4" fill="{colour}"/>'
                     f'<text x="{label + 15}" y="{TOP - 14}">{name}</text>')
        label += 40 + 7 * len(name)
    parts.append(f'<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT + 45}" text-anchor="end">dashed: predicted</text></svg>')
    return "\n".join(parts) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("results", nargs="+")
    by_speed = {}
    for file in arguments.parse_args().results:
        mbit, gains = read(file)
        by_speed.setdefault(mbit, {}).update(gains)
    points = list(by_speed.items())
    PICTURE.write_text(svg(points))
    for mbit, gains in points:
        for rival, (measured, least, most, predicted) in gains.items():
            print(f"{mbit:g} Mbit/s, over {rival}: {measured:.2f} ({least:.2f} - {most:.2f}), predicted {predicted:.2f}")


if __name__ == "__main__":
    main()
