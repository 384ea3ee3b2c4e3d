"""Plans in other loops: Megatron's scheduler, Hugging Face's Trainer, TRL's SFTTrainer."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest

import paradyse.torch as pt
from ranks import LONG, llama, planner

ROOT = pathlib.Path(__file__).resolve().parents[3]
LENGTHS = [90, 3, 500, 40, 41, 7, 260, 5]


def has(*packages):
    return [name for name in packages if importlib.util.find_spec(name) is None]


def launched(ranks, script, *arguments):
    """What `torchrun` of an example, or of a file here, printed; it has a deadline."""
    folder = pathlib.Path(__file__).resolve().parent if script == "loops.py" else ROOT / "examples/torch"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
         folder / script, *arguments], capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise AssertionError(done.stderr[-4000:])
    return done.stdout


class AdaptersTest(unittest.TestCase):
    def test_megatrons_shape(self):
        mine = planner(llama(), ranks=4, memory=400_000)
        samples = [(100 + i, n) for i, n in enumerate(LENGTHS)]
        groups, ids = pt.MegatronScheduler(mine).get_groups_and_subsamples(samples, None)
        of = dict(samples)
        self.assertGreater(len(groups), 1)
        self.assertEqual(len(groups), len(ids))
        holders = {}
        for m, (lengths, names) in enumerate(zip(groups, ids)):
            self.assertEqual((len(lengths), len(names)), (4, 4))  # ranks
            for rank, (of_rank, name) in enumerate(zip(lengths, names)):
                self.assertEqual(of_rank, [of[sample] for sample in name])
                for sample in name:
                    holders.setdefault(sample, []).append((m, rank))
        self.assertEqual(set(holders), set(of))
        for places in holders.values():  # a group of one micro-batch, a power of two
            self.assertEqual(len({m for m, _ in places}), 1)
            self.assertIn(len(places), (1, 2, 4))

    def test_megatrons_own_scheduler_has_the_same_shape(self):
        try:
            from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler
        except ImportError as error:
            self.skipTest(f"no megatron-core: {error}")
        samples = list(enumerate(LENGTHS))
        four = type("Group", (), {"size": lambda self: 4})()
        groups, ids = BalancedCPScheduler(250, four).get_groups_and_subsamples(samples, None)
        mine = pt.MegatronScheduler(planner(llama(), ranks=4, memory=400_000)).get_groups_and_subsamples(samples, None)
        for found in ((groups, ids), mine):
            for lengths, names in zip(*found):
                self.assertEqual([len(of_rank) for of_rank in lengths], [len(of_rank) for of_rank in names])
                self.assertEqual(len(names), 4)
                for of_rank, name in zip(lengths, names):
                    self.assertEqual(list(of_rank), [LENGTHS[sample] for sample in name])

    def test_settings_that_would_do_nothing_are_refused(self):
        class Trainer:
            """As transformers.Trainer keeps what it is given."""
            __module__ = "transformers.trainer"

            def __init__(self, config=None, compute_loss_func=None, **arguments):
                self.args = types.SimpleNamespace(**{"gradient_accumulation_steps": 1, "max_steps": 5, **arguments})
                self.model, self.compute_loss_func = types.SimpleNamespace(config=config), compute_loss_func

            def compute_loss(self):
                pass

        class Mine(pt.StepTrainer, Trainer):
            pass

        class Weighted(Mine):
            def compute_loss(self):
                pass

        class Preferences(Trainer):
            __module__ = "trl.trainer.dpo_trainer"

            def compute_loss(self):
                pass

        class Dpo(pt.StepTrainer, Preferences):
            pass

        made = lambda kind=Mine, **more: kind(steps=None, items=None, **more)
        routed = types.SimpleNamespace(output_router_logits=True)
        for kind, given, words in (
                (Mine, {"label_smoothing_factor": 0.1}, "label_smoothing_factor"), (Mine, {"fp16": True}, "fp16"),
                (Mine, {"loss_type": "dft"}, "loss_type"), (Mine, {"compute_loss_func": len}, "compute_loss_func"),
                (Mine, {"config": routed}, "model.config.output_router_logits"),
                (Weighted, {}, "Weighted.compute_loss"), (Dpo, {}, "Preferences.compute_loss"),
                (Mine, {"fp16": True, "loss_type": "dft"}, "fp16, loss_type")):
            with self.subTest(words), self.assertRaisesRegex(ValueError, f"so {words} would do nothing"):
                made(kind, **given)
        with self.assertRaisesRegex(ValueError, "gradient_accumulation_steps=1"):
            made(gradient_accumulation_steps=2)
        made(label_smoothing_factor=0.0, fp16=False, loss_type="nll", config=types.SimpleNamespace())
        for skip, documents, words in ((False, 5, "ignore_data_skip=True"), (True, 0, "steps.load_state_dict")):
            one = made(ignore_data_skip=skip)
            one._steps = types.SimpleNamespace(documents=documents)
            with self.assertRaisesRegex(ValueError, words):
                one.train(resume_from_checkpoint=True)

    @unittest.skipIf(has("accelerate"), "no accelerate in this Python")
    def test_loops_of_others_train_and_evaluate_the_same_on_one_rank_and_on_two(self):
        for loop in ("trainer", "accelerate"):
            with tempfile.TemporaryDirectory() as folder, self.subTest(loop):
                one, two = (json.loads(launched(ranks, "loops.py", loop, folder).splitlines()[-1]) for ranks in (1, 2))
                self.assertEqual((len(one["losses"]), len(one["evaluated"])), (4, 2 if loop == "trainer" else 4))
                for mine, wanted in zip(two["losses"], one["losses"], strict=True):
                    self.assertAlmostEqual(mine / wanted, 1, delta=1e-5)
                self.assertLess(one["losses"][-1], one["losses"][0] - 0.1)  # it learns
                for mine, wanted in zip(two["evaluated"], one["evaluated"], strict=True):
                    self.assertAlmostEqual(mine / wanted, 1, delta=1e-3)  # Trainer's means are of batches
                if loop == "trainer":
                    self.assertAlmostEqual(one["evaluated"][-1] / one["alone"], 1, delta=1e-6)
                    self.assertEqual((one["shape"][0], one["shape"][2], two["shape"][0]), (4, 128, 4))
                    self.assertAlmostEqual(two["predicted"] / one["predicted"], 1, delta=1e-3)
                    self.assertEqual([len(ids) for ids in one["generated"]], [7] * 4)
                    self.assertEqual(two["generated"], one["generated"])

    @unittest.skipUnless(LONG, "in make test-long")
    def test_trl_trains_the_same_on_one_rank_and_on_several(self):
        if missing := has("trl", "datasets", "accelerate"):
            self.skipTest(f"no {', '.join(missing)}")
        with tempfile.TemporaryDirectory() as folder:
            said = [launched(ranks, "trl_sft.py", folder) for ranks in (1, 3)]
        steps = [re.findall(r"'loss': '([\d.]+)', 'grad_norm': '([\d.]+)'", text) for text in said]
        self.assertEqual(len(steps[0]), 6)
        for one, several in zip(*steps, strict=True):
            for mine, wanted in zip(several, one):
                self.assertAlmostEqual(float(mine) / float(wanted), 1, delta=2e-3)  # four digits are printed
        self.assertLess(float(steps[0][-1][0]), float(steps[0][0][0]) - 0.3)  # it learns

    @unittest.skipUnless(LONG, "in make test-long; docs_case.py is as much for make test")
    def test_llama_example_by_ddp_and_fsdp2(self):
        losses = {}
        for weights in ("ddp", "fsdp2"):
            said = launched(4, "llama.py", "--weights", weights, "--seconds", "1", "--steps", "4")
            self.assertRegex(said, r"gradients by at most \d\.\de-0[67]")
            losses[weights] = [float(loss) for loss in re.findall(r"loss (\d\.\d+),", said)]
            self.assertEqual(len(losses[weights]), 4)
        for ddp, fsdp2 in zip(losses.get("ddp", []), losses["fsdp2"]):
            self.assertAlmostEqual(ddp, fsdp2, delta=2e-3)
        self.assertLess(losses["fsdp2"][-1], losses["fsdp2"][0] - 0.1)  # it learns


if __name__ == "__main__":
    unittest.main()
