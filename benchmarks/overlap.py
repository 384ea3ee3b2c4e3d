#!/usr/bin/env python3
"""Exposed seconds of a step over `gloo`: all messages waited for at once, beside work, and beside work with gathered
weights kept for the backward pass, in turn in one run.

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
    "MegatronTS + gather": ["--attention", "MegatronTS", "--mlp", "zero3"],
    "UlyssesZ": ["--attention", "UlyssesZ"],
    "MegatronCZ": ["--attention", "MegatronCZ"],
    "METP": ["--attention", "METP"],
    "AllGatherKV": ["--attention", "AllGatherKV"],
}
# How messages travel.
MESSAGES = {"at once": ["--no-overlap"], "beside work": [], "weights kept": ["--no-reshard-after-forward"]}


def step(args, way, messages):
    command = [args.paradyse, "launch", "-n", str(args.ranks), "--", "bench", "step", "--model", args.model,
               *WAYS[way], "--lengths", args.lengths, "--repeats", str(args.steps), "--breakdown", "--json",
               *MESSAGES[messages]]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["rows"]
    return {row["length"]: row for row in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paradyse", default="build/release/paradyse")
    parser.add_argument("--model", default="configs/models/bench.toml")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--lengths", default="256,512,1024,2048")
    parser.add_argument("--ways", default=";".join(WAYS), help="of those named in this file, apart by ;")
    parser.add_argument("--base", help="the way whose messages at once ratios are to; default: each to its own")
    parser.add_argument("--steps", type=int, default=15, help="of a run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.base and args.base not in args.ways.split(";"):
        parser.error(f"--base {args.base} is not among --ways")
    found = {}  # (way, length) -> messages -> [repeat] of rows
    for repeat in range(args.repeats):
        for way in args.ways.split(";"):
            for messages in list(MESSAGES)[::1 if repeat % 2 else -1]:
                for length, row in step(args, way, messages).items():
                    found.setdefault((way, length), {}).setdefault(messages, []).append(row)
    rows = []
    for (way, length), of in found.items():
        before = found[args.base or way, length]["at once"]
        for messages, after in of.items():
            row = {"way": way, "length": length, "messages": messages}
            for key in ("exposed_s", "step_s", "peak_bytes"):
                numbers = [r[key] for r in after]
                ratios = [b / a[key] for a, b in zip(before, numbers)]
                row[key] = {"repeats": numbers, "median": statistics.median(numbers),
                            "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
            rows.append(row)
            exposed, whole, peak = row["exposed_s"], row["step_s"], row["peak_bytes"]
            print(f"{way:24} {length:5} {messages:12} exposed {exposed['median'] * 1e3:6.1f} ms, {exposed['ratio']:.2f} "
                  f"({exposed['least']:.2f} - {exposed['most']:.2f}); step {whole['median'] * 1e3:5.0f} ms, "
                  f"{whole['ratio']:.2f} ({whole['least']:.2f} - {whole['most']:.2f}); peak {peak['ratio']:.3f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"model": args.model, "ranks": args.ranks, "cores": os.cpu_count(), "base": args.base, "rows": rows},
                      out, indent=1)


if __name__ == "__main__":
    main()
