#!/usr/bin/env python3
"""What documents and comments say of the repository is so.

* paths in backticks are there, and so are the files that comments name;
* a table in Markdown is not cut in two by a blank line;
* every decision says what would change it;
* every file of benchmarks/results/ stands in a document, with the command that makes it.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
tracked = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                         cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
tracked = [path for path in tracked if (ROOT / path).exists()]
names = {pathlib.PurePath(path).name for path in tracked}
folders = {str(parent) for path in tracked for parent in pathlib.PurePath(path).parents}
# Written by the program or another project, or made by a build.
ELSEWHERE = {
    "config.json", "config.toml", "model.safetensors", "summary.json", "trace.json", "group_sizes.json", "model.toml",
    "run.toml", "plan.json", "state.json", "metrics.jsonl", "tokenizer.json", "ProcessGroupGloo.hpp",
    "CMakeCache.txt", "build.ninja", "page.html", "report.html", "model.safetensors.index.json",
    "modeling_rope_utils.py", "cmake_pch.hxx", "torch/torch.h", "torch.h", "ATen.h", "cluster.toml",
    "costs.json", "optimizer.json", "compile_commands.json", "License.txt", "nccl.h", "first.txt",
}
SUFFIX = r"(?:h|cc|py|md|sh|toml|json|txt|cmake)"
wrong = []


def documents():
    for path in tracked:
        if path.endswith(".md"):
            yield path, (ROOT / path).read_text()


def there(name, beside):
    """Whether `name`, found in the file `beside`, is a path or the name of a file."""
    if "*" in name or "..." in name or re.search(r"(?:^|/)(?:x|[A-Z]+)\.\w+$", name):
        return True  # a pattern: ops/x.cc, plans/NAME.txt
    pure = pathlib.PurePath(name)
    if pure.name in ELSEWHERE or name in ELSEWHERE:
        return True
    near = [ROOT, ROOT / "include" / "paradyse", ROOT / "src", (ROOT / beside).parent]
    if any((place / name).exists() for place in near):
        return True
    return "/" not in name and pure.name in names or any(path.endswith("/" + name) for path in tracked)


for path, text in documents():
    if path == "CHANGELOG.md":
        continue  # tells of what was
    outside = re.sub(r"```.*?```", "", text, flags=re.S)
    for name in re.findall(rf"`([\w./-]+\.{SUFFIX})`", outside):
        if not there(name, path):
            wrong.append(f"{path}: `{name}` is not there")
    for name in re.findall(r"`((?:src|include|tests|docs|scripts|benchmarks|configs|examples)/[\w./-]*)`",
                           outside):
        if not (there(name, path) or name.rstrip("/") in folders):
            wrong.append(f"{path}: `{name}` is not there")
    lines = text.splitlines()
    for i in range(len(lines) - 2):
        cut = lines[i].startswith("|") and not lines[i + 1].strip() and lines[i + 2].startswith("|")
        if cut and (i + 3 >= len(lines) or not re.match(r"\|[\s:|-]+\|?$", lines[i + 3])):
            wrong.append(f"{path}:{i + 2}: a blank line cuts a table")

for path in tracked:
    if not path.endswith((".h", ".cc", ".py", ".sh")) or path.startswith("scripts/check_docs"):
        continue
    for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
        mark = line.find("//" if path.endswith((".h", ".cc")) else "#")
        if mark < 0 or "#include" in line or "http" in line:
            continue
        for name in re.findall(rf"(?<![\w./*<-])([a-z][\w./-]*\.(?:h|cc|md))\b", line[mark:]):
            if not there(name, path):
                wrong.append(f"{path}:{number}: {name} is not there")

for page in sorted((ROOT / "docs/internals").glob("decisions_*.md")):
    for decision in page.read_text().split("\n### ")[1:]:
        if not re.search(r"Would\s+change\s+it", decision):
            wrong.append(f"{page.relative_to(ROOT)}: '{decision.splitlines()[0]}' says not what would change it")

told = "\n".join(text for _, text in documents())
for path in tracked:
    if path.startswith("benchmarks/results/") and pathlib.PurePath(path).name not in told:
        wrong.append(f"{path} stands in no document")

for line in wrong:
    print("check_docs:", line, file=sys.stderr)
if wrong:
    sys.exit(1)
print(f"check_docs: {len(tracked)} files, what documents name is there")
