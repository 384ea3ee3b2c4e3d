#!/usr/bin/env python3
"""The table of docs/results/performance.md of what benchmarks/attention.cc has measured.

    benchmarks/attention_table.py benchmarks/results/attention.json
"""
import collections
import json
import statistics
import sys


def rates_of(runs):
    """What is worth keeping of a run of benchmark.attention: flops a second of each repetition, by name."""
    rates = collections.defaultdict(list)
    for run in runs:
        if run["run_type"] == "iteration":
            rates[run["run_name"].split("/min_time")[0]].append(round(run["flops"]))
    return rates


def main():
    if sys.argv[1] == "--keep":  # from standard input to standard output
        found = json.load(sys.stdin)
        json.dump({"context": {"num_cpus": found["context"]["num_cpus"]}, "flops": rates_of(found["benchmarks"])},
                  sys.stdout, indent=0)
        return
    with open(sys.argv[1], encoding="utf-8") as file:
        rates = json.load(file)["flops"]
    middle = {name: statistics.median(values) / 1e9 for name, values in rates.items()}

    def both(who, what):  # GFLOP/s of forward and backward together, two and five parts of the work
        return 7 / (2 / middle[f"{who}/forward/{what}"] + 5 / middle[f"{who}/backward/{what}"])

    print("| type | width | tokens | forward | backward | both | of products | torch's | ours / torch's |")
    print("|---" * 9 + "|")
    for kind in ("float32", "bfloat16"):
        for width in (16, 32, 64, 128):
            for tokens in (64, 256, 1024, 4096):
                what = f"{kind}/{width}/{tokens}"
                if f"ours/forward/{what}" not in middle:  # filtered out
                    continue
                ours, torchs = both("ours", what), both("torch", what)
                print(f"| {kind} | {width} | {tokens:,} | {middle['ours/forward/' + what]:.1f} | "
                      f"{middle['ours/backward/' + what]:.1f} | {ours:.1f} | "
                      f"{100 * ours / middle['product/' + kind]:.0f} % | {torchs:.1f} | {ours / torchs:.2f} |")
    print("\nproducts: " + ", ".join(f"{kind} {middle['product/' + kind]:.1f}" for kind in ("float32", "bfloat16")))


if __name__ == "__main__":
    main()
