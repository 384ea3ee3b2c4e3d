#!/usr/bin/env python3
"""Exposed seconds of a step over `gloo`, with messages beside work and without, in turn in one run.

    benchmarks/overlap.py [--ranks 2] [--repeats 5] [--json FILE]

`paradyse bench step --breakdown` of each strategy at each length; exposed is the wall time in which a rank's parts
send, receive or wait for messages, mean over ranks and steps.
"""
import argparse
import json
import os
import statistics
import subprocess

# Attention, and options; an MLP by the attention's verb.
WAYS = {
    "DataZ": ["--attention", "DataZ"],
    "MegatronTS": ["--attention", "MegatronTS"],
    "MegatronTS, tokens kept": ["--attention", "MegatronTS", "--keep-gathered", "1"],
    "MegatronTS + gather": ["--attention", "MegatronTS", "--mlp", "gather"],
    "UlyssesZ": ["--attention", "UlyssesZ"],
    "MegatronCZ": ["--attention", "MegatronCZ"],
    "METP": ["--attention", "METP"],
    "AllGatherKV": ["--attention", "AllGatherKV"],
}


def step(args, way, overlap):
    command = [args.paradyse, "launch", "-n", str(args.ranks), "--", "bench", "step", "--model", args.model,
               *WAYS[way], "--lengths", args.lengths, "--repeats", str(args.steps), "--breakdown", "--json",
               *([] if overlap else ["--no-overlap"])]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["rows"]
    return {row["length"]: row for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paradyse", default="build/release/paradyse")
    parser.add_argument("--model", default="configs/models/bench.toml")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--lengths", default="256,512,1024,2048")
    parser.add_argument("--ways", default=";".join(WAYS), help="of those named in this file, apart by ;")
    parser.add_argument("--steps", type=int, default=15, help="of a run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    found = {}  # (way, length) -> overlap -> [repeat] of rows
    for repeat in range(args.repeats):
        for way in args.ways.split(";"):
            for overlap in (False, True) if repeat % 2 else (True, False):
                for length, row in step(args, way, overlap).items():
                    found.setdefault((way, length), {}).setdefault(overlap, []).append(row)
    rows = []
    for (way, length), of in found.items():
        row = {"way": way, "length": length}
        for key in ("exposed_s", "step_s", "peak_bytes"):
            before, after = ([r[key] for r in of[overlap]] for overlap in (False, True))
            ratios = [b / a for a, b in zip(before, after)]
            row |= {key: {"without": before, "with": after, "ratio": statistics.median(ratios), "least": min(ratios),
                          "most": max(ratios)}}
        rows.append(row)
        exposed, whole, peak = row["exposed_s"], row["step_s"], row["peak_bytes"]
        share = [100 * statistics.median(exposed[k]) / statistics.median(whole[k]) for k in ("without", "with")]
        print(f"{way:24} {length:5}  exposed {statistics.median(exposed['without']) * 1e3:6.2f} -> "
              f"{statistics.median(exposed['with']) * 1e3:6.2f} ms ({share[0]:4.1f} -> {share[1]:4.1f} % of the step), "
              f"{exposed['ratio']:.2f} ({exposed['least']:.2f} - {exposed['most']:.2f}); step {whole['ratio']:.2f} "
              f"({whole['least']:.2f} - {whole['most']:.2f}); peak {peak['ratio']:.3f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"model": args.model, "ranks": args.ranks, "cores": os.cpu_count(), "rows": rows}, out, indent=1)


if __name__ == "__main__":
    main()
