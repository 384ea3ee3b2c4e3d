#!/usr/bin/env python3
"""What a save costs a training run, with checkpoint.async_save and without.

usage: benchmarks/async_save.py PARADYSE [--ranks 2] [--hidden 512] [--layers 8] [--tokens 2048] [--steps 40]
           [--every 8] [--repeats 3] [--folder DIR]

Trains a Llama of that size on random documents, three ways in turn: without saves, with saves that training waits
for, and with asynchronous ones.  Of each run it takes, from trace.json and metrics.jsonl, what each save kept the
training thread of the slowest rank (spans "checkpoint" and "checkpoint is copied"), and the seconds of steps during
which files were written beside those of other steps.  The first save, which touches the copy's memory, is told
apart.  Prints JSON; `share` is (held + slower steps) / a step without a save.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
parser.add_argument("paradyse")
for name, value in (("ranks", 2), ("hidden", 512), ("layers", 8), ("tokens", 2048), ("steps", 40), ("every", 8),
                    ("repeats", 3)):
    parser.add_argument(f"--{name}", type=int, default=value)
parser.add_argument("--folder", help="where runs are written (default: a temporary folder)")
options = parser.parse_args()

MODEL = f"""
architectures = ["LlamaForCausalLM"]
model_type = "llama"
hidden_size = {options.hidden}
num_hidden_layers = {options.layers}
num_attention_heads = 8
num_key_value_heads = 8
intermediate_size = {4 * options.hidden}
vocab_size = 8192
rms_norm_eps = 1e-5
"""
WAYS = {"none": ["checkpoint.keep=0"],
        "sync": [f"checkpoint.every={options.every}", "checkpoint.async_save=false"],
        "async": [f"checkpoint.every={options.every}", "checkpoint.async_save=true"]}


def run(folder, way, number):
    name = f"{way}{number}"
    command = [options.paradyse, "train", "--json", "--model", folder / "model.toml", "--random-weights", "--data",
               folder / "data.jsonl", "--ranks", str(options.ranks)]
    for setting in (f"train.steps={options.steps}", f"train.tokens_per_step={options.tokens}", "costs.file=none",
                    "costs.correct=false", "checkpoint.minutes=0", "output.model=false", "output.trace_limit=0",
                    f"output.folder={folder}/runs", f"output.name={name}", *WAYS[way]):
        command += ["--set", setting]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done = folder / "runs" / name
    steps = [json.loads(line)["seconds"] for line in (done / "metrics.jsonl").read_text().splitlines()]
    events = json.loads((done / "trace.json").read_text())["traceEvents"]
    held = {}  # [begin of a save, about] -> seconds of the slowest rank
    spans = sorted((e for e in events if e.get("ph") == "X" and e["name"] in ("checkpoint", "checkpoint is copied")),
                   key=lambda e: e["ts"])
    for event in spans:
        key = next((k for k in held if abs(k - event["ts"]) < 1e4 + event["dur"]), event["ts"])
        held[key] = max(held.get(key, 0), event["dur"] / 1e6)
    sizes = [f.stat().st_size for f in done.glob("checkpoints/*/rank-*")]
    return steps, list(held.values()), max(sizes, default=0)


with tempfile.TemporaryDirectory(dir=options.folder) as made:
    folder = pathlib.Path(made)
    (folder / "model.toml").write_text(MODEL)
    draw = random.Random(1)
    (folder / "data.jsonl").write_text("".join(
        json.dumps({"tokens": [draw.randrange(8192) for _ in range(options.tokens // 4)]}) + "\n"
        for _ in range(64)))
    found = {way: {"steps": [], "beside": [], "first": [], "held": []} for way in WAYS}
    for number in range(options.repeats):
        for way in WAYS:
            steps, held, size = run(folder, way, number)
            one = found[way]
            saves = range(options.every, options.steps, options.every)
            beside = {s for save in saves for s in (save, save + 1)}  # the steps after a save, from 0
            warm = range(2, len(steps))  # the first ones make programs
            one["steps"] += [steps[s] for s in warm if s not in beside]
            one["beside"] += [steps[s] for s in warm if s in beside]
            if way != "none":
                one["file_bytes"] = size
                one["first"].append(held[0])
                one["held"] += held[1:-1]  # the last is the run's end, which waits
plain = statistics.median(found["none"]["steps"])
result = {"ranks": options.ranks, "hidden": options.hidden, "layers": options.layers, "tokens": options.tokens,
          "every": options.every, "cores": os.cpu_count(), "step_s": plain}
for way in ("sync", "async"):
    one = found[way]
    held = statistics.median(one["held"])
    slower = 2 * (statistics.mean(one["beside"]) - statistics.mean(one["steps"])) if way == "async" else 0.0
    result[way] = {"file_mib": one["file_bytes"] / 2**20, "held_s": held, "held_most_s": max(one["held"]),
                   "first_held_s": statistics.median(one["first"]), "slower_steps_s": slower,
                   "share": (held + slower) / plain}
json.dump(result, sys.stdout, indent=1)
print()
