"""paradyse report."""

import copy
import json
import re
import shutil
import subprocess
import unittest
import urllib.parse

from support import ProgramTest


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def step(tokens, seconds, predicted=0.0):
    return {"tokens": tokens, "longest": tokens, "fits": bool(seconds), "seconds": seconds,
            "planning_seconds": 0.001, "predicted_seconds": predicted, "peak_bytes": 0,
            "predicted_peak_bytes": 0, "programs": ["2 x DataZ+gather"] if seconds else []}


RESULT = {
    "format": "paradyse-switching", "version": 1, "command": "paradyse bench switching <&>",
    "machine": "2 cores", "model": "gpt: 2 layers", "backend": "threads", "ranks": 2,
    "memory_per_rank": 1 << 30, "costs": "closed form", "errors": [],
    "corpora": [{"name": "code", "order": "sorted", "packed": False, "runs": [
        {"name": "ours", "kind": "ours",
         "steps": [step(100, [1, 2, 3], 1.0), step(5000, [4, 4, 4], 4.0)]},
        {"name": "static A", "kind": "static", "steps": [step(100, [2, 2, 2]), step(5000, [])]},
        {"name": "static METP", "kind": "static",
         "steps": [step(100, [5, 5, 5]), step(5000, [6, 6, 6])]}]}],
    "longest": [{"run": "ours", "tokens": 9000}, {"run": "static METP", "tokens": 8000}],
}


class ReportTest(ProgramTest):
    def result(self, change=lambda result: None, name="switching.json"):
        result = copy.deepcopy(RESULT)
        change(result)
        return self.write(name, json.dumps(result))

    def test_a_page_and_the_summaries(self):
        file = self.result()
        printed = self.json_of("report", file)
        page = self.folder / "switching.html"
        self.assertEqual(printed["page"], str(page))
        (corpus,) = printed["corpora"]
        self.assertEqual(corpus["best_static"], "static METP")
        ours, static_a, metp = corpus["runs"]
        self.assertEqual(
            ours, {"run": "ours", "steps": 2, "steps_that_fit": 2, "seconds": 6, "least": 5,
                   "most": 7, "seconds_on_common": 2, "common_least": 1, "common_most": 3,
                   "time_error": 0.25, "memory_error": None, "over_fastest": 0.0})
        self.assertEqual((static_a["steps_that_fit"], static_a["seconds"]), (1, 2))
        self.assertEqual((metp["seconds"], metp["seconds_on_common"]), (11, 5))
        self.assertEqual(printed["longest"], RESULT["longest"])
        data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text()).group(1))
        self.assertEqual((data["kind"], data["command"]), ("switching", "paradyse bench switching <&>"))
        self.assertEqual(data["corpora"][0]["runs"][0]["beside"]["best"],
                         {"steps": 2, "seconds": 6, "of": 11})

    def test_on_a_terminal(self):
        out = self.folder / "page.html"
        printed = self.run_program("report", self.result(), "--out", out).stdout
        for expected in ("code, sorted; best static run: static METP", "static A", "1 of 2",
                         f"page: {out}"):
            self.assertIn(expected, printed)
        first = out.read_text()
        self.run_program("report", self.result(), "--out", out)  # a page of ours is replaced
        self.assertEqual(out.read_text(), first)

    def test_keeps_files_of_others(self):
        page = self.write("switching.html", "<!DOCTYPE html><html></html>")
        message = self.error_of("report", self.result())
        for expected in (str(page), "is not a report", "--out"):
            self.assertIn(expected, message)
        self.assertEqual(page.read_text(), "<!DOCTYPE html><html></html>")
        file = self.result(name="input.html")
        self.assertIn("is not a report", self.error_of("report", file))
        self.assertEqual(json.loads(file.read_text()), RESULT)

    def test_bad_input(self):
        def refused(change):
            message = self.error_of("report", self.result(change))
            self.assertIn("switching.json", message)
            return message

        def of_step(key, value):
            def change(result):
                result["corpora"][0]["runs"][0]["steps"][1][key] = value
            return change

        at = "corpora[0].runs[0].steps[1]"
        self.assertIn(f"{at}.seconds[1]", refused(of_step("seconds", [1, 0, 1])))
        self.assertIn(f"{at}.fits", refused(of_step("fits", 1)))
        self.assertIn("corpora[0].runs[1].steps[1].tokens", refused(of_step("tokens", 5001)))
        self.assertIn(
            f"{at}.second: unknown key (did you mean 'seconds'?)", refused(of_step("second", [])))
        self.assertIn("format", refused(lambda result: result.update(format="paradyse-plan")))
        self.assertIn("nowhere.json: is not there", self.error_of("report", "nowhere.json"))
        self.assertIn("is not the folder of a training run", self.error_of("report", self.folder))
        self.assertIn("--step and --beside", self.error_of("report", self.result(), "--step", "1"))
        self.assertIn("not JSON", self.error_of("report", self.write("bad.json", "{")))
        self.assertFalse((self.folder / "switching.html").exists())
        away = self.folder / "no folder" / "page.html"
        self.assertIn("no folder is not there", self.error_of("report", self.result(), "--out", away))

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

    def test_the_page_of_the_bench_in_a_browser(self):
        self.run_program("report", self.result(), "--out", self.folder / "page.html")
        self.check_in_browser(self.folder / "page.html", [
            "it takes 6.000 s, 45.5 % less than static METP (11.00 s).", "Cumulative time",
            "paradyse bench switching &lt;&amp;&gt;", "2 steps", "1.13", "What ours chose", "100 %"])

    def check_in_browser(self, page, expected):
        """Light and dark, wide and narrow: no error, nothing wider than the window, and the texts."""
        if CHROMIUM is None:
            self.skipTest("there is no chromium to draw the page")
        # The page in a frame, as narrow as a telephone; it tells this one what happened.
        watched = self.write("watched.html", page.read_text().replace("<head>", """<head><script>
            const errors = [];
            addEventListener("error", (event) => errors.push(event.message));
            addEventListener("securitypolicyviolation", (event) => errors.push(event.blockedURI));
            addEventListener("load", () => parent.postMessage({
              errors, width: innerWidth, wider: document.documentElement.scrollWidth - innerWidth,
              text: document.body.outerHTML.split("<template")[0], ink: getComputedStyle(document.body).color }, "*"));
            </script>""", 1))
        frame = self.write("frame.html", "<!DOCTYPE html><body>" + "".join(
            f'<iframe src="{watched.as_uri()}" style="width: {width}px; height: 900px"></iframe>'
            for width in (390, 1280)) + """<p></p><script>
            const told = [];
            addEventListener("message", (event) => {
              told.push(event.data);
              document.querySelector("p").textContent = "told: " + encodeURIComponent(JSON.stringify(told)); });
            </script></body>""")
        inks = set()
        for scheme in (0, 1):
            dom = subprocess.run(
                [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
                 f"--user-data-dir={self.folder}/browser", f"--blink-settings=preferredColorScheme={scheme}",
                 "--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", frame.as_uri()],
                capture_output=True, text=True, timeout=120).stdout
            self.assertIn("told: ", dom)
            pages = json.loads(urllib.parse.unquote(re.search("told: ([^<]*)", dom).group(1)))
            self.assertEqual(sorted(told["width"] for told in pages), [390, 1280])
            for told in pages:
                self.assertEqual(told["errors"], [], told["width"])
                self.assertLessEqual(told["wider"], 0, told["width"])
                for text in expected:
                    self.assertIn(text, told["text"])
                for nonsense in ("NaN", "undefined", "[object", "Infinity"):
                    self.assertNotIn(nonsense, told["text"])
                inks.add(told["ink"])
        self.assertEqual(len(inks), 2, "light and dark")


if __name__ == "__main__":
    unittest.main()
