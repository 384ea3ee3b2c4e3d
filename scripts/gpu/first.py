#!/usr/bin/env python3
"""The first contact of this bundle with a GPU, in steps under a time limit each.

    first.sh OUT            steps 0 to 8, 520 s at most
    first.sh OUT --second   what a second quarter of an hour is for, 300 s at most
    first.sh OUT --dry      no GPU is shown to anything: each step runs up to its first call for one

Nobody watches, so what to do when a step fails is decided here.  A step that hangs is killed.  In OUT:

    first.jsonl        a JSON line a step: step, name, ok, exit code, seconds, limit, result
    first.txt          the same as a table, printed at the end, too
    first.log          the commands and all that they wrote
    first_train.jsonl  metrics.jsonl of the training in step 8

and the same four as second...  docs/reference/gpu.md says how to read them.  The exit code is 0 where every
step is ok, else 1.
"""
import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
NO_GPU = "no GPU is seen"  # in the words of every program here
GRACE = 2  # seconds between the wish that a command ends and its end
ANOTHER_RUN = 10  # seconds that are worth one

MODEL = "llama-0.9b.toml"  # 32,000 ids
WIDE_MODEL = "llama-0.9b-128k.toml"  # 128,256 ids
TOKENS = 8192
LEAST_DRIVER = 580  # of CUDA 13: NVIDIA, CUDA Compatibility, table 1
# Kernels of ours, exchanges, a whole step: small enough for a tool that makes them fifty times slower.
SANITIZED = [
    "Ops.Norm", "Ops.LayerNorm", "Ops.RopeAndItsNorm", "Ops.Swiglu", "Ops.ProductsWithHeldWeights",
    "Ops.CrossEntropy", "Ops.AttentionOfPacks", "Ranks.AddUpPassRoundAndGoRound", "Steps.TwoRanks",
    "Training.AdamWIsThePlainOne"]
# What may be at fault where one rank is wrong, in the order in which it is tried.
SWITCHES = [("kernels of ours", {"PARADYSE_CUDA_KERNELS": "0"}), ("flash", {"PARADYSE_FLASH": "0"})]


@dataclasses.dataclass
class Ran:
    """A command that ended, or was ended."""
    code: int  # 124: it ran past its limit
    output: str
    errors: str

    def json(self):
        """The JSON document that it printed; None where it printed none."""
        try:
            return json.loads(self.output)
        except ValueError:
            return None

    def json_lines(self):
        lines = []
        for line in self.output.splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                pass
        return lines

    def last_words(self):
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        return lines[-1][:300] if lines else ""


@dataclasses.dataclass
class Outcome:
    ok: bool
    code: int
    result: dict


class Contact:
    """One run of this script: what is left of its time, and what steps have found out."""

    def __init__(self, options, seconds):
        self.out = pathlib.Path(options.out)
        self.dry = options.dry
        self.name = "second" if options.second else "first"
        self.end = time.monotonic() + seconds
        self.step_end = self.end
        self.more = {}  # environment that steps have decided on
        self.left_out = {}  # steps, and why
        self.starts = True  # the program that the bundle brings
        self.records = []
        self.out.mkdir(parents=True, exist_ok=True)
        self.log = open(self.out / f"{self.name}.log", "w")
        self.lines = open(self.out / f"{self.name}.jsonl", "w")

    def seconds_left(self):
        return max(0.0, min(self.step_end, self.end) - time.monotonic())

    def environment(self, **more):
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1",
                       **self.more, **more}
        if site := os.environ.get("PARADYSE_SITE_PACKAGES"):  # probe.py and gpu_peer.py import its torch
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (site, environment.get("PYTHONPATH"))))
        if self.dry:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        return environment

    def run(self, command, limit=None, **environment):
        """The command, in a session of its own, for what is left of the step (and at most `limit`)."""
        left = self.seconds_left() if limit is None else min(limit, self.seconds_left())
        command = [str(word) for word in command]
        told = " ".join([*(f"{name}={value}" for name, value in environment.items()), *command])
        self.log.write(f"\n$ {told}    # {left:.0f} s\n")
        self.log.flush()
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                    env=self.environment(**environment), cwd=HERE, start_new_session=True)
            except OSError as error:
                self.log.write(f"{error}\n")
                return Ran(127, "", str(error))
            code = self.wait(process, left)
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
                self.log.write(shortened(texts[-1]))
        self.log.write(f"exit code {code}\n")
        self.log.flush()
        return Ran(code, *texts)

    def wait(self, process, seconds):
        """Its exit code.  What runs too long is asked to end, then killed, with all it has started."""
        code = 124
        for sign, patience in ((None, max(0.0, seconds - GRACE - 1)), (signal.SIGTERM, GRACE),
                               (signal.SIGKILL, 1)):
            if sign is not None:
                signal_group(process.pid, sign)
            try:
                ended = process.wait(timeout=patience)
            except subprocess.TimeoutExpired:
                continue
            code = ended if sign is None else code
            break
        signal_group(process.pid, signal.SIGKILL)  # what it left behind
        return code

    def paradyse(self, *arguments, limit=None, **environment):
        return self.run(["bash", HERE / "start.sh", *arguments], limit, **environment)

    def judged(self, ran, result, ok=None):
        """What a command came to.  Without a GPU it is right to end by saying that there is none."""
        if self.dry:
            told = NO_GPU in ran.output + ran.errors
            return Outcome(told, ran.code, {**result, "ended": NO_GPU if told else ran.last_words()})
        ok = ran.code == 0 if ok is None else ok
        if not ok:
            result = {**result, "ended": "killed at its limit" if ran.code == 124 else ran.last_words()}
        return Outcome(ok, ran.code, result)

    def step(self, number, name, limit, body):
        begin = time.monotonic()
        self.step_end = begin + limit
        if name in self.left_out:
            outcome = Outcome(False, -1, {"left out": self.left_out[name]})
        elif self.seconds_left() < 3:
            outcome = Outcome(False, -1, {"left out": "no time is left"})
        else:
            self.log.write(f"\n=== step {number}: {name}, {limit} s\n")
            try:
                outcome = body(self)
            except Exception as error:  # of this script: the steps after it run all the same
                outcome = Outcome(False, -1, {"ended": f"{type(error).__name__}: {error}"})
        record = {"step": number, "name": name, "ok": outcome.ok, "code": outcome.code,
                  "seconds": round(time.monotonic() - begin, 1), "limit": limit,
                  "result": outcome.result}
        self.records.append(record)
        self.lines.write(json.dumps(record) + "\n")
        self.lines.flush()
        return outcome.ok

    def finish(self):
        text = table(self.records)
        failed = [record for record in self.records if not record["ok"]]
        last = {record["step"]: record for record in self.records}  # of step 1: the build, if any
        if not self.dry and not all(last[step]["ok"] for step in (1, 2, 3) if step in last):
            text += ("Step 1, 2 or 3 failed: a second run is for mending that alone "
                     "(first.log has what was written).\n")
        (self.out / f"{self.name}.txt").write_text(text)
        print(text, end="")
        return 1 if failed else 0


def signal_group(group, sign):
    try:
        os.killpg(group, sign)
    except (ProcessLookupError, PermissionError):  # it has ended
        pass


def shortened(text, most=400_000):
    if len(text) <= most:
        return text
    return text[: most // 2] + "\n[...]\n" + text[-most // 2:]


def table(records):
    rows = [["step", "", "ok", "code", "s", "of", "result"]]
    for record in records:
        rows.append([str(record["step"]), record["name"], "ok" if record["ok"] else "FAILED",
                     str(record["code"]), f"{record['seconds']:.1f}", str(record["limit"]),
                     facts(record["result"])])
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    return "".join("  ".join([*(row[i].ljust(widths[i]) for i in range(6)), row[6]]) + "\n"
                   for row in rows)


def facts(result):
    """What of a result stands in the table: numbers and texts, no lists."""
    words = []
    for key in sorted(result, key=lambda key: key != "ended"):  # why it failed comes first
        value = result[key]
        if isinstance(value, float):
            value = f"{value:.4g}"
        if isinstance(value, (int, str)) and value != "":
            words.append(f"{key} {value}")
    return ", ".join(words)[:160]


# --- the steps -----------------------------------------------------------------------------------

def tool_at(name):
    """A program in PATH or of the CUDA toolkit."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


def machine(contact):
    """What is there: driver, torch, tools."""
    queried = contact.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used,clocks.max.sm",
         "--format=csv,noheader"], limit=10)
    card = queried.output.strip()
    imported = contact.run(
        [sys.executable, "-c", "import torch; print(torch.__version__, torch.version.cuda)"])
    site = os.environ.get("PARADYSE_SITE_PACKAGES", "")
    found = importlib.util.find_spec("torch")
    if not site and found and found.origin:
        site = str(pathlib.Path(found.origin).parent.parent)
    result = {
        "card": card, "torch": imported.output.strip(), "site_packages": site, "cores": os.cpu_count(),
        "python": platform.python_version(), "libc": " ".join(platform.libc_ver()),
        "kernel": platform.release(), "bundle": (HERE / "VERSION").read_text().strip(),
        "tools": {name: tool_at(name)
                  for name in ("nvcc", "cmake", "ninja", "g++", "compute-sanitizer")}}
    wrong = [] if contact.dry else wrong_driver(queried)
    if imported.code != 0:
        why = "it ran past its limit" if imported.code == 124 else imported.last_words()
        wrong.append(f"import torch: {why}")
    if wrong:
        result["ended"] = "; ".join(wrong)
    return Outcome(not wrong, queried.code or imported.code, result)


def wrong_driver(queried):
    """What is wrong with the GPU's driver, by what nvidia-smi said."""
    lines = queried.output.strip().splitlines()
    if queried.code != 0 or not lines:
        return [f"nvidia-smi: {queried.last_words() or 'no GPU'}"]
    version = [word.strip() for word in lines[0].split(",")][1:2]
    major = re.match(r"\d+", version[0]) if version else None
    if major and int(major[0]) < LEAST_DRIVER:
        return [f"the driver {version[0]} is older than R{LEAST_DRIVER}, which CUDA 13 needs: install "
                "a newer one, or NVIDIA's cuda-compat-13-0"]
    return []


def doctor(contact):
    """Whether the program starts and sees the GPU.  One that does not start is built here."""
    ran = contact.paradyse("doctor", "--device", "cuda", "--json")
    if starts(ran):
        return doctor_found(contact, ran)
    contact.starts = False
    return Outcome(False, ran.code, {"ended": ran.last_words(), "next": "it is built here"})


def starts(ran):
    """An answer of the program: done, something is broken, or wrong usage, where no GPU is seen."""
    return ran.code in (0, 1, 2) and (ran.json() is not None or NO_GPU in ran.errors)


def doctor_found(contact, ran):
    said = ran.json() or {}
    broken = [one["name"] for one in said.get("findings", []) if not one["ok"]]
    values = {one["name"]: one["value"] for one in said.get("findings", [])}
    result = {"version": said.get("version", ""), "cuda": values.get("cuda"), "broken": broken}
    return contact.judged(ran, result, ran.code in (0, 1) and not broken)


def build(contact):
    """The programs from the sources of the bundle, beside the installed torch."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="paradyse-build-"))
    ran = contact.run(["bash", HERE / "build_here.sh", folder])
    if ran.code != 0:
        return Outcome(False, ran.code, {"ended": ran.last_words()})
    contact.more["PARADYSE_PROGRAMS"] = str(folder / "build")
    ran = contact.paradyse("doctor", "--device", "cuda", "--json")
    # Its time is that of others.
    contact.left_out["peer"] = contact.left_out["memcheck"] = "the programs had to be built"
    return doctor_found(contact, ran)


def probe(contact):
    """Torch alone: ceilings, and the calls that ours stand on."""
    ran = contact.run([sys.executable, HERE / "probe.py", "--seconds", int(contact.seconds_left()) - 5])
    lines = ran.json_lines()
    wrong = [line["what"] for line in lines if "error" in line]
    return contact.judged(
        ran, {"measured": len(lines), "wrong": ", ".join(wrong), "lines": lines},
        ran.code == 0 and not wrong and len(lines) > 0)


def tests(contact):
    """The tests of the device.  What follows one that fails may be its doing, as after an error of
    CUDA all is: those run again without it."""
    passed, failed, late = [], [], []
    told = None  # the first run that was not well; the last one, if all were
    total = 0
    while True:
        known = passed + failed + late
        ran = contact.paradyse("exec", "device_tests", "--device", "cuda",
                               "--gtest_filter=-" + ":".join(known), limit=0.7 * contact.seconds_left())
        told = told if told and told.code != 0 else ran
        total = max(total, len(known) + tests_named(ran.output))
        ok, wrong, unfinished = verdicts(ran)
        passed += ok
        failed += wrong[:1]
        late += [] if wrong else unfinished
        if not wrong and not unfinished or contact.seconds_left() < ANOTHER_RUN:
            break
    return contact.judged(
        told, {"passed": len(passed), "failed": ", ".join(failed), "not_finished": ", ".join(late),
               "without_verdict": total - len(passed) - len(failed) - len(late)},
        told.code == 0 and not failed and not late and len(passed) > 0)


def tests_named(output):
    """How many tests gtest said that it would run."""
    said = re.search(r"^\[=+\] Running (\d+) tests? from", output, re.MULTILINE)
    return int(said[1]) if said else 0


def verdicts(ran):
    """Tests of gtest, in its order: passed; failed, which one that ended with the program has; and one that the
    limit ended, which says nothing of it."""
    found = {}
    for line in ran.output.splitlines():
        for mark, verdict in (("[ RUN      ] ", None), ("[       OK ] ", True), ("[  FAILED  ] ", False)):
            if line.startswith(mark) and (verdict is None or line[len(mark):].split(" ")[0] in found):
                found[line[len(mark):].split(" ")[0]] = verdict
    unfinished = [test for test, verdict in found.items() if verdict is None]
    killed = ran.code == 124
    return ([test for test, verdict in found.items() if verdict],
            [test for test, verdict in found.items() if verdict is False or verdict is None and not killed],
            unfinished if killed else [])


def check(contact):
    """Every strategy against plain autograd; where one rank is wrong, whose fault it is."""
    def checked(ranks, **environment):
        return contact.paradyse(
            "check", "--quick", "--device", "cuda", "--ranks", ranks, "--dtype", "float32,bfloat16",
            "--json", limit=0.6 * contact.seconds_left(), **environment)

    ran = checked("1,2,4")
    rows = (ran.json() or {}).get("rows", [])
    wrong = [row for row in rows if row_is_wrong(row)]
    differ = len((ran.json() or {}).get("counts_differ", []))
    result = {"cases": len(rows), "wrong": len(wrong), "counts_differ": differ,
              "worst": worst_of(rows)}
    outcome = contact.judged(ran, result)
    if contact.dry or outcome.ok or not (any(row["ranks"] == 1 for row in wrong) or not rows):
        return outcome
    for name, off in SWITCHES:
        if contact.seconds_left() > 3 and checked("1", **off).code == 0:
            contact.more.update(off)  # what is measured from here on is right at least
            outcome.result["culprit"] = name
            return outcome
    outcome.result["culprit"] = "not " + " and not ".join(name for name, _ in SWITCHES)
    return outcome


def row_is_wrong(row):
    """Infinite errors are null in JSON."""
    def beyond(error, tolerance):
        return row[error] is None or row[error] > row[tolerance]
    return beyond("error", "tolerance") or beyond("loss_error", "loss_tolerance")


def worst_of(rows):
    """The row that is furthest beyond its tolerance, in words."""
    rows = [row for row in rows if row["error"] is not None]
    if not rows:
        return ""
    row = max(rows, key=lambda row: row["error"] / row["tolerance"])
    return f"{row['error']:.1e} of {row['tolerance']:.1e} in {row['place']}"


def bench_command(model=MODEL, ranks=1, attention="MegatronTS", mlp="tensor-parallel", repeats=6):
    return ["bench", "step", "--device", "cuda", "--dtype", "bfloat16", "--model", HERE / model,
            "--ranks", ranks, "--lengths", TOKENS, "--attention", attention, "--mlp", mlp,
            "--max-grad-norm", 1, "--repeats", repeats, "--breakdown", "--json"]


def bench_result(ran):
    """The row of a `bench step` of one length, and what was said of the card."""
    said = ran.json() or {}
    rows = said.pop("rows", None)
    return {**rows[0], "run": said} if rows else {}


def measured(ran, row):
    return ran.code == 0 and bool(row.get("tokens_per_s"))


def bench(contact):
    """A training step of the model, weights held."""
    ran = contact.paradyse(*bench_command())
    row = bench_result(ran)
    return contact.judged(ran, {"tokens_per_s": row.get("tokens_per_s"), "step_s": row.get("step_s"),
                                **row, "switched_off": list(contact.more)}, measured(ran, row))


def peer(contact):
    """PyTorch's own step beside ours, in turns: eager, compile, ours, eager, compile."""
    ours = ["bash", HERE / "start.sh", *bench_command(repeats=4)]
    ran = contact.run([sys.executable, HERE / "gpu_peer.py", "--tokens", TOKENS, "--turns", 2,
                       "--seconds", int(contact.seconds_left()) - 5, "--between", *ours])
    return contact.judged(ran, *peer_result(ran))


def peer_result(ran):
    lines = ran.json_lines()
    result, told = {}, {}
    for line in lines:
        if line["what"] == "ours":
            row = ((line.get("printed") or {}).get("rows") or [{}])[0]
            speed = row.get("tokens_per_s") if line["code"] == 0 else None
            if not speed:
                told["ours_ended"] = line.get("errors", "").strip() or f"exit code {line['code']}"
            line = {**line, "tokens_per_s": speed}
        if line.get("tokens_per_s"):
            result.setdefault(line["what"], []).append(round(line["tokens_per_s"]))
    for what, speeds in result.items():
        told[f"{what}_tokens_per_s"] = " and ".join(map(str, speeds))
    ok = ran.code == 0 and {"eager", "compile", "ours"} <= set(result)
    return {**told, "lines": lines}, ok


# An allocation for each tensor: within torch's large blocks no tool sees what passes the end of one.  Symbols
# that torch looks for in vain are no errors of ours.
MEMCHECK = {"options": ["--report-api-errors", "no"],
            "environment": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}}


def sanitizer(tool, names, options=(), environment=None):
    def sanitized(contact):
        """Some of the tests under compute-sanitizer, which finds what no result shows."""
        program = tool_at("compute-sanitizer")
        if program is None:
            return Outcome(False, 127, {"ended": "compute-sanitizer is not there"})
        ran = contact.paradyse(
            "exec", program, "--tool", tool, *options, "--error-exitcode", 9, "device_tests",
            "--device", "cuda", "--sizes", "small", "--gtest_filter=" + ":".join(names),
            **(environment or {}))
        said = [line for line in ran.output.splitlines() if "SUMMARY" in line]
        passed, failed, late = verdicts(ran)
        return contact.judged(
            ran, {"passed": len(passed), "failed": ", ".join(failed), "not_finished": ", ".join(late),
                  "without_verdict": len(names) - len(passed) - len(failed) - len(late),
                  "said": said[-1] if said else ""})
    return sanitized


def train(contact):
    """15 steps on documents of real lengths, new ones each step."""
    with tempfile.TemporaryDirectory(prefix="paradyse-train-") as runs:
        ran = contact.paradyse(
            "train", "-c", HERE / "train.toml", "--set", f"output.folder={runs}",
            "--set", "output.name=run")
        metrics = pathlib.Path(runs) / "run" / "metrics.jsonl"
        steps = []
        if metrics.exists():
            shutil.copy(metrics, contact.out / f"{contact.name}_train.jsonl")
            steps = [json.loads(line) for line in metrics.read_text().splitlines()]
        contact.packs = packs_of(pathlib.Path(runs) / "run" / "plans")
    seconds = sorted(step["seconds"] for step in steps[5:])
    speeds = sorted(step["tokens"] / step["seconds"] for step in steps[5:])
    result = {"steps": len(steps)}
    if speeds:
        result.update(tokens_per_s=speeds[len(speeds) // 2], step_s=seconds[len(seconds) // 2],
                      first_loss=steps[0]["loss"], last_loss=steps[-1]["loss"])
    return contact.judged(ran, result, ran.code == 0 and len(steps) == 15)


def packs_of(plans):
    """The lengths of each step's documents."""
    return [json.loads(file.read_text())["lengths"] for file in sorted(plans.glob("step-*.json"))]


def packed_peer(contact):
    """torch.compile with varlen_attn on the packs of step 8, new ones each step."""
    if not getattr(contact, "packs", None) and not contact.dry:
        return Outcome(False, -1, {"ended": "step 8 left no plans"})
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(getattr(contact, "packs", None) or [[TOKENS]], file)
        file.flush()
        ran = contact.run([sys.executable, HERE / "gpu_peer.py", "--packs", file.name, "--modes",
                           "compile", "--seconds", int(contact.seconds_left()) - 3])
    result, _ = peer_result(ran)
    return contact.judged(ran, result, ran.code == 0 and "compile_tokens_per_s" in result)


def several_ranks(contact):
    """2 and 4 ranks on the one GPU: their streams shall leave none of it idle."""
    result, told = {}, None
    runs = [(ranks, *names) for ranks in (2, 4)
            for names in (("UlyssesZ", "zero3"), ("MegatronTS", "tensor-parallel"))]
    for i, (ranks, attention, mlp) in enumerate(runs):
        ran = contact.paradyse(*bench_command(ranks=ranks, attention=attention, mlp=mlp, repeats=4),
                               limit=contact.seconds_left() / (len(runs) - i))
        row = bench_result(ran)
        result[f"{attention}_{ranks}_step_s"] = row.get("step_s") or (
            "killed at its limit" if ran.code == 124 else ran.last_words())
        if told is None or measured(*told):
            told = ran, row
    return contact.judged(told[0], result, measured(*told))


def vocabulary(contact):
    """The model with 128,256 ids."""
    ran = contact.paradyse(*bench_command(model=WIDE_MODEL, repeats=4))
    row = bench_result(ran)
    return contact.judged(
        ran, {"tokens_per_s": row.get("tokens_per_s"), "step_s": row.get("step_s"), **row},
        measured(ran, row))


FIRST = [
    (0, "machine", 30, machine), (1, "doctor", 20, doctor), (1, "build", 180, build),
    (2, "probe", 30, probe), (3, "device_tests", 100, tests), (4, "check", 60, check),
    (5, "bench", 45, bench), (6, "peer", 110, peer),
    (7, "memcheck", 95, sanitizer("memcheck", SANITIZED, **MEMCHECK)), (8, "train", 30, train)]
FIRST_SECONDS = 520
SECOND = [
    (4, "check", 40, check), (5, "bench", 25, bench), (8, "train", 25, train),
    (9, "varlen", 55, packed_peer), (10, "ranks", 75, several_ranks),
    (11, "vocabulary", 20, vocabulary),
    (12, "racecheck", 60, sanitizer("racecheck", SANITIZED[:4]))]
SECOND_SECONDS = 300


def run_steps(contact, steps):
    for number, name, limit, body in steps:
        if name != "build" or not contact.starts:
            contact.step(number, name, limit, body)


def main():
    parser = argparse.ArgumentParser(usage="first.sh OUT [--second] [--dry]")
    parser.add_argument("out")
    parser.add_argument("--second", action="store_true")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    contact = Contact(options, SECOND_SECONDS if options.second else FIRST_SECONDS)
    run_steps(contact, SECOND if options.second else FIRST)
    return contact.finish()


if __name__ == "__main__":
    sys.exit(main())
