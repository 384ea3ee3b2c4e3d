#!/usr/bin/env python3
"""Checks the plan side by clang-tidy, up to eight files of a folder as one: most of the time is for what
they include.  Diagnostics name the files themselves.

usage: scripts/clang_tidy.py CLANG_TIDY JOBS
"""
import concurrent.futures
import json
import pathlib
import re
import shlex
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
build = root / "build/lint"
FOLDERS = ("src/plan", "lab/flexsp", "lab/grouping", "lab/replay")
AT_ONCE = 8


def options():
    """The compiler's, by file."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])[1:]
        found[pathlib.Path(entry["file"])] = words[:words.index("-o")]
    return found


def groups():
    """Files of one folder that are compiled alike, as even as may be."""
    all_options = options()
    for folder in sorted({file.parent for top in FOLDERS for file in (root / top).rglob("*.cc")}):
        alike = {}
        for file in sorted(folder.glob("*.cc")):
            if not file.name.endswith("_absent.cc"):
                alike.setdefault(tuple(all_options[file]), []).append(file)
        for flags, files in alike.items():
            count = -(-len(files) // AT_ONCE)
            for i in range(count):
                yield flags, files[i * len(files) // count:(i + 1) * len(files) // count]


def united(files):
    """Their lines, and where each is from; what was included before is not included again."""
    seen = set()
    lines = []
    places = []
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            include = re.match(r"#include\s+(\S+)", line)
            lines.append("" if include and include[1] in seen else line)
            places.append(f"{file.relative_to(root)}:{number}")
            if include:
                seen.add(include[1])
    return lines, places


def check(flags, files):
    """What clang-tidy says of them; empty: nothing."""
    one = build / "united" / str(files[0].relative_to(root)).replace("/", "_")
    lines, places = united(files)
    one.write_text("\n".join(lines) + "\n")
    # a table of the folder declares what another of its files defines
    command = [sys.argv[1], "--quiet", "--checks=-readability-redundant-declaration", one, "--", *flags]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return re.sub(re.escape(str(one)) + r":(\d+)", lambda at: places[int(at[1]) - 1], done.stdout + done.stderr)


(build / "united").mkdir(exist_ok=True)
todo = list(groups())
with concurrent.futures.ThreadPoolExecutor(int(sys.argv[2])) as pool:
    said = [text for text in pool.map(lambda group: check(*group), todo) if text]
print(*said, sep="\n", end="")
print(f"clang_tidy: {sum(len(files) for _, files in todo)} files, faults in {len(said)} groups of them")
sys.exit(bool(said))
