#!/usr/bin/env python3
"""Trains on samples of unlike sizes on two nodes that a slow link joins, by several batch planners in turn.

The nodes are network namespaces of this machine with two ranks (or --ranks-per-node) on one core each (Linux, as
root).  Data is drawn: documents of lengths that are lognormal (median 1,200, sigma 1.66, at most 96,000) scaled to
4,096 tokens, and one of --longest for every two steps, which only four ranks hold (or all of --equal tokens, or the
next of the list --lengths, scaled likewise from --cut); clips of 8 to 64 frames for a video model; alignments of up
to --longest residues (120) for a protein model, the shortest a sixth of that.

A planner is a row of the table of batch planners, or static:STRATEGY: all documents on all ranks by one
strategy, which recomputes where it must.  PLANNER+world has weights sharded over all ranks and gathered in
each micro-batch.
With PROGRAM paradyse-lab there are rivals, too: groups-by-megatron, groups-by-verl, groups-by-longest-first.

usage: benchmarks/two_nodes.py PROGRAM OUT.json [--family text|stdit|evoformer] [--mbit 100] [--planners a,b]
"""
import argparse
import array
import gzip
import json
import os
import pathlib
import random
import secrets
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {
    "text": (ROOT / "configs/models/demo.toml").read_text(),
    "stdit": 'model_type = "stdit"\ndepth = 4\nhidden_size = 128\nnum_heads = 8\nin_channels = 4\n',
    "evoformer": 'model_type = "evoformer"\nno_blocks = 4\nc_m = 64\nc_z = 32\nno_heads_msa = 8\nno_heads_pair = 4\n'
                 'c_hidden = 8\nc_hidden_opm = 16\nc_hidden_mul = 32\ntransition_n = 4\n',
}
SPACES = ("paradyse-node-0", "paradyse-node-1")
DEADLINE = 1800  # seconds of a command
SCALED = 4096  # tokens of a drawn document of 96,000
SECRET = secrets.token_hex(16)  # of the runs: both nodes have to know it
MLP_OF = {"MegatronTS": "hold", "METP": "pass"}  # weight modes of static strategies


def shell(line, check=True):
    subprocess.run(line, shell=True, check=check, stderr=None if check else subprocess.DEVNULL)


def take_down():
    for space in SPACES:
        shell(f"ip netns del {space}", check=False)


def set_up(mbit):
    take_down()
    a, b = SPACES
    shell(f"ip netns add {a} && ip netns add {b} && ip link add pds0 type veth peer name pds1 && "
          f"ip link set pds0 netns {a} && ip link set pds1 netns {b}")
    for i, space in enumerate(SPACES):
        run = f"ip netns exec {space}"
        shell(f"{run} ip addr add 10.77.0.{i + 1}/24 dev pds{i} && {run} ip link set pds{i} up && {run} ip link set lo up")
        if mbit > 0:
            shell(f"{run} tc qdisc add dev pds{i} root tbf rate {mbit}mbit burst 128kb latency 2s")


def launch(program, per_node, port, *args):
    """The command on both nodes; node 0's standard output, or None where no plan fits, which is told."""
    known = {**os.environ, "PARADYSE_SECRET": SECRET}
    nodes = [subprocess.Popen(
        ["ip", "netns", "exec", space, "taskset", "-c", str(i % os.cpu_count()), program, "launch", "-n", str(per_node),
         "--nodes", "2", "--node", str(i), "--rendezvous", f"10.77.0.1:{port}", "--", *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=known) for i, space in enumerate(SPACES)]
    said = [node.communicate(timeout=DEADLINE) for node in nodes]
    if any("no plan" in errors for _, errors in said) and any(node.returncode for node in nodes):
        print(next(line for _, errors in said for line in errors.splitlines() if "no plan" in line), file=sys.stderr)
        return None
    if any(node.returncode for node in nodes):
        sys.exit(f"{' '.join(map(str, args))}: {said[0][1][-800:]}{said[1][1][-800:]}")
    return said[0][0]


def lengths_in(path):
    """A file's lengths, one a line, in order; ends the program where there are no more."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt") as file:
        yield from map(int, file)
    sys.exit(f"{path}: it has too few lengths for the steps; give fewer --steps, or a longer list")


def draw_documents(folder, rng, tokens, steps, longest, equal, lengths_of, cut):
    """For so many steps, and one of the longest for every two; or all of one length."""
    known = lengths_in(lengths_of) if lengths_of else None
    files = sorted(pathlib.Path("/usr/lib/python3").rglob("*.py"))[:400]
    text = b"".join(file.read_bytes() for file in files)
    if len(text) < longest:
        sys.exit("no text under /usr/lib/python3 to draw documents from")
    at = 0
    with open(folder / "documents.jsonl", "w", encoding="ascii") as out:
        for step in range(steps):
            lengths = [longest] if step % 2 == 0 and not equal else []
            while sum(lengths) < tokens:
                if equal:
                    lengths.append(equal)
                    continue
                drawn = next(known) if known else rng.lognormvariate(7.09, 1.66)
                if drawn <= cut:
                    lengths.append(max(8, round(drawn * SCALED / cut)))
            for length in lengths:
                at = at if at + length <= len(text) else 0
                out.write(json.dumps({"tokens": list(text[at:at + length])}) + "\n")
                at += length


def draw_clips(folder, rng):
    """A file for each size: short clips are many, long ones few."""
    for frames, count in ((8, 12), (16, 6), (32, 3), (64, 2)):
        for height, width in ((6, 6), (8, 12)):
            sizes = [count, 4, frames, height, width]
            numbers = array.array("f", (rng.gauss(0, 1) for _ in range(count * 4 * frames * height * width)))
            header = json.dumps({"latents": {"dtype": "F32", "shape": sizes,
                                             "data_offsets": [0, 4 * len(numbers)]}}).encode()
            with open(folder / f"clips_{frames}_{height}x{width}.safetensors", "wb") as file:
                file.write(struct.pack("<Q", len(header)) + header + numbers.tobytes())


def draw_alignments(folder, rng, longest):
    sizes = [(12, 20)] * 8 + [(16, 30)] * 6 + [(24, 45)] * 4 + [(32, 70)] * 2 + [(48, 120)]
    for number, (sequences, residues) in enumerate((s, r * longest // 120) for s, r in sizes):
        first = rng.choices("ACDEFGHIKLMNPQRSTVWY", k=residues)
        with open(folder / f"{number:02}.a3m", "w") as file:
            for s in range(sequences):
                row = [rng.choice("ACDEFGHIKLMNPQRSTVWY-") if s and rng.random() < 0.3 else c for c in first]
                file.write(f">s{s}\n{''.join(row)}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("out")
    parser.add_argument("--family", choices=MODELS, default="text")
    parser.add_argument("--mbit", type=float, default=100, help="megabits a second of the link; 0: as fast as it is")
    parser.add_argument("--planners", default="groups,borders,groups-of-1,groups-of-2,groups-of-4")
    parser.add_argument("--memory", help="of a rank; default: 16MiB for text, else 256MiB")
    parser.add_argument("--tokens", type=int, help="tokens or rows of a step; default: 32768 for text, else 12000")
    parser.add_argument("--longest", type=int,
                        help="tokens of the longest document (4608), residues of the longest alignment (120)")
    parser.add_argument("--equal", type=int, help="tokens of every document, in place of drawn lengths")
    parser.add_argument("--lengths", help="a file of document lengths, one a line (.gz too), in place of drawn ones")
    parser.add_argument("--cut", type=int, default=96000, help="tokens of the longest that is taken: of 4,096 here")
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12, help="that are counted")
    parser.add_argument("--warm", type=int, default=4, help="steps before them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", type=float, default=120, help="seconds of measuring costs")
    parser.add_argument("--costs", help="a costs file of an earlier run of the same link, in place of measuring")
    options = parser.parse_args()
    text = options.family == "text"
    options.memory = options.memory or ("16MiB" if text else "256MiB")
    options.tokens = options.tokens or (32768 if text else 12000)
    options.longest = options.longest or (4608 if text else 120)
    program = os.path.abspath(options.program)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="two_nodes_"))
    (folder / "data").mkdir()
    (folder / "model.toml").write_text(MODELS[options.family])
    if text:
        draw_documents(folder / "data", random.Random(1), options.tokens, options.steps + options.warm + 1,
                       options.longest, options.equal, options.lengths, options.cut)
    elif options.family == "stdit":
        draw_clips(folder / "data", random.Random(1))
    else:
        draw_alignments(folder / "data", random.Random(1), options.longest)
    port = 29500

    def config(planner, costs):
        file = folder / f"{planner.replace(':', '-')}.toml"
        kind, _, world = planner.partition("+")
        kind, _, attention = kind.partition(":")
        which = f'batch_planner = "{kind}"' if kind != "static" else (
            f'batch_planner = "groups-of-all"\nattention = "{attention}"\nmlp = "{MLP_OF.get(attention, "gather")}"')
        file.write_text(f"""
[model]
path = "{folder}/model.toml"
[data]
path = "{folder}/data"
[parallel]
ranks = {2 * options.ranks_per_node}
memory_per_rank = "{options.memory}"
{which}
{'weight_domain = "world"' + chr(10) + 'gather_weights = "micro-batch"' if world == "world" else ""}
[train]
steps = {options.steps + options.warm}
tokens_per_step = {options.tokens}
[costs]
file = "{costs}"
[checkpoint]
minutes = 0
[output]
folder = "{folder}/runs"
model = false
trace = false
clips = 0
""")
        return file

    set_up(options.mbit)
    try:
        costs = options.costs or "none"
        if options.profile > 0 and not options.costs:
            launch(program, options.ranks_per_node, port, "profile", "-c", config("borders", "none"), "--seconds",
                   options.profile, "--out", folder / "profile.jsonl")
            subprocess.run([program, "fit", "--profile", folder / "profile.jsonl", "--out", folder / "costs.json"],
                           check=True, stdout=subprocess.DEVNULL)
            costs = folder / "costs.json"
        planners = options.planners.split(",")
        speeds = {planner: [] for planner in planners}
        predicted = {planner: [] for planner in planners}
        for repeat in range(options.repeats):
            for planner in planners[repeat % len(planners):] + planners[:repeat % len(planners)]:
                port += 1
                said = launch(program, options.ranks_per_node, port, "train", "-c", config(planner, costs), "--json")
                if said is None:
                    print(f"{planner:12} no plan fits", flush=True)
                    continue
                summary = json.loads(said)
                metrics = pathlib.Path(summary["folder"]) / "metrics.jsonl"
                steps = [json.loads(line) for line in metrics.read_text().splitlines()][options.warm:]
                total = {key: sum(step[key] for step in steps) for key in ("tokens", "seconds", "predicted_seconds")}
                speeds[planner].append(total["tokens"] / total["seconds"])
                predicted[planner].append(total["tokens"] / total["predicted_seconds"])
                print(f"{planner:12} {speeds[planner][-1]:9.0f} rows/s, predicted {predicted[planner][-1]:9.0f}",
                      flush=True)
        ran = [planner for planner in planners if speeds[planner]]
        first = ran[0]
        over = {other: {"measured": statistics.median(speeds[first]) / statistics.median(speeds[other]),
                        "predicted": statistics.median(predicted[first]) / statistics.median(predicted[other])}
                for other in ran}
        print("; ".join(f"{first} / {other} {gain['measured']:.2f}, predicted {gain['predicted']:.2f}"
                        for other, gain in over.items() if other != first))
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        pathlib.Path(options.out).write_text(json.dumps(
            {"command": " ".join(["benchmarks/two_nodes.py", "PROGRAM", "OUT", *(a for a in sys.argv[2:] if a != options.out)]), "version": version,
             "rows_per_s": speeds, "predicted_rows_per_s": predicted, f"{first}_over": over}, indent=1) + "\n")
    finally:
        take_down()


if __name__ == "__main__":
    main()
