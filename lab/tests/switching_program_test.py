"""paradyse-lab switching, measured: static runs, the published heuristic and ours over one list of lengths."""

import json
import re
import shlex
import unittest

from support import PARADYSE_LAB, TINY_LLAMA, ProgramTest

LENGTHS = [5, 90, 33, 240]


class SwitchingTest(ProgramTest):
    program = PARADYSE_LAB

    def setUp(self):
        super().setUp()
        self.model = self.write("model.toml", TINY_LLAMA.format(layers=3))
        self.lengths = self.write("lengths.txt", "".join(f"{n}\n" for n in LENGTHS))
        self.out = self.folder / "measured.json"

    def options(self, *more):
        return ["switching", "--model", self.model, "--ranks", 3, "--repeats", 2,
                "--corpus", f"short={self.lengths}", "--out", self.out, *more]

    def corpus(self, *more):
        """What the file says of the one corpus."""
        self.run_program(*self.options(*more))
        corpora = json.loads(self.out.read_text())["corpora"]
        self.assertEqual([corpus["name"] for corpus in corpora], ["short"])
        return corpora[0]

    def test_every_run_takes_the_same_steps(self):
        corpus = self.corpus("--order", "sorted")
        names = [run["name"] for run in corpus["runs"]]
        self.assertEqual(names[0], "ours")
        for name in ["static METP", "static MegatronTS", "static DataZ", "published heuristic"]:
            self.assertIn(name, names)
        for run in corpus["runs"]:
            self.assertEqual([step["tokens"] for step in run["steps"]], sorted(LENGTHS), run["name"])
            for step in run["steps"]:
                self.assertTrue(step["fits"])
                self.assertEqual(len(step["seconds"]), 2)
                self.assertGreater(step["peak_bytes"], 0)
                self.assertEqual(len(step["programs"]), 1)

    def test_what_is_planned_alike_is_measured_once(self):
        corpus = self.corpus("--ablation")
        runs = {run["name"]: run for run in corpus["runs"]}
        alike = 0
        for name in ["ours without mixing", "ours without recomputation"]:
            for ours, other in zip(runs["ours"]["steps"], runs[name]["steps"]):
                if ours["programs"] == other["programs"]:
                    self.assertEqual(ours["seconds"], other["seconds"])
                    alike += 1
        self.assertGreater(alike, 0)  # nothing is short of memory, so nothing is recomputed
        metp, megatron = (runs[f"static {name}"]["steps"] for name in ["METP", "MegatronTS"])
        for one, other in zip(metp, megatron):
            self.assertNotEqual(one["seconds"], other["seconds"])

    def test_runs_beside_ours(self):
        self.lengths.write_text("33\n90\n")
        verbs = {"MegatronTS": "hold", "UlyssesZ": "gather", "MegatronCZ": "gather", "METP": "pass"}
        runs = {run["name"]: run for run in self.corpus("--batch-planner", "whole-or-split")["runs"]}
        self.assertEqual(runs["ours by borders"]["kind"], "ablation")
        for step in runs["published heuristic, one strategy a layer"]["steps"]:
            for program in step["programs"]:
                layers = re.findall(r"(\w+)\+(\w+)", program)
                self.assertTrue(layers, program)
                for attention, mlp in layers:
                    self.assertEqual(mlp, verbs[attention], program)
        # what fits is not made again
        for name in ["METP", "DataZ", "USP"]:
            plain, leaner = (runs[f"static {name}{more}"]["steps"] for more in ["", ", recomputing"])
            self.assertEqual([step["seconds"] for step in plain],
                             [step["seconds"] for step in leaner])
        self.assertIn("--batch-planner whole-or-split", json.loads(self.out.read_text())["command"])
        self.out.unlink()
        runs = self.corpus("--set", 'parallel.batch_planner="borders"')["runs"]
        self.assertNotIn("ours by borders", [run["name"] for run in runs])
        self.out.unlink()
        self.assertIn("ours by borders", [run["name"] for run in self.corpus()["runs"]])
        self.out.unlink()
        self.assertIn("groups", self.error_of(*self.options("--batch-planner", "group")))

    def test_its_command_gives_it_again(self):
        lengths = self.write("it's short.txt", "33\n")
        self.run_program("switching", "--model", self.model, "--ranks", 2, "--repeats", 1,
                         "--corpus", f"a few={lengths}", "--set", 'parallel.layer_planner="exact"',
                         "--out", self.out)
        first = json.loads(self.out.read_text())
        again = shlex.split(first["command"])
        self.assertEqual(again[0], "paradyse-lab")
        self.assertIn('parallel.layer_planner="exact"', again)
        self.run_program(*again[1:], "--out", self.folder / "again.json")
        second = json.loads((self.folder / "again.json").read_text())
        self.assertEqual(second["command"], first["command"])
        self.assertEqual(second["corpora"][0]["name"], "a few")

    def test_packed_and_reported(self):
        corpus = self.corpus("--tokens-per-step", 100)
        for run in corpus["runs"]:
            self.assertEqual(sum(step["tokens"] for step in run["steps"]), sum(LENGTHS))
        page = self.folder / "page.html"
        self.run_program("switching-report", self.out, "--out", page)
        self.assertIn("static METP", page.read_text())

    def test_too_little_memory_leaves_steps_out(self):
        # ours recomputes, so it fits where the static runs do not
        corpus = self.corpus("--memory-per-rank", "500KiB")
        fits = {run["name"]: sum(step["fits"] for step in run["steps"]) for run in corpus["runs"]}
        self.assertLess(fits["static UlyssesZ"], fits["ours"])
        self.assertLess(fits["static UlyssesZ"], fits["static UlyssesZ, recomputing"])
        for run in corpus["runs"]:
            for step in run["steps"]:
                self.assertEqual(len(step.get("seconds", [])), 2 if step["fits"] else 0)
                self.assertLessEqual(step["peak_bytes"], 500 * 1024)

    def test_refusals(self):
        self.assertIn("NAME=FILE", self.error_of("switching", "--model", self.model))
        self.assertIn("give --ranks 2 or more", self.error_of(
            "switching", "--model", self.model, "--ranks", 1, "--corpus",
            f"short={self.lengths}", "--out", self.out))
        self.out.write_text("mine")
        self.assertIn("nothing is overwritten", self.error_of(*self.options()))
        self.assertEqual(self.out.read_text(), "mine")
        self.out.unlink()
        self.lengths.write_text("5\nmany\n")
        self.assertIn("line 2: ", self.error_of(*self.options()))
        self.lengths.write_text("5\n0\n")
        self.assertIn("line 2: '0'", self.error_of(*self.options()))
        self.assertFalse(self.out.exists())


if __name__ == "__main__":
    unittest.main()
