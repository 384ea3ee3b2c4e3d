#!/usr/bin/env python3
"""Tables in Markdown of what benchmarks/plan/groupings.cc stored.

    benchmarks/groupings.py FILE...                 every planner against one, by source and ranks
    benchmarks/groupings.py --published FILE...     the speed-up table of the FlexSP publication, re-enacted
    benchmarks/groupings.py --plot OUT.svg FILE...  how planning grows with the number of ranks

The planner that others are compared with is `fast`, or another (--base NAME).
"""
import argparse
import collections
import json
import math
import statistics

# ASPLOS'25, its comparison with DeepSpeed-Ulysses: speed-up of FlexSP, of the best homogeneous size.
PUBLISHED = {
    ("flexsp-7b", 192000): {"github": (1.45, 1.07), "commoncrawl": (1.50, 1.09), "wikipedia": (1.72, 1.34)},
    ("flexsp-13b", 192000): {"github": (1.40, 1.08), "commoncrawl": (1.35, 1.07), "wikipedia": (1.59, 1.31)},
    ("flexsp-30b", 192000): {"github": (1.44, 1.05), "commoncrawl": (1.54, 1.09), "wikipedia": (1.64, 1.23)},
    ("flexsp-7b", 384000): {"github": (1.26, 1.03), "commoncrawl": (1.42, 1.04), "wikipedia": (1.46, 1.32)},
    ("flexsp-13b", 384000): {"github": (1.29, 1.06), "commoncrawl": (1.37, 1.06), "wikipedia": (1.43, 1.21)},
    ("flexsp-30b", 384000): {"github": (1.22, 1.03), "commoncrawl": (1.33, 1.04), "wikipedia": (1.53, 1.18)},
}
TIE = 1e-6  # of the seconds


def rows_of(files):
    """(what is planned) -> planner -> batch -> row"""
    found = collections.defaultdict(lambda: collections.defaultdict(dict))
    for file in files:
        with open(file) as stream:
            for row in json.load(stream)["rows"]:
                case = row["case"]
                what = (case["model"], case["context"], case["source"], case["ranks"], case["documents"],
                        case.get("space", "flexsp"))
                found[what][case["planner"]][case["batch"]] = row
    return found


def rivals(found, base):
    for what, planners in found.items():
        model, context, source, ranks, documents, space = what
        if base not in planners:
            raise SystemExit(f"no row of `{base}` for {what}: name another with --base")
        print(f"\n{model}, context {context // 1000} K, {source}, {ranks} ranks, {documents} documents a batch, "
              f"space {space} (`{base}` = 1)\n")
        print("| planner | batches | seconds, mean | against it: mean | least | most | it wins or ties | "
              "gap to area bound, median | most | to the best bound, median | most | ms, median | most | "
              "micro-batches, median |")
        print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
        table = []
        for planner, rows in planners.items():
            both = [(row, planners[base][batch]) for batch, row in rows.items()
                    if "seconds" in row and "seconds" in planners[base].get(batch, {})]
            if not both:
                continue
            ratio = [theirs["seconds"] / ours["seconds"] for theirs, ours in both]
            gap = [row["seconds"] / row["bound"] - 1 for row, _ in both]
            best = [row["seconds"] / row.get("lower_bound", row["bound"]) - 1 for row, _ in both]
            ms = [row["milliseconds"] for row, _ in both]
            table.append((statistics.mean(ratio), [
                f"`{planner}`", str(len(both)),
                f"{statistics.mean(row['seconds'] for row, _ in both):.3f}",
                f"{statistics.mean(ratio):.3f}", f"{min(ratio):.3f}", f"{max(ratio):.3f}",
                f"{100 * sum(r >= 1 - TIE for r in ratio) / len(ratio):.0f} %",
                f"{100 * statistics.median(gap):.1f} %", f"{100 * max(gap):.1f} %",
                f"{100 * statistics.median(best):.1f} %", f"{100 * max(best):.1f} %",
                f"{statistics.median(ms):.1f}", f"{max(ms):.1f}",
                f"{statistics.median(row['micro_batches'] for row, _ in both):g}"]))
        for _, cells in sorted(table):
            print("| " + " | ".join(cells) + " |")


def speed_up(planners, over, planner):
    """Seconds of all batches under `over` by those under `planner`, or None."""
    if over not in planners or planner not in planners:
        return None
    both = [(planners[over][batch], row) for batch, row in planners[planner].items()
            if batch in planners[over] and "seconds" in row and "seconds" in planners[over][batch]]
    return sum(a["seconds"] for a, _ in both) / sum(b["seconds"] for _, b in both) if both else None


def published(found, base):
    print("Speed-up over static SP64; published / here (difference)\n")
    print(f"| | | FlexSP's method | best homogeneous size | `{base}` here |")
    print("|---|---|---|---|---|")
    within = collections.Counter()
    cells = collections.Counter()

    def cell(name, theirs, ours):
        if ours is None:
            return f"{theirs:.2f} / -"
        cells[name] += 1
        within[name] += abs(ours / theirs - 1) <= 0.10
        return f"{theirs:.2f} / {ours:.2f} ({100 * (ours / theirs - 1):+.0f} %)"

    for (model, context), by_source in PUBLISHED.items():
        for source, (flexsp, homogeneous) in by_source.items():
            planners = next((p for what, p in found.items() if what[:3] == (model, context, source)), {})
            fast = speed_up(planners, "static", base)
            print(f"| {model} {context // 1000} K | {source} | "
                  f"{cell('published', flexsp, speed_up(planners, 'static', 'published'))} | "
                  f"{cell('homogeneous', homogeneous, speed_up(planners, 'static', 'homogeneous'))} | "
                  f"{'-' if fast is None else f'{fast:.2f}'} |")
    for name in cells:
        print(f"\n`{name}`: {within[name]} of {cells[name]} cells within 10 %")


def plot(found, base, out):
    """Median milliseconds and gap to the area bound over the ranks, a line for each source; both axes logarithmic."""
    lines = collections.defaultdict(list)
    for (_, _, source, ranks, _, space), planners in found.items():
        rows = [row for row in planners.get(base, {}).values() if "seconds" in row]
        if rows and space == "flexsp":
            lines[source].append((ranks, statistics.median(row["milliseconds"] for row in rows),
                                  statistics.median(row["seconds"] / row["bound"] - 1 for row in rows)))
    width, height, left, bottom = 640, 400, 70, 50
    ranks = sorted({point[0] for line in lines.values() for point in line})
    most = max(point[1] for line in lines.values() for point in line)
    least = min(point[1] for line in lines.values() for point in line)
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))

    def x(value):
        return left + (width - left - 140) * math.log(value / ranks[0]) / math.log(ranks[-1] / ranks[0])

    def y(value):
        return height - bottom - (height - bottom - 30) * (math.log10(value) - low) / (high - low)

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for power in range(low, high + 1):
        svg.append(f'<line x1="{left}" x2="{width - 140}" y1="{y(10 ** power):.1f}" y2="{y(10 ** power):.1f}" '
                   f'stroke="#ddd"/><text x="{left - 8}" y="{y(10 ** power) + 4:.1f}" text-anchor="end">'
                   f'{10 ** power:g} ms</text>')
    for value in ranks:
        svg.append(f'<text x="{x(value):.1f}" y="{height - bottom + 18}" text-anchor="middle">{value}</text>')
    svg.append(f'<text x="{(left + width - 140) / 2}" y="{height - 10}" text-anchor="middle">ranks (8 documents each); '
               'beside the points: median gap to the area bound</text>')
    for (source, points), colour in zip(sorted(lines.items()), ("#1f77b4", "#d62728", "#2ca02c")):
        points.sort()
        path = " ".join(f"{x(r):.1f},{y(ms):.1f}" for r, ms, _ in points)
        svg.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for r, ms, gap in points:
            svg.append(f'<circle cx="{x(r):.1f}" cy="{y(ms):.1f}" r="3" fill="{colour}"/>'
                       f'<text x="{x(r) + 6:.1f}" y="{y(ms) + 14:.1f}" fill="{colour}" font-size="9">'
                       f'{100 * gap:.1f} %</text>')
        svg.append(f'<text x="{width - 128}" y="{y(points[-1][1]):.1f}" fill="{colour}">{source}</text>')
    # as steep as growth in proportion to the ranks
    svg.append(f'<line x1="{x(ranks[0]):.1f}" y1="{y(least):.1f}" x2="{x(ranks[-1]):.1f}" '
               f'y2="{y(min(10 ** high, least * ranks[-1] / ranks[0])):.1f}" stroke="#999" stroke-dasharray="4"/></svg>')
    with open(out, "w") as file:
        file.write("\n".join(svg) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--plot", metavar="OUT.svg")
    parser.add_argument("--base", default="fast")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    if args.plot:
        plot(rows_of(args.files), args.base, args.plot)
    else:
        (published if args.published else rivals)(rows_of(args.files), args.base)


if __name__ == "__main__":
    main()
