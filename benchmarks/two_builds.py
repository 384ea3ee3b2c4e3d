#!/usr/bin/env python3
"""Training steps of two builds of the program, in turn: seconds of the best step of each run.

    benchmarks/two_builds.py OLD/paradyse NEW/paradyse --repeats 5 [--backend gloo] --out FILE.json

Every repeat runs old and new, in an order that alternates, for each strategy and length.  The JSON
holds every run and, of each case, the ratio new / old of each repeat: median, least, most.
"""
import argparse
import json
import statistics
import subprocess


def seconds(program, backend, model, strategy, length):
    ranks = [program, "launch", "-n", "4", "--"] if backend == "gloo" else [program]
    run = subprocess.run(
        [*ranks, "bench", "step", "--model", model, *(["--ranks", "4"] if backend == "local" else []),
         "--lengths", str(length), "--attention", strategy, "--repeats", "7", "--json"],
        capture_output=True, text=True, timeout=300, check=True)
    return json.loads(run.stdout)["rows"][0]["best_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--model", default="configs/models/bench.toml")
    parser.add_argument("--strategies", default="DataZ,MegatronTS,UlyssesZ")
    parser.add_argument("--lengths", default="256,1024,4096")
    parser.add_argument("--backend", choices=["local", "gloo"], default="local")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    cases = [{"strategy": s, "length": int(n), "old": [], "new": []}
             for s in options.strategies.split(",") for n in options.lengths.split(",")]
    for repeat in range(options.repeats):
        for case in cases:
            for which in ("old", "new") if repeat % 2 == 0 else ("new", "old"):
                case[which].append(seconds(
                    getattr(options, which), options.backend, options.model, case["strategy"], case["length"]))
    for case in cases:
        ratios = sorted(new / old for old, new in zip(case["old"], case["new"], strict=True))
        case["new / old"] = {
            "median": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}
        print(f"{case['strategy']:12} {case['length']:5} tokens: "
              f"{case['new / old']['median']:.3f} ({ratios[0]:.3f} - {ratios[-1]:.3f})")
    with open(options.out, "w", encoding="utf-8") as out:
        json.dump({"command": " ".join(["benchmarks/two_builds.py", "OLD", "NEW",
                                        "--repeats", str(options.repeats),
                                        "--backend", options.backend]),
                   "model": options.model, "ranks": 4, "backend": options.backend, "cases": cases},
                  out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
