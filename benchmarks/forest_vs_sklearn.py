#!/usr/bin/env python3
"""The random forest of `paradyse fit` beside scikit-learn's RandomForestRegressor.

    benchmarks/forest_vs_sklearn.py --paradyse build/release/paradyse [--profile FILE] [--json FILE]

needs scikit-learn.  Both forests (50 trees of depth 10) see the same samples: the seconds of a phase
by length and recompute level.  Every length but the shortest and the longest is left out in turn, of
every strategy at once, and predicted; the error is |predicted - measured| / measured.  Ours is read
from the costs file that `paradyse fit` writes for the profile without that length, so what is
compared is what the program uses.  scikit-learn's is fitted with several random states: their range
is what the draws of samples alone do.

Without --profile the data are made here: a s^2 + b s + c with noise, and a step.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

LEVELS = ["none", "light", "attention-output", "full"]
PHASES = ["forward", "backward", "recompute"]
HEADER = {
    "format": "paradyse-profile", "version": 2, "machine": "made up", "machine_sha256": "",
    "model": "made up", "model_sha256": "", "hidden": 1, "layers": 1, "ranks": 1, "ranks_per_node": 1, "cores": 1,
    "backend": "local", "device": "cpu", "dtype": "float32"}


def made_up(seed):
    """Lines of a profile: three levels at 18 lengths, 5 % of noise, a step at 1500 tokens."""
    draw = random.Random(seed)
    lines = [HEADER]
    for length in [round(64 * 1.45 ** i) for i in range(18)]:
        for level, more in ("none", 0.0), ("light", 0.2), ("full", 1.0):
            exact = [2e-4 + 2e-6 * length + 3e-10 * length ** 2 + (2e-3 if length > 1500 else 0)]
            exact += [2 * exact[0], more * exact[0]]
            line = {"probe": "part", "part": "attention", "strategy": "UlyssesZ", "recompute": level,
                    "ranks": 1, "length": length, "reshard_after_backward": True, "outcome": "measured", "seconds": {}, "work": {}}
            for phase, seconds in zip(PHASES, exact):
                seconds *= draw.lognormvariate(0, 0.05)
                line["seconds"][phase] = {"median": seconds, "least": seconds, "most": seconds}
                line["work"][phase] = {
                    "matmul_flops": length, "attention_flops": length ** 2, "touched_bytes": length,
                    "calls": 1, "sent_bytes": 0, "collectives": 0, "bytes_across_nodes": 0,
                    "collectives_across_nodes": 0, "weight_bytes": 0, "weight_collectives": 0}
            lines.append(line)
    return lines


def is_sample(line):
    return line.get("probe") == "part" and line["outcome"] == "measured" and line["part"] != "optimizer"


def key_of(line):
    return line["part"], line["strategy"], line["ranks"]


def features_of(line):
    return [line["length"], LEVELS.index(line["recompute"])]


def forests_of(paradyse, lines, folder):
    """{(part, strategy, ranks): {phase: trees}} as the program fits them."""
    profile, costs = folder / "profile.jsonl", folder / "costs.json"
    profile.write_text("".join(json.dumps(line) + "\n" for line in lines))
    costs.unlink(missing_ok=True)
    subprocess.run([paradyse, "fit", "--profile", profile, "--out", costs],
                   check=True, stdout=subprocess.DEVNULL)
    fitted = json.loads(costs.read_text())["hybrid"]["strategies"]
    return {(one["part"], one["strategy"], one["ranks"]): one["forests"] for one in fitted}


def answer(trees, features):
    total = 0.0
    for tree in trees:
        node = 0
        while tree["feature"][node] >= 0:
            above = features[tree["feature"][node]] > tree["threshold"][node]
            node = tree["below"][node] + above
        total += tree["value"][node]
    return total / len(trees)


def compare(paradyse, lines, folder, states):
    """Relative errors of phases left out: of ours, and of theirs for each random state."""
    from sklearn.ensemble import RandomForestRegressor

    samples = [line for line in lines if is_sample(line)]
    ours_errors, their_errors = [], [[] for _ in range(states)]
    for length in sorted({line["length"] for line in samples})[1:-1]:
        seen = [line for line in lines if not (is_sample(line) and line["length"] == length)]
        ours = forests_of(paradyse, seen, folder)
        for key in sorted({key_of(line) for line in samples}):
            train = [line for line in seen if is_sample(line) and key_of(line) == key]
            test = [line for line in samples if key_of(line) == key and line["length"] == length]
            lengths = {line["length"] for line in train}
            if key not in ours or not test or not min(lengths) < length < max(lengths):
                continue
            for phase in PHASES:
                test_here = [line for line in test if line["seconds"][phase]["median"] > 0]
                if not test_here:
                    continue
                measured = [line["seconds"][phase]["median"] for line in test_here]
                features = [features_of(line) for line in test_here]
                ours_errors += [abs(answer(ours[key][phase], x) - y) / y
                                for x, y in zip(features, measured)]
                for state in range(states):
                    theirs = RandomForestRegressor(
                        n_estimators=50, max_depth=10, random_state=state)
                    theirs.fit([features_of(line) for line in train],
                               [line["seconds"][phase]["median"] for line in train])
                    their_errors[state] += [
                        abs(float(p) - y) / y for p, y in zip(theirs.predict(features), measured)]
    return ours_errors, their_errors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paradyse", default="build/release/paradyse")
    parser.add_argument("--profile")
    parser.add_argument("--json")
    parser.add_argument("--draws", type=int, default=3, help="sets of data that are made up")
    parser.add_argument("--states", type=int, default=8, help="random states of scikit-learn")
    args = parser.parse_args()
    import sklearn

    if args.profile:
        sets = {args.profile: [json.loads(line) for line in open(args.profile) if line.endswith("\n")]}
    else:
        sets = {f"made up, seed {seed}": made_up(seed) for seed in range(1, args.draws + 1)}
    rows = []
    with tempfile.TemporaryDirectory(prefix="forest_vs_sklearn_") as folder:
        for name, lines in sets.items():
            ours, theirs = compare(args.paradyse, lines, pathlib.Path(folder), args.states)
            means = [statistics.fmean(errors) for errors in theirs]
            row = {"data": name, "predictions": len(ours), "ours_mean": statistics.fmean(ours),
                   "sklearn_mean": statistics.fmean(means), "sklearn_least": min(means),
                   "sklearn_most": max(means), "ours_median": statistics.median(ours),
                   "sklearn_median": statistics.fmean(map(statistics.median, theirs))}
            rows.append(row)
            print("{data}: {predictions} predictions; mean error ours {ours_mean:.2%}, sklearn "
                  "{sklearn_mean:.2%} (by random state {sklearn_least:.2%} to {sklearn_most:.2%}); "
                  "median ours {ours_median:.2%}, sklearn {sklearn_median:.2%}".format(**row),
                  flush=True)
    if args.json:
        result = {
            "made_by": " ".join(["benchmarks/forest_vs_sklearn.py", *sys.argv[1:]]),
            "what": "Mean and median of |predicted - measured| / measured of phases on lengths left out, "
                    "50 trees of depth 10, both forests on the same samples; of scikit-learn the mean, "
                    "least and greatest over its random states.",
            "sklearn": sklearn.__version__,
            "rows": rows}
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
