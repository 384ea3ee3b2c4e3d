"""paradyse.plan_batch: the plans of `paradyse plan batch`."""

import json
import random
import subprocess
import sys
import threading
import time
import unittest

import numpy
import paradyse

from batches import A100, LLAMA, BatchTest, lengths_of
from support import PARADYSE, TINY_EVOFORMER

STDIT = """
model_type = "stdit"
depth = 2
hidden_size = 256
num_heads = 8
in_channels = 4
patch_size = 2
"""

# What a rank does by itself: no message, no clock, no order of a hash table.
RANK = """
import random, sys, paradyse
model = paradyse.Model.from_folder(sys.argv[1])
cluster = paradyse.Cluster.from_file(sys.argv[2], ranks=8)
draw = random.Random(7)
lengths = [1 + int(draw.lognormvariate(7, 1.66)) for _ in range(60)]
print(paradyse.plan_batch(model, lengths, cluster, space="full", seed=3).to_json(), end="")
"""


class PlanBatchTest(BatchTest):
    def setUp(self):
        super().setUp()
        self.model = paradyse.Model.from_folder(self.write("model.toml", LLAMA))
        self.cluster = paradyse.Cluster.from_file(A100, ranks=8)

    def streamed(self, batches, *arguments):
        """The lines that --stream prints for them."""
        done = subprocess.run(
            [PARADYSE, "plan", "batch", "--stream", "--lengths", "-", "--model", self.folder / "model.toml",
             "--cluster", A100, "--ranks", "8", *arguments],
            input="".join(" ".join(map(str, batch)) + "\n" for batch in batches), capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), len(batches))
        return done.returncode, lines

    def test_200_random_batches_are_the_command_lines_to_the_byte(self):
        draw = random.Random(1)
        spaces = [("flexsp", {}), ("full", {}), ("full", {"group_sizes": [1, 2, 8], "seed": 5}),
                  ("flexsp", {"planner": "longest-first"})]
        for number, (space, how) in enumerate(spaces):
            batches = [lengths_of(draw.randint(1, 40), 1000 * number + i, most=20_000) for i in range(50)]
            options = []
            for name, value in {"space": space, **how}.items():
                text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
                options += ["--" + name.replace("_", "-"), text]
            code, lines = self.streamed(batches, *options)
            self.assertEqual(code, 0)
            for batch, line in zip(batches, lines):
                plan = paradyse.plan_batch(self.model, batch, self.cluster, space=space, **how)
                self.assertEqual(plan.to_json(one_line=True), line)

    def test_a_plan_file_has_the_same_plan_and_says_where_documents_stand(self):
        lengths = [3000, 20_000, 10, 5, 700]
        text = "3000\n\n20000\n10\n5\n700\n"
        out = self.folder / "plan.json"
        made = self.on_cluster(lengths, "--context", 12_000, "--out", out)
        self.write("lengths.txt", text)
        self.run_program(*made)
        there = paradyse.Plan.from_file(out)
        self.assertEqual(there.source.tolist(), [1, 4, 5, 6])
        here = paradyse.plan_batch(self.model, [3000, 10, 5, 700], self.cluster)
        self.assertEqual(here.hash, there.hash)
        self.assertEqual(here.source.tolist(), [])
        self.assertNotIn("source", json.loads(here.to_json()))

    def test_every_rank_makes_the_same_plan_without_a_message(self):
        model = self.folder / "model.toml"
        texts = {subprocess.run([sys.executable, "-c", RANK, model, A100], capture_output=True, text=True,
                                check=True).stdout for _ in range(3)}
        self.assertEqual(len(texts), 1)
        self.assertIn('"micro_batches"', texts.pop())

    def test_a_plan_is_small_typed_values(self):
        lengths = numpy.array(lengths_of(40, 2, most=20_000))
        plan = paradyse.plan_batch(self.model, lengths, self.cluster, simulate=True)
        self.assertEqual(plan.lengths.dtype, numpy.int64)
        numpy.testing.assert_array_equal(plan.lengths, lengths)
        with self.assertRaises(ValueError):
            plan.lengths[0] = 1  # nobody changes a plan
        documents = sorted(d for m in plan.micro_batches for g in m.groups for d in g.documents)
        self.assertEqual(documents, list(range(len(lengths))))
        for micro_batch in plan.micro_batches:
            self.assertEqual(sorted(r for g in micro_batch.groups for r in g.ranks), list(range(8)))
            self.assertEqual(max(g.predicted_seconds or 0 for g in micro_batch.groups) > 0, True)
            for group in micro_batch.groups:
                self.assertIn(group.program, plan.programs)
                self.assertEqual(micro_batch.group_of(group.ranks[-1]).ranks, group.ranks)
        self.assertEqual([part.part for part in plan.programs[group.program][0].parts], ["attention", "mlp"])
        self.assertGreaterEqual(plan.predicted_seconds, plan.lower_bound_seconds)
        self.assertAlmostEqual(plan.gap, plan.predicted_seconds / plan.lower_bound_seconds - 1)
        self.assertEqual(plan.simulated_seconds,
                         paradyse.simulate(plan, self.model, self.cluster).seconds)
        self.assertIn("share of rank time", plan.explanation)
        again = paradyse.Plan.from_json(plan.to_json())
        self.assertEqual(again, plan)
        self.assertEqual(again.to_json(), plan.to_json())
        plan.write(self.folder / "plan.json")
        self.assertEqual(paradyse.Plan.from_file(self.folder / "plan.json"), plan)
        self.assertEqual(paradyse.check(plan, self.model, cluster=self.cluster), [])
        self.assertEqual(paradyse.bound(self.model, lengths, self.cluster), (plan.lower_bound_seconds, plan.bound))

    def test_20_random_batches_of_samples_are_the_command_lines(self):
        draw = random.Random(3)
        sizes = {"frames": (1, 4, 16, 32), "patches": (64, 256, 1024), "sequences": (4, 16, 32), "residues": (8, 24, 120)}
        out = self.folder / "plan.json"
        proved = []
        for text, names in ((STDIT, ("frames", "patches")), (TINY_EVOFORMER, ("sequences", "residues"))):
            path = self.write("samples.toml", text)
            model = paradyse.Model.from_folder(path)
            for number in range(10):
                samples = [{name: draw.choice(sizes[name]) for name in names} for _ in range(draw.randint(1, 12))]
                how = [{"space": "full"}, {"space": "flexsp", "planner": "longest-first"}, {"seed": 5}][number % 3]
                lines = "".join(" ".join(f"{name}={size}" for name, size in sample.items()) + "\n"
                                for sample in samples)
                options = [word for name, value in how.items() for word in ("--" + name, value)]
                told = self.json_of("plan", "batch", "--model", path, "--cluster", A100, "--ranks", 8, "--samples",
                                    self.write("samples.txt", lines), "--out", out, *options)
                plan = paradyse.plan_batch(model, samples, self.cluster, simulate=True, **how)
                self.assertEqual(plan.hash, told["hash"])
                here, there = json.loads(plan.to_json()), json.loads(out.read_text())
                for differs in "source", "planner":  # lines of a file, and the seconds of planning
                    there.pop(differs)
                    here.pop(differs, None)
                self.assertEqual(here, there)
                self.assertEqual(plan.simulated_seconds, told["simulated_seconds"])
                self.assertEqual(plan.gap, told["gap"])
                self.assertEqual(paradyse.check(plan, model, cluster=self.cluster), [])
                bound, argument = paradyse.bound(model, samples, self.cluster, space=how.get("space", "flexsp"))
                if plan.optimal:  # what is proved is above what is counted
                    self.assertLessEqual(bound, plan.predicted_seconds)
                else:
                    self.assertEqual((bound, argument), (told["lower_bound_seconds"], told["bound"]))
                proved.append(plan.optimal)
        self.assertEqual(set(proved), {False, True})

    def test_samples_by_name_and_from_numpy(self):
        model = paradyse.Model.from_folder(self.write("samples.toml", STDIT))
        samples = [{"frames": numpy.int64(16), "patches": numpy.int32(256)}, {"patches": 64, "frames": 1}]
        plan = paradyse.plan_batch(model, samples=samples, cluster=self.cluster)
        self.assertEqual(plan.lengths.tolist(), [16 * 256, 64])
        self.assertEqual(plan, paradyse.plan_batch(model, tuple(samples), self.cluster))

    def test_bad_samples_are_named(self):
        video = paradyse.Model.from_folder(self.write("samples.toml", STDIT))
        good = {"frames": 1, "patches": 4}
        for model, batch, said in (
                (video, [good, {"frames": 1}], "sample 1: 'frames=1' does not say patches; expected frames=N patches=N"),
                (video, [good, {**good, "patchs": 1}], r"sample 1: 'patchs=1': .* no such size \(did you mean 'patches'"),
                (video, [{"frames": 0, "patches": 1}], "sample 0: 'frames=0': a size is a whole number from 1"),
                (video, [{"frames": 1 << 24, "patches": 1 << 24}], "sample 0: .* too large"),
                (video, [{"frames=1,patches": 4}], "no such size"),
                (video, [], "a batch needs at least one sample"),
                (video, [64], "lengths are for language models: stdit is a video or protein model; give samples"),
                (self.model, [good], "samples are for video and protein models: llama is a language model"),
                (self.model, [], "a batch needs at least one document")):
            with self.assertRaisesRegex(ValueError, said):
                paradyse.plan_batch(model, batch, self.cluster)
        for batch in ([{"frames": 1.5, "patches": 1}], [{"frames": "1", "patches": 1}], [good, 5], good):
            with self.assertRaises(TypeError):
                paradyse.plan_batch(video, batch, self.cluster)
        with self.assertRaisesRegex(paradyse.NoPlan, r"sample 1 \(frames 64, patches 16384\) finds no room"):
            paradyse.plan_batch(video, [good, {"frames": 64, "patches": 16_384}], self.cluster, memory="300MiB")

    def test_group_sizes(self):
        lengths = lengths_of(60, 4, most=20_000)
        plan = paradyse.plan_batch(self.model, lengths, self.cluster, group_sizes=[2, 4])
        sizes = {len(g.ranks) for m in plan.micro_batches for g in m.groups if g.documents}
        self.assertLessEqual(sizes, {2, 4})
        with self.assertRaisesRegex(ValueError, "--group-sizes 3: there are no such groups here; accepted: 1, 2, 4, 8"):
            paradyse.plan_batch(self.model, lengths, self.cluster, group_sizes=[2, 3])

    def test_errors_have_the_programs_texts(self):
        small = {"memory": "5GiB"}
        lengths = [700, 150_000, 20, 120_000]
        said = self.error_of(*self.on_cluster(lengths, "--memory", "5GiB"))
        with self.assertRaises(paradyse.NoPlan) as found:
            paradyse.plan_batch(self.model, lengths, self.cluster, **small)
        self.assertIn(str(found.exception), said)
        self.assertIn("document 1 has 150000 tokens", said)
        for arguments, options in (({"planner": "fats"}, ["--planner", "fats"]),
                                   ({"space": "ful"}, ["--space", "ful"]), ({"overlap": True}, ["--overlap"]),
                                   ({"weight_domain": "nodes"}, ["--weight-domain", "nodes"])):
            with self.assertRaises(ValueError) as found:
                paradyse.plan_batch(self.model, [5], self.cluster, **arguments)
            self.assertIn(str(found.exception), self.error_of(*self.on_cluster([5], *options)))
        for arguments, words in (({"memory": "much"}, "512MiB"), ({"memory": 0}, "at least one byte"),
                                 ({"reserve": 2}, "from 0 to 0.9"), ({"dtype": "bfloat"}, "did you mean 'bfloat16'")):
            with self.assertRaisesRegex(ValueError, words):
                paradyse.plan_batch(self.model, [5], self.cluster, **arguments)
        for lengths, words in (([], "at least one document"), ([5, 0], "document 1 has 0 tokens")):
            with self.assertRaisesRegex(ValueError, words):
                paradyse.plan_batch(self.model, lengths, self.cluster)
        with self.assertRaises(TypeError):
            paradyse.plan_batch(self.model, ["5"], self.cluster)

    def test_other_threads_run_while_it_plans(self):
        lengths = lengths_of(512, 9, most=20_000)
        done = threading.Event()
        plans = []

        def plan():
            plans.append(paradyse.plan_batch(self.model, lengths, self.cluster, space="full", moves=3))
            done.set()

        thread = threading.Thread(target=plan)
        thread.start()
        turns = 0
        while not done.is_set():
            time.sleep(0.001)
            turns += 1
        thread.join()
        self.assertEqual(len(plans), 1)
        # with the GIL held, this thread would have stood still until the plan was there
        self.assertGreater(turns, 20)


if __name__ == "__main__":
    unittest.main()
