#!/usr/bin/env python3
"""Refuses an include that points upwards: a file may use its own layer and those below it.  And one of a family's own
headers (src/plan/model/FAMILY/) outside the folders that are the family's.

The layers, lowest first; the headers of include/paradyse/ stand in the layer of their source.
"""
import pathlib
import re
import sys

LAYERS = [
    # the plan side: no torch (scripts/check_plan_side.sh asks the compiler)
    ["src/plan/base"],
    ["src/plan/tokens"],  # token files of other programs, mapped
    ["src/plan/layout"],
    ["src/plan/model"],
    ["src/plan/program"],
    ["src/plan/ops"],  # the rows of plan/detail/op_traits.h, which layers from program on ask
    ["src/plan/strategy"],
    ["src/plan/cost"],
    ["src/plan/plan"],
    # what is planned, the smallest question first
    ["src/plan/search/grouping"],
    ["src/plan/search/layers"],
    ["src/plan/search/batch"],
    ["src/plan/search/layouts"],
    ["src/plan/search/planners"],
    ["src/plan/profile", "src/plan/config"],  # measured costs, and a run's configuration
    ["src/plan/simulate", "src/plan/report"],
    ["python/bindings"],
    # the run side
    ["src/run/memory", "src/run/device"],
    ["src/run/cuda"],
    ["src/run/kernels"],
    ["src/run/comm"],
    ["src/run/weights", "src/run/data"],
    ["src/run/ops"],
    ["src/run/execute"],
    ["src/run/measure"],
    ["src/run/train", "src/run/reference"],
    ["src/run/check"],
    ["src/cli"],
    ["lab/grouping", "lab/flexsp", "lab/replay", "lab/measure"],  # of which the product knows nothing
    ["lab/cli"],
]
# Public headers whose name is not that of one source.
HEADERS = {
    "plan/detail/index": "src/plan/base",
    "plan/writer": "src/plan/strategy",
    "run/backend": "src/run/comm",
    "run/communicator": "src/run/comm",
    "run/data": "src/run/data",
    "run/weights": "src/run/weights",
    "plan/config": "src/plan/config",
    "plan/plan": "src/plan/plan",
    "plan/detail/planning_task": "src/plan/search/layers",
    "plan/profile": "src/plan/profile",
    "run/train": "src/run/train",
}
root = pathlib.Path(__file__).resolve().parent.parent
level = {folder: i for i, folders in enumerate(LAYERS) for folder in folders}


def folder_of(path):
    """The folder that `path` (from the root) counts to, or None."""
    if path.startswith("include/paradyse/"):
        name = path[len("include/paradyse/") : -len(".h")]
        if name in HEADERS:
            return HEADERS[name]
        side, *_, stem = name.split("/")
        found = sorted((root / "src" / side).rglob(stem + ".cc"))
        return folder_of(str(found[0].relative_to(root))) if found else None
    for depth in (4, 3, 2):
        folder = "/".join(path.split("/")[:depth])
        if folder in level:
            return folder
    return None


def owners(target):
    """The folders whose files may include `target`."""
    family = re.match(r"src/plan/model/(\w+)/", target)
    return ("src/plan/model/", "src/run/reference/", f"src/run/data/{family[1]}/") if family else ("",)


def main():
    wrong = []
    files = [p for top in ("include", "src", "lab", "python") for p in sorted((root / top).rglob("*")) if p.suffix in (".h", ".cc", ".cu") and "tests" not in p.parts]
    for file in files:
        name = str(file.relative_to(root))
        mine = folder_of(name)
        if mine is None:
            wrong.append(f"{name}: is in no layer; name it in scripts/check_layers.py")
            continue
        for number, line in enumerate(file.read_text().splitlines(), 1):
            include = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if not include:
                continue
            target = include.group(1)
            theirs = folder_of("include/" + target if target.startswith("paradyse/") else target)
            if theirs is None:
                wrong.append(f"{name}:{number}: {target} is in no layer")
            elif level[theirs] > level[mine]:
                wrong.append(f"{name}:{number}: {mine} must not include {target}, of {theirs} above it")
            if not name.startswith(owners(target)):
                wrong.append(f"{name}:{number}: {target} is its family's own: {', '.join(owners(target))} may include it")
            if name.startswith("include/") and not target.startswith("paradyse/"):
                wrong.append(f"{name}:{number}: a promised header includes {target}, which is not installed")
    for file in sorted((root / "examples").rglob("*.cc")):  # a user names no header of detail/
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if re.match(r'\s*#\s*include\s*"paradyse/\w+/detail/', line):
                wrong.append(f"{file.relative_to(root)}:{number}: an example includes a header of detail/")
    print("\n".join(wrong) if wrong else f"check_layers: {len(files)} files, no include points upwards")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
