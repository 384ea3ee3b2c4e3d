#!/usr/bin/env python3
"""Checks the Markdown documents, and what comments in the code say of files.

* Paths in backticks exist, and so do the files that comments name.
* A blank line does not cut a table in two.
* No line of a document is longer than 110 characters.
* Documents use the field's words: the prose has none of the private words of WORDS.
* Every decision says what would change it.
* Every file of benchmarks/results/ is named in a document, and benchmarks/results/sources.toml has
  what it measures and the commit that it was made at.  Results whose sources have changed since are
  noted; they are no faults.

Prose is what is outside code blocks and inline code. CHANGELOG.md may use old words and paths, since
it describes earlier versions.
"""
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
tracked = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                         cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
tracked = [path for path in tracked if (ROOT / path).exists()]
names = {pathlib.PurePath(path).name for path in tracked}
folders = {str(parent) for path in tracked for parent in pathlib.PurePath(path).parents}
# Written by the program or another project, or made by a build.
ELSEWHERE = {
    "data.json", "config.json", "config.toml", "model.safetensors", "summary.json", "trace.json", "group_sizes.json", "model.toml",
    "run.toml", "plan.json", "state.json", "metrics.jsonl", "tokenizer.json", "ProcessGroupGloo.hpp",
    "CMakeCache.txt", "build.ninja", "page.html", "report.html", "model.safetensors.index.json",
    "modeling_rope_utils.py", "cmake_pch.hxx", "torch/torch.h", "torch.h", "ATen.h", "cluster.toml",
    "costs.json", "optimizer.json", "compile_commands.json", "License.txt", "nccl.h", "first.txt", "lengths.txt",
}
SUFFIX = r"(?:h|cc|py|md|sh|toml|json|txt|cmake)"
LONGEST_LINE = 110
# A word that only this project used, as a regular expression (a space matches any white space), and
# what to write instead.
WORDS = [
    (r"made again", "recomputed"),
    (r"programmes?", "program"),
    (r"unlike (?:devices?|ranks?|nodes?|machines?)", "heterogeneous ..."),
    (r"(?:devices|ranks|nodes|machines) (?:are|were) alike", "identical ..."),
    (r"alike (?:devices?|ranks?|nodes?|machines?)", "identical ..."),
    (r"h[eo]ld (?:\w+ ){0,3}against", "compared with, compare ... with"),
    (r"(?:is|are) held to", "must be within"),
    (r"lack(?:s|ed|ing)?(?: of)? memory", "out of memory, runs out of memory"),
    (r"memory lacks", "memory runs out"),
    (r"in spite of (?:its|the) plan", "although its plan should fit"),
    (r"leaner", "that needs less memory"),
    (r"asked (?:were|was)", "were asked (subject before verb)"),
    (r"bound(?:s|ed)? from below", "lower bound"),
    (r"weight domains?", "sharding group"),
    (r"weight verbs?|verbs? of (?:an?|the) MLPs?|MLP verbs?", "weight mode"),
    (r"grid models?|models? of several dims", "multi-axis models"),
    (r"placed otherwise", "resharded"),
    (r"goes on (?:from|with|where|at)", "continues, resumes"),
    (r"beside (?:work|computing|computation)", "overlapped with computation"),
    (r"busy seconds?", "CPU seconds"),
    (r"wall seconds?", "elapsed seconds"),
    (r"(?:rank|GPU) seconds?", "rank-seconds, GPU-seconds"),
    (r"the publications?", "the name of the paper"),
]
WORDS = [(re.compile(r"\b(?:" + words.replace(" ", r"\s+") + r")\b", re.I), instead)
         for words, instead in WORDS]
wrong = []


def documents():
    for path in tracked:
        if path.endswith(".md"):
            yield path, (ROOT / path).read_text()


def blank(match):
    return re.sub(r"\S", " ", match[0])


def prose(text):
    """`text` with blanks in place of code, so that lines keep their numbers."""
    text = re.sub(r"^( *)```.*?^\1```", blank, text, flags=re.S | re.M)
    text = re.sub(r"(?:\A|(?<=\n\n))(?: {4}.*(?:\n|\Z))+", blank, text)
    return re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", blank, text, flags=re.S)


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
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LONGEST_LINE:
            wrong.append(f"{path}:{number}: the line has {len(line)} characters, at most {LONGEST_LINE} "
                         "are allowed: wrap it, or make a wide table a list")
    if path == "CHANGELOG.md":
        continue
    words = prose(text)
    for expression, instead in WORDS:
        for match in expression.finditer(words):
            number = words.count("\n", 0, match.start()) + 1
            found = " ".join(match[0].split())
            wrong.append(f"{path}:{number}: '{found}' is a private word; write instead: {instead}")
    outside = re.sub(r"```.*?```", "", text, flags=re.S)
    for name in re.findall(rf"`([\w./-]+\.{SUFFIX})`", outside):
        if not there(name, path):
            wrong.append(f"{path}: `{name}` is not there")
    for name in re.findall(r"`((?:src|include|lab|tests|docs|scripts|benchmarks|configs|examples)/[\w./-]*)`",
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
            wrong.append(f"{page.relative_to(ROOT)}: '{decision.splitlines()[0]}' does not say what would change it")

told = "\n".join(text for _, text in documents())
for path in tracked:
    if path.startswith("benchmarks/results/") and pathlib.PurePath(path).name not in told:
        wrong.append(f"{path} is named in no document")

RESULTS = "benchmarks/results/"


def changes_since(commit, sources):
    """How many commits changed them since, or None where the history does not reach so far."""
    log = subprocess.run(["git", "rev-list", "--count", f"{commit}..HEAD", "--", *sources],
                         cwd=ROOT, capture_output=True, text=True)
    return int(log.stdout) if log.returncode == 0 else None


table = tomllib.loads((ROOT / RESULTS / "sources.toml").read_text())
stored = {path.removeprefix(RESULTS) for path in tracked
          if path.startswith(RESULTS) and not path.endswith(("_lengths.txt", "/sources.toml"))}
listed = [name for results in table["made_at"].values() for name in results]
for name in stored.symmetric_difference(listed):
    wrong.append(f"{RESULTS}{name} has to be both a file and a line of {RESULTS}sources.toml")
for measured, results in table["made_at"].items():
    sources = table["sources"][measured]
    wrong += [f"{RESULTS}sources.toml: {path} is not there" for path in sources if not (ROOT / path).exists()]
    for commit in dict.fromkeys(results.values()):
        if sources and (since := changes_since(commit, sources)):
            named = ", ".join(name for name, made_at in results.items() if made_at == commit)
            print(f"check_docs: note: {measured} changed in {since} commits since {commit}: {named}")

for line in wrong:
    print("check_docs:", line, file=sys.stderr)
if wrong:
    sys.exit(1)
print(f"check_docs: {len(tracked)} files, no faults")
