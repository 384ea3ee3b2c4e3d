"""paradyse-lab switching-report."""

import copy
import json
import re
import unittest

from browser import InBrowser
from support import PARADYSE_LAB, ProgramTest


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


class SwitchingReportTest(InBrowser, ProgramTest):
    program = PARADYSE_LAB

    def result(self, change=lambda result: None, name="switching.json"):
        result = copy.deepcopy(RESULT)
        change(result)
        return self.write(name, json.dumps(result))

    def test_a_page_and_the_summaries(self):
        file = self.result()
        printed = self.json_of("switching-report", file)
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
        printed = self.run_program("switching-report", self.result(), "--out", out).stdout
        for expected in ("code, sorted; best static run: static METP", "static A", "1 of 2",
                         f"page: {out}"):
            self.assertIn(expected, printed)
        first = out.read_text()
        self.run_program("switching-report", self.result(), "--out", out)  # a page of ours is replaced
        self.assertEqual(out.read_text(), first)

    def test_keeps_files_of_others(self):
        page = self.write("switching.html", "<!DOCTYPE html><html></html>")
        message = self.error_of("switching-report", self.result())
        for expected in (str(page), "is not a report", "--out"):
            self.assertIn(expected, message)
        self.assertEqual(page.read_text(), "<!DOCTYPE html><html></html>")
        file = self.result(name="input.html")
        self.assertIn("is not a report", self.error_of("switching-report", file))
        self.assertEqual(json.loads(file.read_text()), RESULT)

    def test_bad_input(self):
        def refused(change):
            message = self.error_of("switching-report", self.result(change))
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
        self.assertIn("nowhere.json: is not there", self.error_of("switching-report", "nowhere.json"))
        self.assertIn(str(self.folder), self.error_of("switching-report", self.folder))
        self.assertIn("not JSON", self.error_of("switching-report", self.write("bad.json", "{")))
        self.assertFalse((self.folder / "switching.html").exists())
        away = self.folder / "no folder" / "page.html"
        self.assertIn("no folder is not there", self.error_of("switching-report", self.result(), "--out", away))

    def test_the_page_of_the_bench_in_a_browser(self):
        self.run_program("switching-report", self.result(), "--out", self.folder / "page.html")
        self.check_in_browser(self.folder / "page.html", [
            "it takes 6.000 s, 45.5 % less than static METP (11.00 s).", "Cumulative time",
            "paradyse bench switching &lt;&amp;&gt;", "2 steps", "1.13", "What ours chose", "100 %"])


if __name__ == "__main__":
    unittest.main()
