#!/usr/bin/env python3
"""Tables in Markdown of what benchmarks/plan/groupings.cc stored.

    benchmarks/groupings.py FILE...                 every planner against one, by source and ranks
    benchmarks/groupings.py --published FILE...     the speed-up table of the FlexSP publication, re-enacted

The planner that others are compared with is `fast`, or another (--base NAME).
"""
import argparse
import collections
import json
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
                what = (case["model"], case["context"], case["source"], case["ranks"], case["documents"])
                found[what][case["planner"]][case["batch"]] = row
    return found


def rivals(found, base):
    for what, planners in found.items():
        model, context, source, ranks, documents = what
        if base not in planners:
            raise SystemExit(f"no row of `{base}` for {what}: name another with --base")
        print(f"\n{model}, context {context // 1000} K, {source}, {ranks} ranks, {documents} documents a batch "
              f"(`{base}` = 1)\n")
        print("| planner | batches | seconds, mean | against it: mean | least | most | it wins or ties | "
              "gap to bound, median | most | ms, median | most | micro-batches, median |")
        print("|---|---|---|---|---|---|---|---|---|---|---|---|")
        table = []
        for planner, rows in planners.items():
            both = [(row, planners[base][batch]) for batch, row in rows.items()
                    if "seconds" in row and "seconds" in planners[base].get(batch, {})]
            if not both:
                continue
            ratio = [theirs["seconds"] / ours["seconds"] for theirs, ours in both]
            gap = [row["seconds"] / row["bound"] - 1 for row, _ in both]
            ms = [row["milliseconds"] for row, _ in both]
            table.append((statistics.mean(ratio), [
                f"`{planner}`", str(len(both)),
                f"{statistics.mean(row['seconds'] for row, _ in both):.3f}",
                f"{statistics.mean(ratio):.3f}", f"{min(ratio):.3f}", f"{max(ratio):.3f}",
                f"{100 * sum(r >= 1 - TIE for r in ratio) / len(ratio):.0f} %",
                f"{100 * statistics.median(gap):.1f} %", f"{100 * max(gap):.1f} %",
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


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", action="store_true")
    parser.add_argument("--base", default="fast")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    (published if args.published else rivals)(rows_of(args.files), args.base)


if __name__ == "__main__":
    main()
