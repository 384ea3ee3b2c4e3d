"""paradyse plan layers."""

import json
import pathlib
import unittest

from support import ProgramTest

MODELS = pathlib.Path(__file__).resolve().parent.parent.parent / "configs" / "models"

WAYS = [
    {"name": "fast", "seconds": 1.0, "saved_bytes": 100, "transient_bytes": 30},
    {"name": "small", "seconds": 3.0, "saved_bytes": 20, "transient_bytes": 70},
    {"name": "middle", "seconds": 1.8, "saved_bytes": 60, "transient_bytes": 10},
    {"name": "bad", "seconds": 4.0, "saved_bytes": 90, "transient_bytes": 90},
]


class PlanLayersTest(ProgramTest):
    def costs(self, ways, name="costs.json"):
        return self.write(name, json.dumps({"options": ways}))

    def arguments(self, ways=WAYS, layers=4, capacity=300):
        return ["plan", "layers", "--costs", self.costs(ways), "--layers", layers, "--capacity", capacity]

    def test_the_fastest_mix(self):
        found = self.json_of(*self.arguments())
        # 1 fast + 3 middle: 6.4 s, 280 + 30 > 300; 4 middle: 7.2 s, 250; 2 fast + 2 small + 70 = 310
        self.assertEqual(found["feasible"], True)
        self.assertEqual(found["counts"], {"fast": 0, "small": 0, "middle": 4, "bad": 0})
        self.assertAlmostEqual(found["seconds"], 7.2)
        self.assertEqual(found["peak_bytes"], 250)
        found = self.json_of(*self.arguments(capacity=310))
        self.assertEqual(found["counts"], {"fast": 1, "small": 0, "middle": 3, "bad": 0})
        self.assertEqual(found["order"], [{"name": "fast", "layers": 1}, {"name": "middle", "layers": 3}])

    def test_what_is_not_feasible_is_no_error(self):
        found = self.json_of(*self.arguments(capacity=149))
        self.assertEqual(
            (found["feasible"], found["least_peak_bytes"], found["missing_bytes"]), (False, 150, 1))
        self.assertIn("no plan fits", self.run_program(*self.arguments(capacity=149)).stdout)

    def test_the_published_heuristic_mixes_two(self):
        exact = self.json_of(*self.arguments(layers=5, capacity=400))
        paper = self.json_of(*self.arguments(layers=5, capacity=400), "--planner", "paradyse-heuristic")
        self.assertEqual(paper, self.json_of(*self.arguments(layers=5, capacity=400), "--planner", "paper"))
        self.assertTrue(paper["feasible"])
        self.assertLessEqual(exact["seconds"], paper["seconds"])
        self.assertLessEqual(sum(n > 0 for n in paper["counts"].values()), 2)

    def test_explain(self):
        found = self.json_of(*self.arguments(), "--explain")
        by_name = {way["name"]: way for way in found["rejected"]}
        self.assertEqual(set(by_name), {"fast", "small", "bad"})
        self.assertEqual(by_name["fast"]["uniform_peak_bytes"], 430)
        self.assertAlmostEqual(by_name["small"]["with_one_layer_seconds"], 3 + 3 * 1.8)
        self.assertIn("costs", by_name["small"]["why"])
        self.assertRegex(self.run_program(*self.arguments(), "--explain").stdout, r"(?m)^bad +one layer of it costs 4.6 s more$")

    def test_bad_input(self):
        def refused(field, value):
            ways = [dict(WAYS[0]), dict(WAYS[1])]
            if value is None:
                del ways[1][field]
            else:
                ways[1][field] = value
            return self.error_of(*self.arguments(ways))

        for field in ("name", "seconds", "saved_bytes", "transient_bytes"):
            self.assertIn(f"options[1]: the key '{field}' is missing", refused(field, None))
        for field, value in [("seconds", -1), ("seconds", "1"), ("seconds", 1e308), ("saved_bytes", -1), ("saved_bytes", 1.5),
                             ("transient_bytes", [])]:
            self.assertIn(f"options[1].{field}: expected", refused(field, value))
            self.assertIn("measure it again", refused(field, value))
        self.assertIn("options[1].secs: unknown key", refused("secs", 3))
        self.assertIn("options[1].name: 'fast' appears twice", refused("name", "fast"))
        self.assertIn("options[1].name: expected a name", refused("name", ""))
        for number in (float("nan"), float("inf"), -float("inf")):  # as Python writes them
            self.assertIn("options[1].seconds: expected a number from 0 to 1e+30, found null (or NaN)",
                          refused("seconds", number))
            self.assertIn("options[1].saved_bytes: expected", refused("saved_bytes", number))
        twice = '{"options": [{"name": "a", "seconds": 1, "seconds": 2, "saved_bytes": 1, "transient_bytes": 1}]}'
        huge = '{"options": [{"name": "a", "seconds": 1e999, "saved_bytes": 1, "transient_bytes": 1}]}'
        for text, said in ((twice, "twice"), (huge, "1e999")):
            path = self.write("bad.json", text)
            self.assertIn(said, self.error_of(
                "plan", "layers", "--costs", path, "--layers", 1, "--capacity", 1))
        for text in ("", "{", "[]", '{"options": []}', '{"options": [{"name": "a", "seconds": NaN}]}'):
            path = self.write("bad.json", text)
            self.assertIn("bad.json", self.error_of("plan", "layers", "--costs", path, "--layers", 1, "--capacity", 1))
        self.assertIn("nowhere", self.error_of("plan", "layers", "--costs", "nowhere", "--layers", 1, "--capacity", 1))
        self.assertIn("--capacity", self.error_of(*self.arguments(capacity="much")))
        self.assertIn("at least 1", self.error_of(*self.arguments(layers=0)))
        self.assertIn("exact", self.error_of(*self.arguments(), "--planner", "exat"))

    def test_the_plan_of_a_document_is_written_and_played(self):
        model = MODELS / "bench.toml"
        asked = ["plan", "layers", "--model", model, "--length", 37, "--ranks", 2, "--attention", "UlyssesZ"]
        out = self.folder / "plan.json"
        found = self.json_of(*asked, "--out", out)
        plan = json.loads(out.read_text())
        self.assertEqual((plan["cluster"]["ranks"], plan["lengths"]), (2, [37]))
        self.assertEqual(sum(run["layers"] for run in found["program"]), plan["model"]["layers"])
        row, = self.json_of("bench", "step", "--model", model, "--plan", out, "--repeats", 1)["rows"]
        self.assertEqual((row["tokens"], row["peak_bytes"]), (37, row["counted_bytes"]))
        self.assertGreaterEqual(row["peak_bytes"], found["bytes"]["peak"])  # messages travel beside work
        self.json_of(*asked, "--capacity", found["bytes"]["peak"], "--out", out)  # no room for that
        row, = self.json_of("bench", "step", "--model", model, "--plan", out, "--repeats", 1)["rows"]
        self.assertEqual(row["peak_bytes"], found["bytes"]["peak"])
        out.unlink()
        self.assertFalse(self.json_of(*asked, "--capacity", "1KiB", "--out", out)["feasible"])
        self.assertFalse(out.exists())
        self.assertIn("--model", self.error_of(*self.arguments(), "--out", out))
        out.write_text("mine")
        self.assertIn("plan.json", self.error_of(*asked, "--out", out))
        self.assertEqual(out.read_text(), "mine")

    def test_long_documents_with_what_waits_in_host_memory(self):
        """Llama 3 8B in bfloat16 on devices of 80 GB; counted."""
        def longest(ranks, *more):
            return self.json_of(
                "plan", "layers", "--model", MODELS / "llama-8b.toml", "--length", 4096, "--ranks", ranks,
                "--dtype", "bfloat16", "--capacity", "80GB", *more)["longest_length"]
        self.assertGreaterEqual(longest(1, "--offload", "--optimizer-offload"), 500_000)
        self.assertGreaterEqual(longest(8, "--offload", "--optimizer-offload"), 5_000_000)
        self.assertLessEqual(longest(1, "--offload"), 0)


if __name__ == "__main__":
    unittest.main()
