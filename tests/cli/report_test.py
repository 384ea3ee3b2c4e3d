"""paradyse report."""

import copy
import json
import unittest

from support import ProgramTest


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
        text = page.read_text()
        for expected in ("static METP", "paradyse bench switching &lt;&amp;&gt;", "</html>"):
            self.assertIn(expected, text)

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
        for expected in (str(page), "is no report", "--out"):
            self.assertIn(expected, message)
        self.assertEqual(page.read_text(), "<!DOCTYPE html><html></html>")
        file = self.result(name="input.html")
        self.assertIn("is no report", self.error_of("report", file))
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
        self.assertIn("nowhere.json", self.error_of("report", "nowhere.json"))
        self.assertIn("not JSON", self.error_of("report", self.write("bad.json", "{")))
        self.assertFalse((self.folder / "switching.html").exists())
        away = self.folder / "no folder" / "page.html"
        self.assertIn("no folder is not there", self.error_of("report", self.result(), "--out", away))


if __name__ == "__main__":
    unittest.main()
