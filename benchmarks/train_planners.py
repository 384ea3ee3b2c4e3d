#!/usr/bin/env python3
"""Training by planners of batches beside what does not choose: tokens/s over one corpus, in turn.

    benchmarks/train_planners.py --lengths wikipedia.txt.gz --out FILE.json
        [--program build/release/paradyse] [--model configs/models/demo.toml] [--context 16384]
        [--list-context 192000] [--ranks 2,4] [--backends gloo,local] [--memory 80MiB] [--steps 12]
        [--warm-up 2] [--tokens-per-step 32768] [--repeats 5] [--profile-seconds 170] [--seed 1]

The corpus has the lengths of a list (one a line, gzip or not): of those up to --list-context tokens as
many as the steps need are drawn and scaled so that --list-context becomes --context; its text is that
of real files of this machine (scripts/demo_corpus.sh), cut to these lengths, a token a byte.

Runs: `parallel.batch_planner` groups (in results by its old name, flexsp) and borders; one size of group
for all documents, 1, 2, ... up to all ranks, whose strategies and documents are planned as well as flexsp's (groups-of-N); and DataZ alone.
Beside them the ideal, what the machine does where nobody sends or waits: as many runs of one rank
without a limit of memory as there are ranks or cores, at once, each on the same corpus; tokens/s added up.
All train the same documents in the same steps, by costs measured once for each backend and number of
ranks (--profile-seconds 0: by the closed form).  Every repeat runs each once, in an order that turns.
The JSON has tokens/s of each repeat without the first steps, medians and spreads, what was predicted
for the same steps, and the ratios of flexsp to the others, repeat by repeat.  A run whose memory does
not take the corpus says why.
"""
import argparse
import gzip
import json
import os
import pathlib
import random
import shlex
import statistics
import subprocess
import sys
import tempfile

LEAST_TOKENS = 8  # shorter documents are as long: a document needs a next token


def read_lengths(path):
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="ascii") as file:
        return [int(line) for line in file if line.strip()]


def drawn_lengths(options):
    """Lengths for all steps and some more: train draws a step's documents until it is full."""
    known = [n for n in read_lengths(options.lengths) if n <= options.list_context]
    if not known:
        raise SystemExit(f"{options.lengths}: no length up to --list-context {options.list_context}")
    rng = random.Random(options.seed)
    wanted = (options.steps + 1) * (options.tokens_per_step + options.context)
    lengths = []
    while sum(lengths) < wanted:
        length = round(rng.choice(known) * options.context / options.list_context)
        lengths.append(min(options.context, max(LEAST_TOKENS, length)))
    return lengths


def write_corpus(path, lengths, texts, seed):
    """Each document is cut from the files one after the other, in an order of the seed."""
    files = sorted(file for file in texts.rglob("*") if file.is_file())
    if not files:
        raise SystemExit(f"{texts} has no files: run scripts/demo_corpus.sh, or give --texts")
    random.Random(seed).shuffle(files)
    text = bytearray()
    order = iter(files * (1 + sum(lengths) // max(1, sum(file.stat().st_size for file in files)) + 1))
    with path.open("w", encoding="ascii") as out:
        for length in lengths:
            while len(text) < length:
                text += next(order).read_bytes()
            out.write(json.dumps({"tokens": list(text[:length])}) + "\n")
            del text[:length]


def counted(folder, warm_up):
    """The steps of a run that count."""
    lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines][warm_up:]


def run(command, may_refuse=False):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=3600)
    if done.returncode == 0:
        return done.stdout, None
    why = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
    if may_refuse and any("no plan" in line for line in done.stderr.splitlines()):
        return None, next(line for line in done.stderr.splitlines() if "no plan" in line)
    raise SystemExit(f"{shlex.join(map(str, command))}\n{done.stderr}\n{''.join(why)}")


class Place:
    """Ranks of one backend, with the costs that were measured of them."""

    def __init__(self, options, backend, ranks, folder):
        self.options, self.backend, self.ranks, self.folder = options, backend, ranks, folder
        self.program = [options.program] if backend == "local" else [
            options.program, "launch", "-n", ranks, "--"]
        self.costs = "none"
        if options.profile_seconds > 0:
            name = f"{backend}-{ranks}"
            profile, costs = folder / f"{name}.jsonl", folder / f"{name}.json"
            run([*self.program, "profile", "-c", self.config("profile"), "--seconds",
                 options.profile_seconds, "--out", profile])
            run([options.program, "fit", "--profile", profile, "--out", costs])
            self.costs = costs

    def config(self, name, settings="", ranks=None, memory=None):
        path = self.folder / f"{self.backend}-{self.ranks}-{name}.toml"
        path.write_text(f"""
[model]
path = "{self.options.model.resolve()}"
[data]
path = "{self.folder}/corpus.jsonl"
max_tokens = {self.options.context}
[parallel]
ranks = {ranks or self.ranks}
memory_per_rank = "{memory or self.options.memory}"
{settings}
[train]
steps = {self.options.steps + self.options.warm_up}
tokens_per_step = {self.options.tokens_per_step}
[costs]
file = "{getattr(self, 'costs', 'none')}"
[checkpoint]
minutes = 0
[output]
folder = "{self.folder}/runs-{self.backend}-{self.ranks}"
model = false
trace = false
""")
        return path

    def train(self, name, settings):
        """Tokens/s measured and predicted, or why it does not run."""
        out, why = run([*self.program, "train", "-c", self.config(name, settings), "--json"],
                       may_refuse=True)
        if why:
            return {"refused": why}
        summary = json.loads(out)
        steps = counted(summary["folder"], self.options.warm_up)
        total = {key: sum(step[key] for step in steps)
                 for key in ("tokens", "seconds", "predicted_seconds")}
        return {"tokens_per_s": total["tokens"] / total["seconds"],
                "predicted_tokens_per_s": total["tokens"] / total["predicted_seconds"],
                "tokens": total["tokens"], "idle_share": summary["idle_share"],
                "late_plans": summary["late_plans"],
                "micro_batches": sum(len(step["micro_batch_seconds"]) for step in steps),
                "best_static": summary["best_static"]}

    def ideal(self):
        """Tokens/s of runs of one rank at once, added up."""
        at_once = min(self.ranks, os.cpu_count())
        runs = []
        for number in range(at_once):
            config = self.config(f"ideal-{number}", ranks=1, memory="0")
            runs.append(subprocess.Popen(
                [self.options.program, "train", "-c", config, "--json", "--set", "costs.file=none",
                 "--set", f"output.name=ideal-{number}-{os.urandom(4).hex()}"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        total = 0
        for one in runs:
            out = one.communicate(timeout=3600)[0]
            if one.returncode != 0:
                raise SystemExit("a run of one rank failed")
            steps = counted(json.loads(out)["folder"], self.options.warm_up)
            total += sum(step["tokens"] for step in steps) / sum(step["seconds"] for step in steps)
        return total


def variants(ranks):
    """(name, settings of [parallel])"""
    sizes = [1 << i for i in range(ranks.bit_length()) if 1 << i <= ranks]
    return [("flexsp", 'batch_planner = "groups"'), ("borders", 'batch_planner = "borders"'),
            *((f"groups of {size}", f'batch_planner = "groups-of-{size}"') for size in sizes),
            ("DataZ alone", 'batch_planner = "borders"\nattention = "DataZ"')]


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def measured(place, repeats):
    """One row a variant."""
    which = variants(place.ranks)
    runs = {name: [] for name, _ in which}
    ideal = []
    for repeat in range(repeats):
        ideal.append(place.ideal())
        turn = repeat % len(which)
        for name, settings in which[turn:] + which[:turn]:
            if not (runs[name] and "refused" in runs[name][0]):
                runs[name].append(place.train(f"{name.replace(' ', '-')}-{repeat}", settings))
    rows = [{"backend": place.backend, "ranks": place.ranks, "run": "ideal", "tokens_per_s": spread(ideal)}]
    for name, _ in which:
        row = {"backend": place.backend, "ranks": place.ranks, "run": name}
        if "refused" in runs[name][0]:
            rows.append({**row, "refused": runs[name][0]["refused"]})
            continue
        if len({one["tokens"] for one in runs[name]}) > 1:
            raise SystemExit(f"{name}: repeats trained unlike numbers of tokens: please report it")
        rows.append({**row,
                     "tokens_per_s": spread([one["tokens_per_s"] for one in runs[name]]),
                     "predicted_tokens_per_s": spread([one["predicted_tokens_per_s"] for one in runs[name]]),
                     "idle_share": statistics.median(one["idle_share"] for one in runs[name]),
                     "repeats": runs[name]})
    return rows


def ratios(rows):
    """flexsp over each other, and over the best size: measured by repeat, and as predicted."""
    ran = {row["run"]: row for row in rows if "refused" not in row}
    if "flexsp" not in ran:
        return {}
    others = {name: row for name, row in ran.items() if name not in ("flexsp", "ideal")}
    sizes = [name for name in others if name.startswith("groups of ")]
    found = {}
    for name, row in others.items():
        pairs = zip(ran["flexsp"]["repeats"], row["repeats"], strict=True)
        found[name] = {
            **spread([ours["tokens_per_s"] / theirs["tokens_per_s"] for ours, theirs in pairs]),
            "predicted": ran["flexsp"]["predicted_tokens_per_s"]["median"]
            / row["predicted_tokens_per_s"]["median"]}
    found["ideal"] = {"median": ran["flexsp"]["tokens_per_s"]["median"] / ran["ideal"]["tokens_per_s"]["median"]}
    if sizes:
        best = max(sizes, key=lambda name: others[name]["tokens_per_s"]["median"])
        found["best size"] = {"run": best, **found[best]}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/release/paradyse")
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path("configs/models/demo.toml"))
    parser.add_argument("--lengths", type=pathlib.Path, required=True, help="one a line, gzip or not")
    parser.add_argument("--list-context", type=int, default=192000, help="longer ones are left out")
    parser.add_argument("--context", type=int, default=16384, help="tokens that it becomes")
    parser.add_argument("--texts", type=pathlib.Path, help="folder of files; default: .demo/corpus, made if missing")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--backends", default="gloo,local")
    parser.add_argument("--memory", default="80MiB", help="of a rank")
    parser.add_argument("--steps", type=int, default=12, help="that are counted")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before them")
    parser.add_argument("--tokens-per-step", type=int, default=32768)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile-seconds", type=float, default=170, help="0: by the closed form")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    if options.texts is None:
        root = pathlib.Path(__file__).resolve().parent.parent
        subprocess.run([root / "scripts" / "demo_corpus.sh"], check=True)
        options.texts = root / ".demo" / "corpus"
    lengths = drawn_lengths(options)
    rows, compared = [], []
    with tempfile.TemporaryDirectory(prefix="paradyse_planners_") as name:
        folder = pathlib.Path(name)
        write_corpus(folder / "corpus.jsonl", lengths, options.texts, options.seed)
        for backend in options.backends.split(","):
            for ranks in map(int, options.ranks.split(",")):
                found = measured(Place(options, backend, ranks, folder), options.repeats)
                rows += found
                compared.append({"backend": backend, "ranks": ranks, "flexsp over": ratios(found)})
                for row in found:
                    speed, predicted = row.get("tokens_per_s"), row.get("predicted_tokens_per_s")
                    print(f"{backend:6} {ranks} ranks  {row['run']:14}", row["refused"] if not speed else
                          f"{speed['median']:8.0f} tokens/s ({speed['least']:.0f} - {speed['most']:.0f})"
                          + (f", predicted {predicted['median']:.0f}" if predicted else ""), flush=True)
    ordered = sorted(lengths)
    options.out.write_text(json.dumps({
        "command": shlex.join(["benchmarks/train_planners.py", *sys.argv[1:]]),
        "cores": os.cpu_count(), "model": str(options.model), "memory_per_rank": options.memory,
        "documents": {"count": len(lengths), "median": statistics.median(lengths),
                      "p90": ordered[len(ordered) * 9 // 10], "longest": ordered[-1]},
        "ratios": compared, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
