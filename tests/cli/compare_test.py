"""train --compare: a run that is compared with the best static plan."""
import json
import pathlib
import shutil
import unittest

from support import ProgramTest


class CompareTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.config = self.write_run(2, """[costs]
correct = false
[train]
steps = 5
tokens_per_step = 1500
[checkpoint]
every = 2
keep = 1000
""")

    def train(self, name, *extra):
        done = self.run_program(
            "train", "-c", self.config, "--json", "--set", f"output.name={name}", *extra)
        return json.loads(done.stdout)

    def steps_of(self, summary):
        lines = (pathlib.Path(summary["folder"]) / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def expect_same_bits(self, one, other):
        same = ("step", "loss", "gradient_norm", "plan_sha256", "peak_bytes", "retries")
        steps = [[{key: step[key] for key in same} for step in self.steps_of(run)] for run in (one, other)]
        self.assertEqual(*steps)
        files = ["model/model.safetensors"]
        newest = max((pathlib.Path(one["folder"]) / "checkpoints").iterdir(), key=lambda path: int(path.name))
        files += [file.relative_to(one["folder"]) for file in newest.glob("rank-*.safetensors")]
        self.assertGreater(len(files), 1)
        for file in files:
            self.assertEqual(*((pathlib.Path(run["folder"]) / file).read_bytes() for run in (one, other)), file)

    def test_compares_every_second_step_and_changes_no_bit(self):
        plain = self.train("plain")
        self.assertIsNone(plain["compared"])
        summary = self.train("compared", "--compare", 2)
        self.expect_same_bits(plain, summary)
        steps = self.steps_of(summary)
        beside = [step for step in steps if "compared_strategy" in step]
        self.assertEqual([step["step"] for step in beside], [2, 4])
        for step in beside:
            self.assertGreater(step["compared_seconds"], 0)
            self.assertGreater(step["compared_predicted_seconds"], 0)
        compared = summary["compared"]
        self.assertEqual({step["compared_strategy"] for step in beside}, {compared["strategy"]})
        self.assertEqual((compared["steps"], compared["did_not_fit"]), (2, 0))
        self.assertAlmostEqual(compared["seconds"], sum(step["seconds"] for step in beside))
        self.assertAlmostEqual(
            compared["static_seconds"], sum(step["compared_seconds"] for step in beside))
        ratio = 1
        for step in beside:
            ratio *= step["compared_seconds"] / step["seconds"]
        self.assertAlmostEqual(compared["ratio"], ratio ** 0.5)
        low, high = compared["interval"]
        self.assertLessEqual(low, compared["ratio"])
        self.assertGreaterEqual(high, compared["ratio"])
        folder = pathlib.Path(summary["folder"])
        self.assertEqual(json.loads((folder / "summary.json").read_text())["compared"], compared)
        # its spans are in the trace, under a name of their own; those of steps end without them
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
        named = [event for event in events if event["name"] == "static plan, compared"]
        self.assertEqual(sorted(event["tid"] for event in named), [2, 2, 3, 3, 4, 4])
        of_steps = {event["name"]: event for event in events if event["ph"] == "X" and event["tid"] == 1}
        for event in named:
            for number in (2, 4):
                step = of_steps[f"step {number}"]
                self.assertFalse(step["ts"] < event["ts"] + event["dur"] / 2 < step["ts"] + step["dur"])
        # what people are told
        sentence = f"measured comparison with the best static plan ({compared['strategy']}, 2 steps): "
        report = self.json_of("report", folder)
        self.assertEqual(report["compared"], compared)
        self.assertIn(sentence, self.run_program("report", folder).stdout)
        self.assertIn(sentence[1:], (folder / "report.html").read_text())
        said = self.run_program("train", "-c", self.config, "--compare", 2).stdout
        self.assertRegex(
            " ".join(said.split()), r"compared measured comparison with the best static plan \(\w+, 2 steps\): ")

    # The first step warms up.
    def test_every_step_but_the_first(self):
        steps = self.steps_of(self.train("all", "--compare", 1))
        self.assertEqual([step["step"] for step in steps if "compared_seconds" in step], [2, 3, 4, 5])

    def test_one_rank_and_one_strategy(self):
        summary = self.train("one", "--compare", 2, "--ranks", 1, "--set", "parallel.attention=METP")
        self.assertEqual(summary["compared"]["steps"], 2)

    # Corrections learn from the run's own plans alone, and the other one goes by them.
    def test_with_costs_that_steps_correct(self):
        summary = self.train("corrected", "--compare", 2, "--set", "costs.correct=true")
        self.assertEqual(summary["compared"]["steps"], 2)

    def test_goes_on_where_a_run_is_resumed(self):
        straight = self.train("straight", "--compare", 2, "--set", "train.steps=8")
        run = pathlib.Path(straight["folder"])
        later = ["model", "summary.json", "trace*.json"]
        later += [file.name for file in (run / "checkpoints").iterdir() if int(file.name) > 4]
        cut = shutil.copytree(run, run.parent / "cut", ignore=shutil.ignore_patterns(*later))
        said = self.run_program("train", "--json", "--resume", cut)
        resumed = json.loads(said.stdout)
        self.expect_same_bits(straight, resumed)
        self.assertEqual(
            [step["step"] for step in self.steps_of(resumed) if "compared_seconds" in step], [2, 4, 6, 8])
        self.assertEqual(resumed["compared"]["steps"], 4)
        self.assertEqual(resumed["compared"]["strategy"], straight["compared"]["strategy"])
        # another number, or none
        on = json.loads(self.run_program(
            "train", "--json", "--resume", cut, "--set", "train.steps=12", "--compare", 3).stdout)
        self.assertEqual(
            [step["step"] for step in self.steps_of(on) if "compared_seconds" in step], [2, 4, 6, 8, 12])
        said = self.run_program(
            "train", "--json", "--resume", cut, "--set", "train.steps=13", "--compare", 0)
        self.assertIn("from here on train.compare = 0 (was 3)", said.stderr)
        self.assertEqual(json.loads(said.stdout)["compared"]["steps"], 5)

    # The strategy that was chosen stays, whatever the machine would choose now.
    def test_a_resumed_run_keeps_its_strategy(self):
        summary = self.train("kept", "--compare", 2)
        run = pathlib.Path(summary["folder"])
        metrics = (run / "metrics.jsonl").read_text()
        was = summary["compared"]["strategy"]
        other = "METP" if was != "METP" else "UlyssesZ"
        (run / "metrics.jsonl").write_text(metrics.replace(
            f'"compared_strategy":"{was}"', f'"compared_strategy":"{other}"'))
        on = json.loads(self.run_program(
            "train", "--json", "--resume", run, "--set", "train.steps=8").stdout)
        self.assertEqual((on["compared"]["strategy"], on["compared"]["steps"]), (other, 3))  # 8, not 6

    def test_ranks_that_are_processes(self):
        self.config.write_text(self.config.read_text().replace("ranks = 3\n", ""))
        done = self.run_program(
            "launch", "-n", 3, "--", "train", "-c", self.config, "--json", "--compare", 2,
            "--set", "output.name=processes")
        self.assertEqual(json.loads(done.stdout)["compared"]["steps"], 2)

    def test_what_it_does_not_apply_to(self):
        summary = self.train("given")
        error = self.error_of("train", "--replay", summary["folder"], "--compare", 2)
        self.assertIn("train.compare is 2, but with --replay the plans are given", error)
        self.assertIn("train.compare=0", error)
        plan = pathlib.Path(summary["folder"]) / "plans" / "step-00001.json"
        error = self.error_of("train", "-c", self.config, "--plan", plan, "--compare", 2)
        self.assertIn("train.compare is 2, but with --plan the plans are given", error)
        error = self.error_of("train", "-c", self.config, "--set", "train.compare=-1")
        self.assertIn("train.compare", error)
        self.assertFalse(list((self.folder / "runs").glob("20*")))  # refused before a folder is made

    # Static plans recompute and are packed less full; the run's may mix what none of them has room for.
    def test_little_memory(self):
        compared = self.train("little", "--compare", 2, "--memory-per-rank", 1000000)["compared"]
        self.assertEqual((compared["steps"], compared["did_not_fit"]), (2, 0))
        done = self.run_program("train", "-c", self.config, "--json", "--compare", 2,
                                "--memory-per-rank", 800000)
        summary = json.loads(done.stdout)
        self.assertEqual((summary["steps"], summary["compared"]), (5, None))
        self.assertIn("train.compare: no step is compared, since no single strategy has room for the "
                      "longest document", done.stderr)


if __name__ == "__main__":
    unittest.main()
