#!/usr/bin/env python3
"""Layouts on clusters that are only described: seconds of a pair of video blocks, or of a LLaMA layer, by plan and rival.
Beside that, the planned layout and every rival's, run in turn on this machine.

    benchmarks/layouts.py [--paradyse build/release/paradyse] --out benchmarks/results/layouts_simulated.json
    benchmarks/layouts.py --table benchmarks/results/layouts_simulated.json
    benchmarks/layouts.py --measured benchmarks/results/layouts_gloo.json [--repeats 5]

ST-DiT XL/2 (28 pairs, width 1152, 16 heads) in bfloat16, forward and backward, nothing recomputed; one node of 8 H100
and the four (frames, tokens of a frame) of the DSP publication's first version, whose samples a second stand beside
ours; 128 H100 with 0.5 to 4 M tokens.  Llama 3 70B: one document on 8 to 64 H100 of nodes of 8.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# (frames, tokens): samples a second by Ulysses and by DSP, 8 GPUs (arXiv 2403.10266v1)
PUBLISHED = {(64, 4096): (1.15, 2.03), (128, 4096): (0.67, 1.44), (256, 4096): (0.33, 0.885), (128, 9216): (0.232, 0.735)}
CASES = [(8, frames, tokens) for frames, tokens in PUBLISHED] + [(128, frames, 4096) for frames in (128, 256, 512, 1024)]
# Ranks, tokens of the document.
TEXT_CASES = [(ranks, tokens) for ranks in (8, 16, 64) for tokens in (8192, 32768, 131072)]


def json_of(*command):
    return json.loads(subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout)


def planned(program, ranks, cluster, *model):
    plan = json_of(program, "plan", "layout", *model, "--ranks", ranks,
                   "--objective", "seconds", "--cluster", ROOT / f"configs/clusters/{cluster}.toml", "--json")
    return {"seconds": plan["seconds"],
            "rivals": {name: rival["seconds"] for name, rival in plan["rivals"].items()},
            "parts": [[part["strategy"] + "".join(f" {value}" for value in part.get("options", {}).values()), part["in"]["x"]]
                      for part in plan["parts"]]}


def run(program, ranks, frames, tokens):
    return {"ranks": ranks, "frames": frames, "tokens": tokens,
            **planned(program, ranks, f"{ranks}xH100", "--model", "stdit", "--frames", frames, "--tokens", tokens)}


def run_text(program, ranks, tokens):
    return {"ranks": ranks, "tokens": tokens,
            **planned(program, ranks, "64xH100", "--model", ROOT / "configs/models/llama-70b.toml", "--tokens", tokens)}


def measured(program, model, sizes, ranks, repeats, names=()):
    """The rows of a `bench step` of these layouts, or of all there are."""
    layout = [program, "plan", "layout", "--model", model, *sizes, "--ranks", ranks, "--json"]
    with tempfile.TemporaryDirectory() as folder:
        plans = []
        for name in names or ["planned", *json_of(*layout)["rivals"]]:
            plans.append(pathlib.Path(folder) / name)
            json_of(*layout, "--layout", name, "--out", plans[-1])
            plans[-1].write_text(json.dumps(json.loads(plans[-1].read_text()) | {"overlap": True}))
        launcher = ["launch", "-n", ranks, "--"] if ranks > 1 else []
        rows = json_of(program, *launcher, "bench", "step", "--model", model, "--repeats", repeats, "--json",
                       *(word for plan in plans for word in ("--plan", plan)))["rows"]
    return [row | {"name": pathlib.Path(row["name"]).name} for row in rows]


def text_table(rows):
    if not rows:
        return
    names = list(rows[0]["rivals"])
    print("| GPUs | tokens | attention, MLP | ms a layer | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 4) + "|")
    for row in rows:
        print(f"| {row['ranks']} | {row['tokens']} | {', '.join(name for name, _ in row['parts'])} | "
              f"{1e3 * row['seconds']:.1f} | "
              + " | ".join(f"{row['rivals'][name] / row['seconds']:.2f}" for name in names) + " |")


def table(rows):
    names = list(rows[0]["rivals"])
    print("| GPUs | frames x tokens | ms a pair | " + " | ".join(names) + " | published DSP / Ulysses |")
    print("|---" * (len(names) + 4) + "|")
    for row in rows:
        published = PUBLISHED.get((row["frames"], row["tokens"])) if row["ranks"] == 8 else None
        print(f"| {row['ranks']} | {row['frames']} x {row['tokens']} | {1e3 * row['seconds']:.1f} | "
              + " | ".join(f"{row['rivals'][name] / row['seconds']:.2f}" for name in names)
              + f" | {f'{published[1] / published[0]:.2f}' if published else ''} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paradyse", default=str(ROOT / "build/release/paradyse"))
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--measured", type=pathlib.Path)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.out:
        rows = [run(options.paradyse, *case) for case in CASES]
        text = [run_text(options.paradyse, *case) for case in TEXT_CASES]
        options.out.write_text(json.dumps({"rows": rows, "text": text}, indent=1) + "\n")
    if options.measured:
        rows = measured(options.paradyse, ROOT / "configs/models/stdit-s-narrow.toml",
                        ["--frames", 16, "--tokens", 64], 4, options.repeats)
        options.measured.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    if options.table:
        found = json.loads(options.table.read_text())
        table(found["rows"])
        print()
        text_table(found.get("text", []))


if __name__ == "__main__":
    main()
