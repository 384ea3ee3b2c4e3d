#!/usr/bin/env python3
"""How long a run takes to its first step, and how much memory its processes have, by the size of its corpus.

    benchmarks/mapped_corpus.py [--gigabytes 10] [--jsonl] [--ranks 2] [--folder FOLDER] [--json FILE]

Writes two pairs of Megatron-core's .bin and .idx, of 10 MB and of so many GB, with documents of 100 to 8000 tokens
(uint16), or as much JSONL of such documents, and runs `paradyse train` on each in turn, three times, the pages of
the large one dropped from the cache before its first.  The ids repeat a block of noise: only their sizes matter here.  Memory is read from
/proc/PID/smaps_rollup of every process a few times a second until the run ends: anonymous memory is the process's
own, file-backed memory is shared with the others (programs, libraries, mapped data).
"""
import argparse
import array
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import tempfile
import time

PARADYSE = os.environ.get("PARADYSE", "build/release/paradyse")
MODEL = """
architectures = ["LlamaForCausalLM"]
model_type = "llama"
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 4
intermediate_size = 128
vocab_size = 32000
rms_norm_eps = 1e-5
"""


def write_pair(prefix, size):
    """Of `size` bytes; gives the number of documents."""
    draw = random.Random(1)
    block = array.array("H", [draw.randrange(32000) for _ in range(1 << 20)]).tobytes()
    with open(f"{prefix}.bin", "wb") as file:
        for begin in range(0, size, len(block)):
            file.write(block[:size - begin])
    lengths, left = array.array("i"), size // 2
    while left > 0:
        lengths.append(min(left, draw.randrange(100, 8000)))
        left -= lengths[-1]
    begins, at = array.array("q"), 0
    for length in lengths:
        begins.append(at)
        at += 2 * length
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))
        file.write(lengths.tobytes() + begins.tobytes() + array.array("q", range(len(lengths) + 1)).tobytes())
    return len(lengths)


def write_jsonl(path, size):
    """As write_pair(), of at least so many bytes."""
    draw = random.Random(1)
    lines = [json.dumps({"tokens": [draw.randrange(32000) for _ in range(draw.randrange(100, 8000))]}).encode() + b"\n"
             for _ in range(300)]
    documents = written = 0
    with open(path, "wb") as file:
        while written < size:
            written += file.write(lines[documents % len(lines)])
            documents += 1
    return documents


def forget(path):
    """Its pages leave the system's cache."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def children(process):
    """The processes that train: those of `process` and below it that have no children."""
    try:
        below = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [last for child in below for last in children(child)] if below else [process]


def memory(process):
    """{"anonymous", "file"} bytes of a process; None: it is gone."""
    try:
        lines = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return None
    of = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}
    return {"anonymous": of.get("Anonymous", 0), "file": of.get("Rss", 0) - of.get("Anonymous", 0)} if of else None


def measured(data, ranks, folder, name):
    command = [PARADYSE, "launch", "-n", str(ranks), "--", "train", "--model", str(folder / "model.toml"),
               "--data", str(data), "--set", f"output.folder={folder / 'runs'}", "--set", f"output.name={name}",
               "--set", "train.steps=8", "--set", "train.tokens_per_step=8192", "--set", "output.model=false",
               "--set", "checkpoint.keep=0", "--set", "data.max_tokens=2048", "--set", "costs.correct=false",
               "--set", "output.trace=false"]
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first, most = None, {"anonymous": 0, "file": 0}
    metrics = folder / "runs" / name / "metrics.jsonl"
    while process.poll() is None:
        if first is None and metrics.exists() and metrics.stat().st_size > 0:
            first = time.monotonic() - begin
        for one in filter(None, map(memory, children(process.pid))):
            most = {kind: max(most[kind], one[kind]) for kind in most}
        time.sleep(0.05)
    if process.returncode != 0 or first is None:
        raise SystemExit(f"the run on {data} failed: {' '.join(command)}")
    return {"first_step_seconds": first, **{f"{kind}_bytes": size for kind, size in most.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--jsonl", action="store_true")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="mapped_corpus_", dir=args.folder))
    ending = ".jsonl" if args.jsonl else ""
    sizes = {"small": 10_000_000, "large": int(args.gigabytes * 1e9)}
    result = {"ranks": args.ranks, "corpora": {}}
    try:
        (folder / "model.toml").write_text(MODEL)
        for name, size in sizes.items():
            documents = (write_jsonl if args.jsonl else write_pair)(folder / f"{name}{ending}", size)
            kind = "bytes" if args.jsonl else "bin_bytes"
            result["corpora"][name] = {kind: size, "documents": documents, "repeats": []}
        for path in folder.glob("large*"):
            forget(path)
        for repeat in range(3):
            for name in sizes:
                one = measured(folder / f"{name}{ending or '.bin'}", args.ranks, folder, f"{name}{repeat}")
                result["corpora"][name]["repeats"].append(one)
                print(name, repeat, {key: round(value, 2) for key, value in one.items()}, flush=True)
    finally:
        shutil.rmtree(folder)
    for corpus in result["corpora"].values():
        for key in corpus["repeats"][0]:
            corpus[key] = statistics.median(one[key] for one in corpus["repeats"])
    text = json.dumps(result, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
