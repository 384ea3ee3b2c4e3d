#!/usr/bin/env python3
"""Compiles by clang, for its warnings alone, each file by itself: what `make test-asan` does not, or not
by itself.  Making no code takes a third of the time.

usage: scripts/check_clang.py JOBS
"""
import concurrent.futures
import json
import pathlib
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
build = root / "build/clang"
jobs = sys.argv[1] if len(sys.argv) > 1 else "2"
subprocess.run(["cmake", "-S", root, "-B", build], stdout=subprocess.DEVNULL, check=True)
targets = subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True, text=True, check=True)
headers = [line.split(":")[0] for line in targets.stdout.splitlines() if line.split(":")[0].endswith(".pch")]
subprocess.run(["ninja", "-C", build, "-j", jobs, *headers], check=True)


SANITIZED = ("tests/plan", "lab/tests")  # each of them a program


def compiled(entry):
    """What to run for `entry`; None where the sanitized build does."""
    file = pathlib.Path(entry["file"]).relative_to(root)
    if file.suffix != ".cc" or any(map(file.is_relative_to, SANITIZED)):
        return None
    return entry["command"] + " -fsyntax-only"


def run(command):
    return subprocess.run(command, shell=True, cwd=build, capture_output=True, text=True)


commands = [c for c in map(compiled, json.loads((build / "compile_commands.json").read_text())) if c]
failed = 0
with concurrent.futures.ThreadPoolExecutor(int(jobs)) as pool:
    for result in pool.map(run, commands):
        if result.returncode:
            failed += 1
            print(result.stderr, end="")
print(f"check_clang: {len(commands)} files, {failed} refused")
sys.exit(failed > 0)
