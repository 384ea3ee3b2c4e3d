#!/usr/bin/env python3
"""Counts in how many places something stands that a developer adds: files of src/ and include/ that name an
example of it, and their lines that do.  Lines of code by folder, too.

usage: scripts/count_places.py [COMMIT]     of a commit (default: HEAD)
"""
import re
import subprocess
import sys

EXAMPLES = {  # what is added: an example, and how code names it
    "op kind": ("flow_matching", r"\bflow_matching"),
    "option of a strategy": ("head_groups", r"head_groups|kHeadGroups"),
    "attention strategy": ("METP", r"\bmetp\b|METP"),
    "text family": ("OPT", r"\bopt_|\"opt\"|\bOPT|\bOpt[A-Z]"),
    "switch of a text family": ("sandwich_norm", r"sandwich_norm"),
    "family of models": ("ST-DiT", r"[Ss]tdit|STDiT|ST-DiT"),
    "batch planner": ("whole-or-split", r"whole.or.split"),
    "layer planner": ("heuristic", r"paradyse.heuristic|\"paper\""),
    "data format": ("Stockholm", r"[Ss]tockholm"),
}
commit = sys.argv[1] if len(sys.argv) > 1 else "HEAD"


def git(*args):
    return subprocess.run(["git", *args], capture_output=True, text=True, check=True).stdout


sources = {}
for path in git("ls-tree", "-r", "--name-only", commit, "--", "src", "include", "lab", "tests", "examples").split():
    if path.endswith((".cc", ".h", ".cu", ".py")):
        sources[path] = git("show", f"{commit}:{path}").splitlines()

print("| added | counted by | files | lines |\n|---|---|---|---|")
for what, (example, pattern) in EXAMPLES.items():
    code = re.compile(pattern)
    named = {}
    for path, lines in sources.items():
        if path.startswith(("src/", "include/")):
            hits = sum(bool(code.search(line.split("//")[0])) for line in lines)
            if hits:
                named[path] = hits
    print(f"| {what} | {example} | {len(named)} | {sum(named.values())} |")
print("\n| folder | lines |\n|---|---|")
folders = {}
for path, lines in sources.items():
    depth = 2 if path.startswith("src/") or path.startswith("include/") else 1
    folder = "/".join(path.split("/")[:depth])
    folders[folder] = folders.get(folder, 0) + len(lines)
for folder, count in sorted(folders.items()):
    print(f"| {folder} | {count:,} |")
print(f"| all | {sum(folders.values()):,} |")
