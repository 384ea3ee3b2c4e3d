#!/usr/bin/env python3
"""The table of docs/results/performance.md of what benchmarks/passes.cc has measured.

    benchmarks/passes_table.py benchmarks/results/passes.json
"""
import collections
import json
import statistics
import sys

SIZES = [(kind, tokens) for kind in ("float32", "bfloat16") for tokens in (256, 1024, 4096)]
PASSES = ("copy", "add", "norm", "add, then norm", "add, norm, by rows", "norm, adjoint", "rope", "swiglu",
          "swiglu, adjoint", "bias", "bias, adjoint")


def main():
    if sys.argv[1] == "--keep":  # what is worth keeping: bytes a second of each repetition, by name
        rates = collections.defaultdict(list)
        for run in json.load(sys.stdin)["benchmarks"]:
            if run["run_type"] == "iteration":
                rates[run["run_name"].split("/min_time")[0]].append(round(run["bytes"]))
        json.dump({"bytes": rates}, sys.stdout, indent=0)
        return
    with open(sys.argv[1], encoding="utf-8") as file:
        rates = {name: statistics.median(values) / 1e9 for name, values in json.load(file)["bytes"].items()}
    print("| GB/s: torch's, ours | " + " | ".join(f"{kind}, {tokens:,}" for kind, tokens in SIZES) + " |")
    print("|---" * (len(SIZES) + 1) + "|")
    for name in PASSES:
        cells = [[rates[f"{who}/{kind}/{tokens}/{name}"] for who in ("torch", "ours")] for kind, tokens in SIZES]
        print(f"| {name} | " + " | ".join(f"{before:.1f}, {after:.1f}" for before, after in cells) + " |")


if __name__ == "__main__":
    main()
