#!/usr/bin/env python3
"""Steps of a video model on two nodes that a slow link joins, by the planned layout and by Ulysses, in turn.

The nodes are those of two_nodes.py (Linux, as root): two ranks on one core each.  The model is narrow and its clip
large, so that activations are many times the weights.  What Ulysses sends more crosses the link by two thirds, since
two of the three others of each rank are on the other node, half of it in each direction.

usage: benchmarks/two_nodes_layouts.py PROGRAM OUT.json [--mbit 200] [--frames 64] [--patches 256] [--repeats 5]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import two_nodes

LAYOUTS = ("planned", "dsp", "ulysses")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("out")
    parser.add_argument("--mbit", type=float, default=200, help="megabits a second of the link")
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--patches", type=int, default=256, help="of a frame")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    program = os.path.abspath(options.program)

    def said(*args):
        return subprocess.run([program, *map(str, args)], capture_output=True, text=True, check=True).stdout

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = folder / "model.toml"
        model.write_text(two_nodes.MODELS["stdit"])
        plans = [folder / layout for layout in LAYOUTS]
        for plan in plans:
            said("plan", "layout", "--model", model, "--frames", options.frames, "--tokens", options.patches,
                 "--ranks", 4, "--layout", plan.name, "--out", plan)
        two_nodes.set_up(options.mbit)
        try:
            rows = json.loads(two_nodes.launch(
                program, 29500, "bench", "step", "--model", model, "--repeats", options.repeats, "--json",
                *(word for plan in plans for word in ("--plan", plan))))["rows"]
        finally:
            two_nodes.take_down()
    by = {pathlib.Path(row["name"]).name: row for row in rows}
    version = said("--version").strip()
    result = {"command": " ".join(["benchmarks/two_nodes_layouts.py", "PROGRAM", "OUT", *sys.argv[3:]]),
              "version": version, "rows": by}
    bytes_a_second = options.mbit * 1e6 / 8
    for layout in LAYOUTS[:2]:
        crossing = (by["ulysses"]["all_bytes_sent"] - by[layout]["all_bytes_sent"]) * 2 / 3 / 2
        saved = by["ulysses"]["step_s"] - by[layout]["step_s"]
        result[layout] = {"saved_seconds": saved, "seconds_of_saved_bytes": crossing / bytes_a_second,
                          "share": saved * bytes_a_second / crossing}
        print(layout, json.dumps(result[layout]))
    pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
