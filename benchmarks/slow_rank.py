#!/usr/bin/env python3
"""Trains on two ranks of which one gets a share of its core: even cuts, and cuts by learned speeds.

Each rank is a process on a core of its own (taskset).  The second one's control group has a quota of --speed of the
core in every 10 ms (Linux, as root).  A run with costs.correct = false divides work evenly; the other learns the speeds
of the ranks from its steps and goes by them.  They are run in turn.  With speed s of the slow rank beside the other,
ideal cuts take 2 s / (1 + s) of even ones.

usage: benchmarks/slow_rank.py PARADYSE OUT.json [--repeats 3] [--steps 40]
"""
import argparse
import contextlib
import json
import pathlib
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile

LEARNING = 15  # first steps, which are not counted
PERIOD = 10000  # microseconds
GROUP = "paradyse-slow-rank"


@contextlib.contextmanager
def slowed(speed):
    """A control group whose processes get so much of a core; its file of processes."""
    root = pathlib.Path("/sys/fs/cgroup")
    one = (root / "cgroup.controllers").exists()  # version 2
    group = (root if one else root / "cpu") / GROUP
    group.mkdir(exist_ok=True)
    try:
        quota = round(speed * PERIOD)
        if one:
            (group / "cpu.max").write_text(f"{quota} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def documents(folder):
    """In turn one long document and many short ones."""
    rng = random.Random(1)
    with open(folder / "data.jsonl", "w") as out:
        for i in range(400):
            n = 4096 if i % 8 == 0 else rng.randrange(64, 800)
            out.write(json.dumps({"tokens": [rng.randrange(256) for _ in range(n)]}) + "\n")


def launch(options, *args, group="/dev/null"):
    """A command on two ranks, a process on a core of its own each, the second one in `group`; what both said."""
    at = f"127.0.0.1:{free_port()}"
    ranks = [subprocess.Popen(
        ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group) if rank == 1 else "/dev/null",
         "taskset", "-c", str(rank), options.paradyse, "launch", "--nodes", "2", "--node", str(rank), "--rendezvous", at,
         "-n", "1", "--", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)]
    said = "".join(rank.communicate(timeout=900)[0] for rank in ranks)
    if any(rank.returncode for rank in ranks):
        sys.exit(f"{' '.join(map(str, args))}: {said[-1500:]}")
    return said


def settings(options, folder, **more):
    keys = {"model.path": options.model, "data.path": folder / "data.jsonl", "output.folder": folder,
            "train.steps": options.steps, "train.tokens_per_step": 8192, "parallel.ranks": 2,
            "parallel.batch_planner": "groups", "parallel.memory_per_rank": "256MiB", "checkpoint.keep": 0, **more}
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]


def train(options, folder, name, correct, group):
    said = launch(options, "train", *settings(
        options, folder, **{"output.name": name, "costs.file": folder / "costs.json",
                            "costs.correct": "true" if correct else "false"}), group=group)
    steps = [json.loads(line) for line in open(folder / name / "metrics.jsonl")]
    speeds = re.findall(r"rank 1 computes at ([0-9.]+) times the speed", said)
    return [step["seconds"] for step in steps[LEARNING:]], [step["loss"] for step in steps], speeds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paradyse")
    parser.add_argument("out")
    parser.add_argument("--model", default="configs/models/demo.toml")
    parser.add_argument("--speed", type=float, default=0.5, help="of the second rank beside the first")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--profile", type=float, default=60, help="seconds of measuring costs")
    options = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        documents(folder)
        launch(options, "profile", *settings(options, folder), "--seconds", options.profile, "--out",
               folder / "profile.jsonl")
        subprocess.run([options.paradyse, "fit", "--profile", folder / "profile.jsonl", "--out", folder / "costs.json"],
                       check=True, stdout=subprocess.DEVNULL)
        with slowed(options.speed) as group:
            for repeat in range(options.repeats):
                even, losses, _ = train(options, folder, f"even{repeat}", correct=False, group=group)
                cut, same, speeds = train(options, folder, f"cut{repeat}", correct=True, group=group)
                speed = float(speeds[-1]) if speeds else None
                ratio = statistics.median(a / b for a, b in zip(even, cut))
                ideal = (1 + speed) / (2 * speed) if speed else None
                runs.append({
                    "even_seconds": sum(even), "cut_seconds": sum(cut), "median_ratio": ratio, "learned_speed": speed,
                    "ideal_ratio": ideal,
                    "share_of_ideal_gain": (1 - 1 / ratio) / (1 - 1 / ideal) if ideal else None,
                    "largest_loss_difference": max(abs(a - b) for a, b in zip(losses, same))})
                print(json.dumps(runs[-1]), flush=True)
    pathlib.Path(options.out).write_text(json.dumps({"options": vars(options), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
