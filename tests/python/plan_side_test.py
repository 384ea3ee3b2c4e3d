"""paradyse: models, clusters, costs; layers, documents, layouts; the checker and the simulator."""

import json
import os
import pathlib
import unittest

import paradyse

from batches import A100, LLAMA
from support import GOLDEN, TINY_EVOFORMER, TINY_LLAMA, ProgramTest

ROOT = GOLDEN.parent.parent
WAYS = [("fast", 1.0, 100, 30), ("small", 3.0, 20, 70), ("middle", 1.8, 60, 10)]


class PlanSideTest(ProgramTest):
    def test_models(self):
        folder = ROOT / "tests/golden/hf_llama_gqa"
        model = paradyse.Model.from_folder(folder)
        same = paradyse.Model.from_config((folder / "config.json").read_text())
        self.assertEqual((model.name, model.sha256, model.layers), (same.name, same.sha256, same.layers))
        self.assertGreater(model.parameters, 0)
        self.assertEqual(paradyse.Model.from_folder("evoformer").layers, 48)
        self.assertEqual(paradyse.Model.from_folder(ROOT / "tests/golden/hf_gpt2").longest is not None, True)
        for path, words in (("nowhere", "nowhere: is not there; give a Hugging Face model folder"),
                            (self.write("m.toml", "a = "), "is not TOML"),
                            (self.folder, "is a folder without config.json")):
            with self.assertRaisesRegex(ValueError, words):
                paradyse.Model.from_folder(path)
        with self.assertRaisesRegex(ValueError, "config.json"):
            paradyse.Model.from_config("{}")

    def test_clusters(self):
        cluster = paradyse.Cluster.from_file(A100)
        self.assertEqual((cluster.ranks, cluster.ranks_per_node), (64, 8))
        self.assertEqual(paradyse.Cluster.from_toml(cluster.to_toml()), cluster)
        small = paradyse.Cluster.from_file(A100, ranks=16, memory="12GiB")
        self.assertEqual(small.memory.tolist(), [12 << 30] * 16)
        with self.assertRaisesRegex(ValueError, "--ranks 12: .* has 8 ranks a node; give whole nodes"):
            paradyse.Cluster.from_file(A100, ranks=12)
        with self.assertRaisesRegex(ValueError, "nowhere.toml: is not there"):
            paradyse.Cluster.from_file("nowhere.toml")

    def test_layers(self):
        candidates = [paradyse.LayerCost(*way) for way in WAYS]
        costs = self.write("costs.json", json.dumps({"options": [
            dict(zip(("name", "seconds", "saved_bytes", "transient_bytes"), way)) for way in WAYS]}))
        for capacity in (300, 310, 400):
            mix = paradyse.plan_layers(candidates, 4, capacity)
            found = self.json_of("plan", "layers", "--costs", costs, "--layers", 4, "--capacity", capacity)
            self.assertEqual([{"name": name, "layers": layers} for name, layers in mix.order], found["order"])
            self.assertEqual((mix.seconds, mix.peak_bytes), (found["seconds"], found["peak_bytes"]))
        with self.assertRaisesRegex(paradyse.NoPlan, "needs 150 bytes, 1 more than 149"):
            paradyse.plan_layers(candidates, 4, 149)
        with self.assertRaisesRegex(ValueError, "paradyse-heuristic"):
            paradyse.plan_layers(candidates, 4, 300, planner="exat")

    def expect_plans_of_training(self, model, costs):
        """Each step that is trained by these costs has the plan of plan_step."""
        texts = self.folder / "texts"
        texts.mkdir()
        for i in range(12):
            (texts / f"{i}.txt").write_text("the quick brown fox\n" * (1 + i * i))
        self.run_program(
            "train", "--model", model, "--data", texts, "--ranks", 2, "--set", f'costs.file="{costs}"', "--set",
            "costs.correct=false", "--set", "train.steps=3", "--set", "train.tokens_per_step=4000", "--set",
            'parallel.memory_per_rank="64MiB"', "--set", f'output.folder="{self.folder}/runs"', "--set",
            'output.name="one"', "--set", "checkpoint.keep=0", "--set", "output.model=false", "--set",
            'parallel.weight_domain="world"')
        files = sorted((self.folder / "runs/one/plans").glob("step-*.json"))
        self.assertEqual(len(files), 3)
        for file in files:
            trained = paradyse.Plan.from_file(file)
            plan = paradyse.plan_step(paradyse.Model.from_folder(model), trained.lengths,
                                      costs=paradyse.Costs.from_file(costs), memory="64MiB")
            self.assertEqual(plan.hash, trained.hash)

    def test_a_document_by_measured_costs(self):
        model = self.write("model.toml", TINY_LLAMA.format(layers=2))
        profile, costs = self.folder / "p.jsonl", self.folder / "costs.json"
        self.run_program("profile", "--model", model, "--ranks", 2, "--lengths", "16,64,256", "--out", profile)
        self.run_program("fit", "--profile", profile, "--out", costs)
        for length, memory in ((100, None), (3000, "64MiB"), (900, "4MiB")):
            found = self.json_of("plan", "layers", "--model", model, "--length", length, "--ranks", 2, "--fitted", costs,
                                 *(["--capacity", memory] if memory else []))
            plan = paradyse.plan_document(paradyse.Model.from_folder(model), length,
                                          costs=paradyse.Costs.from_file(costs), memory=memory)
            self.assertEqual(plan.seconds, found["seconds"])
            self.assertEqual(plan.peak_bytes, found["bytes"]["peak"])
            self.assertEqual([(run.layers, run.parts[0].strategy) for run in plan.program],
                             [(run["layers"], run["attention"]) for run in found["program"]])
        self.expect_plans_of_training(model, costs)
        with self.assertRaisesRegex(paradyse.NoPlan, "tokens"):
            paradyse.plan_document(paradyse.Model.from_folder(model), 100_000,
                                   costs=paradyse.Costs.from_file(costs), memory="1MiB")
        for ask, asked in ((paradyse.plan_document, 2**60), (paradyse.plan_step, [3, 2**60])):
            with self.assertRaisesRegex(ValueError, "which is too large"):
                ask(paradyse.Model.from_folder(model), asked, costs=paradyse.Costs.from_file(costs))
        with self.assertRaisesRegex(ValueError, "ranks 65537: accepted are 1 to 65536"):
            paradyse.plan_step(paradyse.Model.from_folder(model), [5], costs=paradyse.Costs.from_file(costs), ranks=65537)
        with self.assertRaisesRegex(ValueError, "nowhere.json: is not there"):
            paradyse.Costs.from_file("nowhere.json")

    def test_layouts(self):
        path = ROOT / "configs/models/stdit_tiny.toml"
        model = paradyse.Model.from_folder(path)
        layout = paradyse.plan_layout(model, 4, {"frames": 8, "patches": 16})
        out = self.folder / "plan.json"
        found = self.json_of("plan", "layout", "--model", path, "--ranks", 4, "--frames", 8, "--tokens", 16, "--out", out)
        self.assertEqual(layout.hash, paradyse.Plan.from_file(out).hash)
        self.assertEqual(layout.cost.elements_forward, found["elements_per_rank_forward"])
        self.assertIsNone(layout.cost.seconds)
        self.assertEqual(set(layout.rivals), set(found["rivals"]))
        for name, cost in layout.rivals.items():
            self.assertEqual(cost.elements_backward, found["rivals"][name]["elements_per_rank_backward"])
        self.assertEqual(paradyse.check(layout, model), [])
        protein = paradyse.Model.from_folder(self.write("evoformer.toml", TINY_EVOFORMER))
        sizes = {"sequences": 8, "residues": 12}  # of which i and j are the same
        self.assertEqual(paradyse.plan_layout(protein, 4, sizes),
                         paradyse.plan_layout(protein, 4, {**sizes, "i": 12, "j": 12}))
        timed = paradyse.plan_layout(model, 4, {"frames": 8, "patches": 16}, cluster=paradyse.Cluster.from_file(A100))
        self.assertGreater(timed.cost.seconds, 0)
        for dims, mesh, words in (({"frames": 8}, [], "needs the size of its dim 'patches'"),
                                  ({"frames": 8, "patches": 0}, [], "patches is 0"),
                                  ({"frames": 8, "patches": 4, "rows": 2}, [], "rows: model .* has no such dim"),
                                  ({"frames": 8, "patches": 4}, [3, 2], "--mesh 3,2")):
            with self.assertRaisesRegex(ValueError, words):
                paradyse.plan_layout(model, 4, dims, mesh=mesh)

    def test_the_checker_and_the_simulator(self):
        path = self.write("model.toml", LLAMA)
        model = paradyse.Model.from_folder(path)
        cluster = paradyse.Cluster.from_file(A100, ranks=8)
        plan = paradyse.plan_batch(model, [9000, 5000, 400, 20], cluster)
        out = self.folder / "plan.json"
        plan.write(out)
        found = self.json_of("simulate", "--model", path, "--cluster", A100, "--ranks", 8, "--plan", out)
        simulation = paradyse.simulate(plan, model, cluster)
        self.assertEqual(simulation.seconds, found["seconds"])
        self.assertEqual(simulation.tokens, 14_420)
        self.assertEqual(simulation.bytes_sent, found["bytes_sent"])
        self.assertEqual(int(simulation.peak_bytes.max()), found["fullest"]["peak_bytes"])
        self.assertTrue(simulation.fits)
        self.assertEqual(len(simulation.micro_batches), len(plan.micro_batches))
        self.assertGreater(paradyse.simulate(plan, model, cluster, additive=True).seconds, simulation.seconds)

    def test_a_plan_replaces_plans_alone(self):
        model = paradyse.Model.from_folder(self.write("model.toml", LLAMA))
        cluster = paradyse.Cluster.from_file(A100, ranks=8)
        plan, other = (paradyse.plan_batch(model, lengths, cluster) for lengths in ([400, 20], [90]))
        out, link = self.folder / "plan.json", self.folder / "link"
        link.symlink_to(out)
        out.write_text("")  # as `mktemp` makes one
        other.write(out)
        plan.write(link)
        self.assertTrue(link.is_symlink())
        self.assertEqual(paradyse.Plan.from_file(out), plan)
        for mine in ("my thesis", '{"a": 1}', '{"format": "paradyse-costs", "version": 1}', "\0" * 300):
            out.write_text(mine)
            for path in (out, str(out), link):
                with self.subTest(mine[:9]), self.assertRaisesRegex(
                        FileExistsError, f"{path}: exists and is not a plan of paradyse, .*force=True"):
                    plan.write(path)
                self.assertEqual(out.read_text(), mine)
        # what the program says of the same file
        said = self.error_of("simulate", "--model", self.folder / "model.toml", "--cluster", A100, "--length", 64,
                           "--save-plan", out)
        self.assertIn("exists and is not a plan of paradyse, so it is not replaced", said)
        plan.write(out, force=True)
        self.assertEqual(paradyse.Plan.from_file(out), plan)

    def test_the_checker_of_a_plan(self):
        model = paradyse.Model.from_folder(self.write("model.toml", LLAMA))
        plan = paradyse.plan_batch(model, [9000, 5000, 400, 20], paradyse.Cluster.from_file(A100, ranks=8))
        text = json.loads(plan.to_json())
        text["micro_batches"][0]["groups"][0]["documents"] = [0, 7]
        wrong = paradyse.check(paradyse.Plan.from_json(json.dumps(text)))
        bad = self.write("bad.json", json.dumps(text))
        self.assertEqual(wrong, self.json_of("plan", "check", bad, code=1)["problems"])
        with self.assertRaisesRegex(ValueError, r"the key 'micro_batch' is not known|did you mean"):
            paradyse.Plan.from_json(json.dumps({**text, "micro_batch": []}))
        self.assertEqual(len(paradyse.check(plan, model, memory="1GiB")) > 0, True)
        with self.assertRaisesRegex(ValueError, "need model"):
            paradyse.check(plan, memory="1GiB")


class RangesTest(ProgramTest):
    """Python's arguments have the ranges of the program's options."""

    def test_numbers_beyond_what_the_program_takes(self):
        model = paradyse.Model.from_folder(ROOT / "tests/golden/hf_llama_gqa")
        cluster = paradyse.Cluster.from_file(A100)
        for ranks in (-1, 0, 65537):
            with self.assertRaisesRegex(ValueError, "1 to 65536 ranks"):
                paradyse.Cluster.from_file(A100, ranks=ranks)
        kind = paradyse.GroupCost(1, 100, [1.0])
        for given in ({"moves": float("nan")}, {"moves": float("inf")}, {"moves": -1.0}, {"threads": 0},
                      {"threads": 100000}):
            with self.subTest(given), self.assertRaisesRegex(ValueError, "accepted are 0 to 1000"):
                paradyse.plan_batch(model, [5, 6], cluster, **given)
            with self.subTest(given), self.assertRaisesRegex(ValueError, "accepted are 0 to 1000"):
                paradyse.plan_groups([5], [kind], 1, **given)
        with self.assertRaisesRegex(ValueError, "1 to 65536 ranks"):
            paradyse.plan_groups([5], [kind], 10**6)
        video = paradyse.Model.from_folder("stdit")
        dims = {"frames": 4, "patches": 16}
        for given in ({"ranks": 5000}, {"ranks": 0}, {"batch": 2**31 - 1}, {"mesh": [-2, -2]},
                      {"dims": {**dims, "frames": 2**24 + 1}}, {"dims": {"frames": 2**24, "patches": 2**24}},
                      {"ranks": 128, "cluster": cluster}):
            with self.subTest(given), self.assertRaises(ValueError):
                paradyse.plan_layout(video, **{"ranks": 4, "dims": dims, **given})

    def test_lengths_that_no_plan_counts(self):
        model = paradyse.Model.from_folder(ROOT / "tests/golden/hf_llama_gqa")
        cluster = paradyse.Cluster.from_file(A100)
        for length in (2**25, 2**48, 2**57, 2**60, 2**63 - 1):
            for ask in (paradyse.plan_batch, paradyse.bound):
                with self.subTest(length), self.assertRaisesRegex(ValueError, f"document 1 has {length} tokens, which is"):
                    ask(model, [3, length], cluster)
        for length in (2**41, 2**62):  # whose sum has no 64 bits
            with self.assertRaisesRegex(ValueError, f"{length} tokens: accepted are 1 to {2**40}"):
                paradyse.plan_groups([length] * 2, [paradyse.GroupCost(1, 2**63 - 1, [1.0] * 2)], 2)

    def test_texts_that_are_no_json(self):
        for text in ("x", "", "{", "[" * 100_000, "\xff", '{"model_type": 1e999}'):
            with self.subTest(text[:9]), self.assertRaisesRegex(ValueError, "config.json"):
                paradyse.Model.from_config(text)
        folder = self.folder / "m"
        folder.mkdir()
        (folder / "config.json").write_bytes(b'{"model_type": "\xff"}')
        with self.assertRaisesRegex(ValueError, r"config.json: .*\\xff"):
            paradyse.Model.from_folder(folder)
        for text in ("5", "[]", "null"):
            with self.subTest(text), self.assertRaises(ValueError):
                paradyse.Model.from_config(text)

    def test_a_folder_is_no_file_to_write(self):
        plan = paradyse.plan_groups([5], [paradyse.GroupCost(1, 100, [1.0])], 1)
        with self.assertRaises(OSError):
            plan.write(self.folder, force=True)
        theirs = os.fsdecode(bytes(self.folder) + b"/\xff")  # a name that is no UTF-8
        pathlib.Path(theirs).write_text("notes")
        with self.assertRaisesRegex(FileExistsError, r"\\xff: exists and is not a plan"):
            plan.write(theirs)


if __name__ == "__main__":
    unittest.main()
