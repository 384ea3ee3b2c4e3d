"""paradyse report."""

import json
import unittest

from browser import InBrowser
from support import ProgramTest


class ReportTest(InBrowser, ProgramTest):
    def test_what_is_no_run(self):
        self.assertIn("nowhere: is not there; give the folder", self.error_of("report", "nowhere"))
        file = self.write("a.json", "{}")
        self.assertIn("a.json: is no folder; give the folder of a training run", self.error_of("report", file))
        self.assertIn("is not the folder of a training run", self.error_of("report", self.folder))

    # A run of ours, a page of it and what the terminal says; then the page of a run of one step.
    def test_a_training_run(self):
        config = self.write_run(1, "memory_per_rank = \"8MiB\"\n[train]\nsteps = 3\ntokens_per_step = 1500\n")
        run = self.folder / "runs" / "first"
        self.run_program(
            "train", "-c", config, "--set", "output.name=first", "--set", "output.tensorboard=true")
        printed = self.json_of("report", run)
        self.assertEqual((printed["page"], printed["steps"]), (str(run / "report.html"), 3))
        self.assertEqual(printed["state"], "Finished: 3 steps.")
        metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(printed["tokens"], sum(line["tokens"] for line in metrics))
        self.assertEqual(metrics[0]["memory_per_rank"], 8 << 20)
        sizes = json.loads((run / "group_sizes.json").read_text())
        self.assertEqual([size["ranks"] for size in sizes["sizes"]], [1, 2, 3])
        text = self.run_program("report", run, "--step", "2", "--beside", run).stdout
        for expected in ("Finished: 3 steps.", "plan of step 2 (planner ", "micro-batch 1, rank",
                         f"page: {run}/report.html"):
            self.assertIn(expected, text)
        self.assertLessEqual(max(len(line) for line in text.splitlines()[:-1]), 80)
        self.assertIn("no such step; it has 1 to 3", self.error_of("report", run, "--step", "4"))
        (events,) = run.glob("events.out.tfevents.*")
        with self.subTest("TensorBoard reads it"):
            try:
                from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
            except ImportError:
                self.skipTest("the Python package tensorboard is not installed")
            read = EventAccumulator(str(events))
            read.Reload()
            for tag, key in (("train/loss", "loss"), ("train/learning_rate", "learning_rate"),
                             ("speed/tokens_per_second", "tokens_per_s"),
                             ("speed/step_seconds", "seconds"),
                             ("speed/step_seconds_predicted", "predicted_seconds"),
                             ("memory/peak_bytes", "peak_bytes")):
                scalars = read.Scalars(tag)
                self.assertEqual([one.step for one in scalars], [1, 2, 3], tag)
                for one, line in zip(scalars, metrics):
                    self.assertAlmostEqual(one.value / line[key], 1, 5, tag)
        with self.subTest("in a browser"):
            self.check_in_browser(run / "report.html", [
                "Training run first", "Where each length ran, and why", "Comparison with other runs",
                "Groups of step", "Predicted by the plan"])


if __name__ == "__main__":
    unittest.main()
