#!/usr/bin/env python3
"""docs/images/one_batch.svg: one batch by a static plan, and by ours, as predicted.

    benchmarks/batch_picture.py build/release/paradyse-lab --json benchmarks/results/one_batch.json

A batch of 512 documents whose lengths have the published distribution of GitHub code in GPT-2
tokens, on 64 A100-40GB, by the costs that FlexSP published for its 7B model: predictions, no
measurement.  Each rectangle is a group of ranks: as high as it has ranks, as long as it works; grey is what does not depend on groups.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LENGTHS = ["bins", "--bins", "GitHubCode", "--max", "190000", "--count", "512", "--seed", "1"]
PANELS = [("static", "static: 64 ranks for every document"), ("fast", "ParaDySe: a group for each length")]
COLOURS = {1: "#d7e8fa", 2: "#b3d1f3", 4: "#86b4e8", 8: "#5a95da", 16: "#3577c2", 32: "#1f5a9e", 64: "#123e73"}
WIDTH, HEIGHT, LEFT, TOP = 720, 150, 20, 46


def plans(program):
    with tempfile.TemporaryDirectory() as folder:
        lengths = pathlib.Path(folder) / "lengths.txt"
        lengths.write_text(subprocess.run(
            [sys.executable, HERE / "lengths.py", *LENGTHS], check=True, capture_output=True, text=True).stdout)
        for planner, title in PANELS:
            out = pathlib.Path(folder) / f"{planner}.json"
            done = subprocess.run(
                [program, "flexsp", "plan", "--model", "flexsp-7b", "--lengths", lengths, "--planner", planner,
                 "--out", out, "--json"], check=True, capture_output=True, text=True)
            plan = json.loads(out.read_text())
            yield {"planner": planner, "title": title, "seconds": json.loads(done.stdout)["seconds"],
                   "longest": max(plan["lengths"]), "documents": len(plan["lengths"]),
                   "micro_batches": [[{"ranks": len(group["ranks"]), "documents": len(group["documents"]),
                                       "seconds": group["predicted"]["seconds"]}
                                      for group in batch["groups"] if group["documents"]]
                                     for batch in plan["micro_batches"]]}


def svg(panels):
    scale = WIDTH / max(panel["seconds"] for panel in panels)
    total = TOP + len(panels) * (HEIGHT + 50) + 30
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 2 * LEFT} {total}" '
             'font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH + 2 * LEFT}" height="{total}" fill="#fff"/>',
             f'<text x="{LEFT}" y="22" font-size="15">One batch of {panels[0]["documents"]} documents of up to '
             f'{panels[0]["longest"]:,} tokens on 64 GPUs (predicted)</text>']
    y = TOP
    for panel in panels:
        parts.append(f'<text x="{LEFT}" y="{y + 10}">{panel["title"]}: {panel["seconds"]:.1f} s</text>')
        y += 18
        x = LEFT
        for groups in panel["micro_batches"]:
            top = y
            for group in sorted(groups, key=lambda group: -group["ranks"]):
                high = HEIGHT * group["ranks"] / 64
                parts.append(
                    f'<rect x="{x:.1f}" y="{top:.1f}" width="{scale * group["seconds"]:.1f}" height="{high:.2f}" '
                    f'fill="{COLOURS[group["ranks"]]}" stroke="#fff" stroke-width=".5"/>')
                top += high
            x += scale * max(group["seconds"] for group in groups)
        rest = LEFT + scale * panel["seconds"] - x
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{rest:.1f}" height="{HEIGHT}" fill="#ccc"/>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>')
        y += HEIGHT + 32
    x = LEFT
    parts.append(f'<text x="{x}" y="{y}">ranks of a group:</text>')
    x += 120
    for ranks, colour in COLOURS.items():
        parts.append(f'<rect x="{x}" y="{y - 11}" width="14" height="14" fill="{colour}"/>'
                     f'<text x="{x + 19}" y="{y}">{ranks}</text>')
        x += 52
    parts.append(f'<rect x="{x}" y="{y - 11}" width="14" height="14" fill="#ccc"/>'
                 f'<text x="{x + 19}" y="{y}">weights and update</text>')
    parts.append(f'<text x="{LEFT + WIDTH}" y="{y}" text-anchor="end">time &#8594;</text></svg>')
    return "\n".join(parts) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("program")
    arguments.add_argument("--json", type=pathlib.Path, required=True)
    options = arguments.parse_args()
    panels = list(plans(options.program))
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "--short=7", "HEAD"],
                            check=True, capture_output=True, text=True).stdout.strip()
    options.json.write_text(json.dumps({"commit": commit, "lengths": LENGTHS, "plans": panels}, indent=1) + "\n")
    picture = HERE.parent / "docs" / "images" / "one_batch.svg"
    picture.parent.mkdir(exist_ok=True)
    picture.write_text(svg(panels))
    for panel in panels:
        print(f'{panel["planner"]}: {panel["seconds"]:.3f} s')


if __name__ == "__main__":
    main()
