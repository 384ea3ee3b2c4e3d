#!/usr/bin/env python3
"""Steps of ten plans on this machine, measured and as `simulate --cluster measured` predicts them.

    benchmarks/simulated_against_measured.py --out FILE.json
        [--program build/release/paradyse] [--model configs/models/bench.toml] [--ranks 4]
        [--backends local,gloo,nodes] [--mbit 200] [--plans 10] [--steps 7]

`nodes` are two of half the ranks each, one core each, joined by a link of --mbit (two_nodes.py; as root).

The plans are unlike in strategy, sizes of groups, recomputation and lengths; some have unlike groups
side by side and idle ranks.  For each backend the machine is measured once, each plan is simulated on
what was measured, and trained by for some steps (`train --plan`) over the same documents.  The JSON
holds, for each plan and backend, the median step and its spread, the seconds of the event simulation
and of its additive twin, and what of a measured step is not a micro-batch's (update, agreement).
"""
import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import tempfile
import tomllib

import two_nodes


def part(strategy, recompute="none", mlp="gather"):
    return [{"part": "attention", "strategy": strategy, "recompute": recompute},
            {"part": "mlp", "strategy": mlp, "recompute": "full" if recompute == "attention-output" else recompute}]


def plans(ranks):
    """(name, lengths, programs, micro-batches), groups as (ranks, documents, program)."""
    everyone, half = range(ranks), range(ranks // 2)
    rest = range(ranks // 2, ranks)
    alone = {"alone": part("DataZ")}
    each = [([r], [r], "alone") for r in everyone]
    idle = [([r], [], "alone") for r in rest]
    one = lambda strategy, **how: {"all": part(strategy, **how)}
    together = [[(everyone, [0], "all")]]
    return [
        ("one document, UlyssesZ", [4096], one("UlyssesZ"), together),
        ("one document, MegatronCZ", [4096], one("MegatronCZ"), together),
        ("one document, MegatronTS", [2048], one("MegatronTS", mlp="hold"), together),
        ("one document, METP", [2048], one("METP", mlp="pass"), together),
        ("one document, AllGatherKV, all made again", [3072], one("AllGatherKV", recompute="full"), together),
        ("a document a rank", [1024] * ranks, alone, [each]),
        ("unlike documents, a rank each", [256 * (1 + r) for r in everyone], alone, [each]),
        ("two groups of half the ranks", [2048, 2048], one("UlyssesZ"),
         [[(half, [0], "all"), (rest, [1], "all")]]),
        ("half the ranks on one document, the others alone", [2048] + [700] * len(rest),
         {**one("UlyssesZ"), **alone},
         [[(half, [0], "all"), *(([r], [1 + i], "alone") for i, r in enumerate(rest))]]),
        ("two micro-batches: all on one, then half idle", [4096, 1024],
         {**one("UlyssesZ", recompute="attention-output"), "half": part("USP"), **alone},
         [[(everyone, [0], "all")], [(half, [1], "half"), *idle]]),
    ]


def plan_file(folder, number, plan, layers, ranks):
    name, lengths, programs, micro_batches = plan
    path = folder / f"plan-{number}.json"
    path.write_text(json.dumps({
        "format": "paradyse-plan", "version": 1,
        "model": {"name": name, "sha256": "", "layers": layers},
        "cluster": {"name": "measured", "sha256": "", "ranks": ranks},
        "weight_domain": ranks,
        "lengths": lengths,
        "programs": {key: [{"layers": layers, "parts": parts}] for key, parts in programs.items()},
        "micro_batches": [
            {"groups": [{"ranks": list(g), "documents": d, "program": p} for g, d, p in groups]}
            for groups in micro_batches]}))
    return path


def run(command, **how):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=900, **how)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def launched(options, backend, *command):
    """What the program prints, on ranks of this backend."""
    if backend == "local":
        return run([options.program, *command])
    if backend == "gloo":
        return run([options.program, "launch", "-n", options.ranks, "--", *command])
    options.port += 1
    said = two_nodes.launch(str(options.program.resolve()), options.ranks // 2, options.port, *command)
    if said is None:
        raise SystemExit(f"{' '.join(map(str, command))}: there is no such plan")
    return said


def measured_steps(options, backend, folder, number, lengths, plan, vocab):
    """Step seconds and the seconds of their micro-batches, without the first two steps."""
    data = folder / f"data-{number}.jsonl"
    # Every step draws all of them: their tokens are a step's.
    data.write_text("".join(
        json.dumps({"tokens": [(7 * i + d) % vocab for i in range(n)]}) + "\n" for d, n in enumerate(lengths)))
    config = folder / f"run-{number}.toml"
    config.write_text(f"""
[model]
path = "{options.model.resolve()}"
[data]
path = "{data}"
[parallel]
ranks = {options.ranks}
[train]
steps = {options.steps + 2}
tokens_per_step = {sum(lengths)}
dtype = "float32"
[costs]
file = "none"
[checkpoint]
minutes = 0
[output]
folder = "{folder}/runs-{backend}-{number}"
""")
    out = launched(options, backend, "train", "-c", config, "--plan", plan, "--json")
    steps = [json.loads(line) for line in
             (pathlib.Path(json.loads(out)["folder"]) / "metrics.jsonl").read_text().splitlines()]
    steps = [step for step in steps if "step" in step][2:]
    return [s["seconds"] for s in steps], [sum(s["micro_batch_seconds"]) for s in steps]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("build/release/paradyse"))
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path("configs/models/bench.toml"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backends", default="local,gloo")
    parser.add_argument("--mbit", type=float, default=200, help="of the link between nodes; 0: as fast as it is")
    parser.add_argument("--plans", type=int, default=10, help="the first so many")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.port = 29600
    shape = tomllib.loads(options.model.read_text())
    layers, vocab = shape["num_hidden_layers"], shape["vocab_size"]
    rows = []
    clusters = {}
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paradyse_simulated_")))
        if "nodes" in options.backends:
            stack.callback(two_nodes.take_down)
        for backend in options.backends.split(","):
            if backend == "nodes":
                two_nodes.set_up(options.mbit)
            cluster = folder / f"{backend}.toml"
            ranks = ["--ranks", options.ranks] if backend == "local" else []
            launched(options, backend, "simulate", "--model", options.model, "--cluster", "measured",
                     *ranks, "--write-cluster", cluster)
            clusters[backend] = tomllib.loads(cluster.read_text())
            for number, plan in enumerate(plans(options.ranks)[:options.plans]):
                file = plan_file(folder, number, plan, layers, options.ranks)
                predicted = json.loads(run(
                    [options.program, "simulate", "--model", options.model, "--cluster", cluster, "--plan", file,
                     "--dtype", "float32", "--additive", "--json"]))
                steps, micro = measured_steps(options, backend, folder, number, plan[1], file, vocab)
                median = statistics.median(steps)
                rows.append({
                    "plan": plan[0], "backend": backend, "lengths": plan[1],
                    "measured_seconds": median, "least": min(steps), "most": max(steps),
                    "micro_batch_seconds": statistics.median(micro),
                    "simulated_seconds": predicted["seconds"],
                    "additive_seconds": predicted["additive"]["seconds"],
                    "simulated_over_measured": predicted["seconds"] / median,
                    "additive_over_measured": predicted["additive"]["seconds"] / median})
                print(f"{backend:6} {plan[0]:50} measured {median:.4f} s"
                      f" ({min(steps):.4f} - {max(steps):.4f}), simulated {predicted['seconds']:.4f},"
                      f" additive {predicted['additive']['seconds']:.4f}", flush=True)
    errors = {backend: {
        key: {"median": statistics.median(found), "worst": max(found)}
        for key in ("simulated", "additive")
        for found in [[abs(row[f"{key}_over_measured"] - 1) for row in rows if row["backend"] == backend]]}
        for backend in clusters}
    options.out.write_text(json.dumps(
        {"model": str(options.model), "ranks": options.ranks, "mbit": options.mbit, "steps": options.steps, "clusters": clusters,
         "errors": errors, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
