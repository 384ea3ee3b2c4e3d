"""paradyse-lab flexsp: plans of the FlexSP publication's presets, and their check; every planner of groups."""

import json
import unittest

from batches import BatchTest, lengths_of
from support import FAILED, OK, PARADYSE_LAB, ProgramTest, uniform_plan

PLANNERS = ["fast", "exact", "flexsp-milp", "flexsp-milp-as-written", "static", "homogeneous", "sorted", "best-fit",
            "longest-first", "karmarkar-karp", "megatron", "two-stage"]


class FlexspTest(BatchTest):
    program = PARADYSE_LAB

    def preset(self, lengths, *arguments, model="flexsp-7b"):
        return ["flexsp", "plan", "--model", model, "--lengths", self.lengths(lengths), *arguments]

    def check(self, plan, *arguments, code=0):
        found = self.json_of("flexsp", "check", plan, *arguments, code=code)
        self.assertEqual(found["ok"], code == 0)
        return found

    def test_presets_are_planned_and_checked(self):
        lengths = lengths_of(120, 1)
        out = self.folder / "plan.json"
        seconds = {}
        for model in ("flexsp-7b", "flexsp-13b", "flexsp-30b"):
            for space, more in (("flexsp", []), ("full", []), ("full", ["--overlap"]),
                                ("full", ["--weight-domain", "world"])):
                found = self.json_of(*self.preset(
                    lengths, "--space", space, "--out", out, *more, model=model))
                checked = self.check(out, "--model", model, "--space", space, *more)
                self.assertEqual(found["hash"], checked["hash"])
                self.assertEqual((found["documents"], found["dropped"], found["ranks"]), (120, 0, 64))
                self.assertEqual((found["space"], found["planner"]), (space, "fast"))
                self.assertGreater(found["planner_seconds"], 0)
                self.assertTrue(0 < found["lower_bound_seconds"] <= found["seconds"])
                self.assertAlmostEqual(found["gap"], found["seconds"] / found["lower_bound_seconds"] - 1)
                plan = json.loads(out.read_text())
                self.assertEqual(plan["lengths"], lengths)
                self.assertEqual(plan["predicted"]["seconds"], found["seconds"])
                self.assertEqual(plan["predicted"]["lower_bound_seconds"], found["lower_bound_seconds"])
                self.assertEqual(plan["planner"]["seconds"], found["planner_seconds"])
                self.assertEqual(len(plan["micro_batches"]), found["micro_batches"])
                seconds[(model, space, *more)] = found["seconds"]
            self.assertLessEqual(seconds[(model, "full")], seconds[(model, "flexsp")])
        # the judge judges: another model, other ranks, another context, a document moved
        self.check(out, "--model", "flexsp-7b", "--space", "full", code=FAILED)
        found = self.check(out, "--model", "flexsp-30b", "--space", "full", "--ranks", 32, code=FAILED)
        self.assertIn("--ranks 64", " ".join(found["problems"]))
        groups = plan["micro_batches"][0]["groups"]
        busy = [group for group in groups if group["documents"]]
        busy[0]["documents"].append(busy[1]["documents"].pop())
        self.write("moved.json", json.dumps(plan))
        found = self.check(
            self.folder / "moved.json", "--model", "flexsp-30b", "--space", "full", code=FAILED)
        self.assertTrue(all("micro_batches[0]" in said or said.startswith("predicted")
                            for said in found["problems"]), found["problems"])

    def test_other_ranks_and_memory(self):
        out = self.folder / "plan.json"
        for ranks in (16, 24, 128):
            found = self.json_of(*self.preset(
                lengths_of(60, 2, most=20_000), "--ranks", ranks, "--memory", "40GiB", "--out", out))
            self.assertEqual(found["ranks"], ranks)
            self.check(out, "--model", "flexsp-7b", "--ranks", ranks, "--memory", "40GiB")

    def test_every_planner(self):
        lengths = [9000, 5000, 4000, 3000, 3000, 2000, 1000, 500]
        arguments = ["--ranks", 8, "--memory", "100GiB", "--out", self.folder / "plan.json"]
        seconds = {}
        for planner in PLANNERS:
            for made in (self.preset(lengths, *arguments), self.on_cluster(
                    lengths, "--space", "flexsp", "--out", self.folder / "plan.json")):
                solver = ["--solver-seconds", 1] if made[0] == "flexsp" else []
                found = self.json_of(*made, "--planner", planner, *solver)
                self.assertEqual(found["planner"], planner)
                seconds.setdefault(made[3], {})[planner] = found["seconds"]
                self.assertTrue(self.json_of("plan", "check", self.folder / "plan.json")["ok"])
        for of_model in seconds.values():
            for planner in PLANNERS:
                self.assertGreaterEqual(of_model[planner], of_model["exact"] * (1 - 1e-9), planner)
            self.assertLessEqual(of_model["fast"], of_model["homogeneous"] * (1 + 1e-9))

    def test_exact(self):
        found = self.json_of(*self.preset(
            [9000, 5000, 4000, 3000], "--ranks", 4, "--memory", "100GiB", "--exact"))
        self.assertEqual((found["planner"], found["optimal"], found["gap"]), ("exact", True, 0))
        self.assertEqual(found["bound"], "optimum, proved")
        said = self.error_of(*self.preset(lengths_of(60, 4), "--exact"))
        self.assertIn("at most 14 documents", said)
        self.assertIn("60 documents on 64 ranks", said)
        self.assertNotIn("--memory", said)

    def test_explain(self):
        found = self.json_of(*self.preset(lengths_of(60, 5), "--explain"))
        self.assertIn("micro-batch 0: ", found["explanation"])
        said = self.run_program(*self.preset(lengths_of(60, 5), "--explain")).stdout
        for word in ("groups of", "computing", "share of rank time", "gap", "micro-batches", "fast took"):
            self.assertIn(word, said)
        self.assertNotIn("explanation", self.json_of(*self.preset(lengths_of(60, 5))))

    def test_drops_what_exceeds_the_context_and_keeps_the_first(self):
        lengths = [3000, 200_000, 10, 5, 193_000, 700, 192_000, 400]
        out = self.folder / "plan.json"
        found = self.json_of(*self.preset(lengths, "--batch", 4, "--out", out))
        self.assertEqual((found["documents"], found["dropped"]), (4, 2))
        self.assertEqual(json.loads(out.read_text())["lengths"], [3000, 10, 5, 700])
        found = self.json_of(*self.preset(lengths, "--context", 193_000, "--out", out))
        self.assertEqual((found["documents"], found["dropped"]), (7, 1))
        self.assertEqual(json.loads(out.read_text())["lengths"], lengths[:1] + lengths[2:])
        self.check(out, "--model", "flexsp-7b", "--context", 193_000)

    def test_is_deterministic(self):
        for made in (self.preset(lengths_of(200, 6), "--space", "full"),
                     self.on_cluster(lengths_of(100, 6, most=20_000), "--space", "full")):
            hashes = {self.json_of(*made, *more)["hash"]
                      for more in ([], [], ["--threads", 2], ["--threads", 3])}
            self.assertEqual(len(hashes), 1)

    def test_documents_that_are_too_long_are_named(self):
        lengths = [700, 150_000, 20, 120_000]
        for space, small, roomiest in (("flexsp", "5GiB", "16 x UlyssesZ"),
                                       ("full", "2500MiB", "16 x UlyssesZ, recompute full")):
            for made in (self.preset(lengths, "--space", space, "--ranks", 16, "--memory", "12GiB"),
                         self.on_cluster(lengths, "--space", space, "--memory", small, ranks=8)):
                said = self.error_of(*made)
                self.assertIn("document 1 has 150000 tokens", said)
                self.assertIn("1 more document", said)
                ranks = said.split("(--ranks ")[1].split(")")[0]
                memory = said.split("--memory ")[1].split()[0]
                asked = made[made.index("--ranks") + 1]
                made[made.index("--ranks") + 1] = ranks  # what is advised does
                self.run_program(*made)
                made[made.index("--ranks") + 1] = asked
                made[made.index("--memory") + 1] = memory
                self.run_program(*made)
                if made[3] == "flexsp-7b":  # and a rank less does not
                    self.assertIn(roomiest, said)
                    made[made.index("--memory") + 1] = "12GiB"
                    made[made.index("--ranks") + 1] = int(ranks) - 1
                    self.assertIn("document 1 has", self.error_of(*made))

    def test_bad_options(self):
        for more, said in (
                (["--planner", "fats"], "did you mean 'fast'"), (["--space", "ful"], "did you mean 'full'"),
                (["--weight-domain", "nodes"], "did you mean 'node'"), (["--overlap"], "--space full"),
                (["--weight-domain", "node"], "--space full"), (["--memory", "much"], "--memory"),
                (["--memory", "0"], "at least one byte"), (["--ranks", 0], "--ranks"),
                (["--ranks", 2], "leave no memory for a token"), (["--batch", 0], "--batch"),
                (["--context", 0], "--context"), (["--context", 10], "is longer than the context"),
                (["--space", "full", "--weight-domain", "node", "--ranks", 12], "not whole nodes of 8")):
            self.assertIn(said.replace("is longer", "are longer"), self.error_of(*self.preset([50, 70], *more)))
        self.assertIn("did you mean 'flexsp-7b'", self.error_of(*self.preset([5], model="flexsp-7")))
        self.assertIn("paradyse-lab 0", self.run_program("--version").stdout)


class FlexspCheckTest(ProgramTest):
    """Plans for the coefficients of the FlexSP publication, which are no model."""

    program = PARADYSE_LAB

    def setUp(self):
        super().setUp()
        part = {"part": "mlp", "strategy": "gather", "recompute": "none"}
        program = lambda name: [{"layers": 32, "parts": [
            {"part": "attention", "strategy": name, "recompute": "none"}, part]}]
        self.plan = {
            "format": "paradyse-plan", "version": 1,
            "model": {"name": "flexsp-7b", "sha256": "", "layers": 32},
            "cluster": {"name": "a100-40gb-8x8", "sha256": "", "ranks": 64},
            "weight_domain": 64,
            "lengths": [180000, 3000],
            "programs": {"some": program("UlyssesZ"), "one": program("DataZ")},
            "micro_batches": [{"groups": [
                {"ranks": list(range(32)), "documents": [0], "program": "some"},
                {"ranks": [32], "documents": [1], "program": "one"},
                *({"ranks": [r], "documents": [], "program": "one"} for r in range(33, 64))]}]}

    def check(self, *options, code=OK):
        path = self.write("plan.json", json.dumps(self.plan))
        return self.json_of("flexsp", "check", path, "--model", "flexsp-7b", *options, code=code)

    def refused(self, *options):
        path = self.write("plan.json", json.dumps(self.plan))
        return self.error_of("flexsp", "check", path, *options)

    def test_a_sound_plan(self):
        self.assertTrue(self.check()["ok"])
        self.assertTrue(self.check("--ranks", 64, "--context", 192000, "--space", "flexsp")["ok"])
        path = self.write("plan.json", json.dumps(self.plan))
        text = self.run_program("flexsp", "check", path, "--model", "flexsp-7b").stdout
        self.assertNotIn("not checked", text)

    def test_predictions_are_the_published_formula(self):
        d, v, s = 32, 5.94, 180000
        seconds = (5.128e-6 * s * s + 0.1839576 * s + 16 * 32 * 4096 * s / 2**20 / v) / d / 1000
        micro = self.plan["micro_batches"][0]
        micro["groups"][0]["predicted"] = {"seconds": seconds}
        micro["predicted"] = {"seconds": seconds + 0.62936}
        self.plan["predicted"] = {"seconds": seconds + 0.62936, "lower_bound_seconds": 1}
        self.assertTrue(self.check()["ok"])
        micro["groups"][0]["predicted"] = {"seconds": seconds + 0.001}
        self.plan["predicted"]["lower_bound_seconds"] = 99
        problems = self.check(code=FAILED)["problems"]
        self.assertEqual(len(problems), 2)
        self.assertIn("micro_batches[0].groups[0].predicted.seconds: ", problems[0])
        self.assertIn("predicted.lower_bound_seconds: 99", problems[1])

    def test_room(self):
        self.plan["lengths"][1] = 6450
        self.assertIn("micro_batches[0].groups[1]: 6450 tokens, but a group of 1 rank holds 6449",
                      self.check(code=FAILED)["problems"][0])
        self.assertTrue(self.check("--memory", "40GiB")["ok"])
        self.assertIn("context's 100000", self.check("--context", 100000, code=FAILED)["problems"][0])
        self.assertIn("--ranks 64", self.check("--ranks", 128, code=FAILED)["problems"][0])

    def test_plans_of_models_too(self):
        plan = uniform_plan("llama", [17, 1, 40], 2, 2)
        path = self.write("plan.json", json.dumps(plan))
        arguments = ["flexsp", "check", path]
        self.assertIn("parts[1].recompute: 'light'", self.json_of(*arguments, code=FAILED)["problems"][0])
        parts = plan["programs"]["all"][0]["parts"]
        parts[1]["recompute"] = "none"
        self.write("plan.json", json.dumps(plan))
        self.assertTrue(self.json_of(*arguments)["ok"])
        parts[0]["strategy"] = "AllGatherKV"
        self.write("plan.json", json.dumps(plan))
        self.assertIn("'AllGatherKV' on 2 ranks", self.json_of(*arguments, code=FAILED)["problems"][0])

    def test_errors(self):
        self.assertIn("did you mean 'flexsp'?", self.refused("--space", "flexps"))
        for flag, value in ("--ranks", 64), ("--context", 9), ("--memory", "1GiB"):
            self.assertIn(f"{flag} needs a preset", self.refused(flag, value))
        for flag in ["--overlap"], ["--weight-domain", "node"]:
            self.assertIn("--space full", self.refused("--model", "flexsp-7b", *flag))
            self.assertIn(flag[0] + " needs a preset", self.refused("--space", "full", *flag))
        self.assertIn("only on a100-40gb-8x8", self.refused("--model", "flexsp-7b", "--cluster", "64xH100"))
        self.assertIn("no such preset", self.refused("--model", "flexsp-8b"))
        self.assertIn("--ranks", self.refused("--model", "flexsp-7b", "--ranks", 0))


if __name__ == "__main__":
    unittest.main()
