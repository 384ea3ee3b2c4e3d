#!/usr/bin/env python3
"""Seconds a step of `paradyse bench step` beside PyTorch's own parallelisms, in turn in one run.

    benchmarks/peers.py --torchrun VENV/bin/torchrun [--repeats 5] [--json FILE]

torch_peers.py times FSDP2 and DTensor tensor + sequence parallelism on CPU ranks over Gloo on the
model of configs/models/bench.toml; it needs an environment with torch 2.11.  Each repeat runs every
mode once, one after the other, so that what else the machine does falls on all of them.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import time

PEERS = pathlib.Path(__file__).with_name("torch_peers.py")
PAIRS = [  # ours, theirs
    (["--attention", "DataZ"], "fsdp"),
    (["--attention", "MegatronTS"], "tp_sp"),
    (["--attention", "UlyssesZ"], "tp_sp"),
]


def ours(args, options):
    launcher = ["launch", "-n", str(args.ranks), "--"] if args.backend == "gloo" else []
    command = [args.paradyse, *launcher, "bench", "step", "--model", "configs/models/bench.toml",
               "--backend", args.backend, "--ranks", str(args.ranks), "--lengths", args.lengths,
               "--repeats", "3", "--json", *options]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["rows"]
    return {row["length"]: (row["best_s"], row["tokens_per_s"] * row["step_s"] / row["best_s"],
                            row["cpu_s"]) for row in rows}


def theirs(args, mode):
    command = [args.torchrun, "--nproc-per-node", str(args.ranks), str(PEERS), mode, "--lengths",
               args.lengths]
    done = subprocess.run(command, check=True, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["length"]: (row["step_s"], row["tokens_per_s"], None) for row in rows}


def cpu_of_theirs(args, mode, length):
    """CPU seconds of all ranks a step: a run of five steps less a run of two, each with its start."""
    spent = []
    for steps in (1, 4):  # and one that is not counted
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([args.torchrun, "--nproc-per-node", str(args.ranks), str(PEERS), mode, "--lengths",
                        str(length), "--iters", str(steps)], check=True, capture_output=True,
                       env={**os.environ, "OMP_NUM_THREADS": "1"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return (spent[1] - spent[0]) / 3


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchrun", required=True)
    parser.add_argument("--paradyse", default="build/release/paradyse")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", default="local", choices=["local", "gloo"], help="of paradyse")
    parser.add_argument("--lengths", default="256,1024,4096")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--cpu", action="store_true", help="also CPU seconds a step, of one run each")
    args = parser.parse_args()

    results = {}  # name -> length -> list of tokens/s
    cpu = {}  # (name, length) -> list of CPU seconds a step
    for repeat in range(args.repeats):
        for mode in sorted({theirs for _, theirs in PAIRS}):
            for length, (_, speed, _) in theirs(args, mode).items():
                results.setdefault(mode, {}).setdefault(length, []).append(speed)
        for options, _ in PAIRS:
            for length, (_, speed, used) in ours(args, options).items():
                results.setdefault(options[1], {}).setdefault(length, []).append(speed)
                cpu.setdefault((options[1], length), []).append(used)
        print(f"repeat {repeat + 1} of {args.repeats} done at {time.strftime('%H:%M:%S')}", flush=True)
    print("tokens/s, best step of each run: median over repeats (least - most)")
    if args.cpu:
        for mode in sorted({theirs for _, theirs in PAIRS}):
            for length in map(int, args.lengths.split(",")):
                cpu[mode, length] = [cpu_of_theirs(args, mode, length)]
    table = []
    for options, peer in PAIRS:
        for length in map(int, args.lengths.split(",")):
            mine, other = results[options[1]][length], results[peer][length]
            ratios = [a / b for a, b in zip(mine, other)]
            table.append({"ours": options[1], "peer": peer, "length": length, "ours_tokens_per_s": mine,
                          "peer_tokens_per_s": other, "ratio": statistics.median(ratios),
                          "ratio_least": min(ratios), "ratio_most": max(ratios),
                          "ours_cpu_s": cpu[options[1], length], "peer_cpu_s": cpu.get((peer, length))})
            print(f"{options[1]:11} {length:6}  {statistics.median(mine):7.0f} ({min(mine):.0f} - "
                  f"{max(mine):.0f})  {peer:6} {statistics.median(other):7.0f} ({min(other):.0f} - "
                  f"{max(other):.0f})  ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} - "
                  f"{max(ratios):.2f})  CPU s a step {statistics.median(cpu[options[1], length]):.3f}"
                  + (f", {cpu[peer, length][0]:.3f}" if args.cpu else ""))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"ranks": args.ranks, "backend": args.backend, "repeats": args.repeats, "rows": table}, out, indent=1)


if __name__ == "__main__":
    main()
