#!/usr/bin/env python3
"""What choosing the layers of every document by its length gains over one strategy for all: measured.

    paradyse profile -c configs/runs/switching.toml && paradyse fit ...  # once
    benchmarks/lengths.py bins --bins GitHubCode --max 8192 --count 24 --seed 1 > lengths.txt
    benchmarks/switching.py build/release/paradyse OUT.json --model configs/models/switching.toml \\
      --costs X.costs.json --lengths lengths.txt --memory 54MiB

A step has one document on all ranks.  Its plans are made with `plan layers`: ours, those of the ParaDySe
paper's heuristic, and each static strategy without recomputation, as published, and at the lowest level of
recomputation that fits ("+").  Equal plans are measured once.  `bench step` plays the plans of a length in
turn, in another order each round.
"""
import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

STATIC = {"MegatronTS": "tensor-parallel", "UlyssesZ": "zero3", "MegatronCZ": "zero3", "METP": "streamed"}
LEVELS = ["none", "light", "attention-output", "full", "layer"]


def answer(program, *arguments):
    """The JSON document that the program prints; it may end with 1, where no case fits."""
    done = subprocess.run([program, *map(str, arguments), "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def plans_of(length, given, folder):
    """{name: (plan file, predicted seconds)} of the plans that fit."""

    def plan(name, *more):
        out = folder / f"{name}.json"
        found = answer(
            given.program, "plan", "layers", "--model", given.model, "--fitted", given.costs, "--length", length,
            "--ranks", given.ranks, "--capacity", given.memory, "--out", out, *more)
        return (out, found["seconds"]) if found["feasible"] else None

    found = {"ours": plan("ours"), "published heuristic": plan("published", "--planner", "paradyse-heuristic")}
    for attention, mlp in STATIC.items():
        levels = (
            plan(f"{attention}-{level}", "--attention", attention, "--mlp", mlp, "--recompute", level)
            for level in LEVELS)
        found[attention] = next(levels)
        found[attention + " +"] = found[attention] or next((one for one in levels if one), None)
    return {name: one for name, one in found.items() if one}


def what_runs(file):
    """What tells plans apart in time."""
    plan = json.loads(file.read_text())
    return json.dumps([plan["programs"], plan.get("messages")], sort_keys=True)


def measured(length, given):
    """{name: {"seconds": of each round, "predicted"}} of the runs that fit a document."""
    with tempfile.TemporaryDirectory() as folder:
        plans = plans_of(length, given, pathlib.Path(folder))
        if not plans:
            return {}
        one_of = {what_runs(file): file for file, _ in plans.values()}
        arguments = [part for file in one_of.values() for part in ("--plan", file)]
        rows = answer(
            given.program, "bench", "step", "--model", given.model, "--ranks", given.ranks, "--memory-per-rank",
            given.memory, "--repeats", given.repeats, *arguments)["rows"]
        seconds = {row["name"]: row.get("seconds") for row in rows}
        found = {
            name: {"seconds": seconds[str(one_of[what_runs(file)])], "predicted": predicted}
            for name, (file, predicted) in plans.items()}
    return {name: one for name, one in found.items() if one["seconds"]}


def total(rows, name):
    return sum(row["times"] * statistics.median(row["runs"][name]["seconds"]) for row in rows)


def summary(rows):
    """Of each run: how many lengths it fits, and its time over that of ours on them."""
    names = list(dict.fromkeys(name for row in rows for name in row["runs"]))
    for name in names:
        both = [row for row in rows if name in row["runs"] and "ours" in row["runs"]]
        if both:
            yield {
                "run": name,
                "documents": sum(row["times"] for row in both),
                "longest": max(row["length"] for row in both),
                "seconds": total(both, name),
                "over_ours": total(both, name) / total(both, "ours"),
            }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("out")
    parser.add_argument("--model", required=True)
    parser.add_argument("--costs", required=True, help="of paradyse fit")
    parser.add_argument("--lengths", required=True, help="file with a length a line")
    parser.add_argument("--memory", required=True, help="of a rank, as in 54MiB")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    lengths = collections.Counter(int(line) for line in pathlib.Path(given.lengths).read_text().split())
    rows = []
    for length, times in sorted(lengths.items()):
        rows.append({"length": length, "times": times, "runs": measured(length, given)})
        print(f"{length} tokens: {len(rows[-1]['runs'])} runs fit", file=sys.stderr)
    totals = list(summary(rows))
    setting = {name: vars(given)[name] for name in ("model", "ranks", "memory", "repeats")}
    pathlib.Path(given.out).write_text(json.dumps({**setting, "summary": totals, "rows": rows}, indent=1) + "\n")
    print("| run | documents | longest | seconds | / ours on them |\n|---|---|---|---|---|")
    for one in totals:
        print(f"| {one['run']} | {one['documents']} | {one['longest']:,} | {one['seconds']:.2f} | {one['over_ours']:.2f} |")


if __name__ == "__main__":
    main()
