"""The program paradyse trains by the plans of paradyse.torch: the same losses, step after step, by AdamW of both."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import paradyse.torch as pt
import torch
from ranks import documents, llama, on_ranks, planner, wrapped

PROGRAM = os.environ.get("PARADYSE", "")
LENGTHS = [29, 5, 3, 13, 40, 2]
STEPS, LR, BETAS, EPS, DECAY = 3, 1e-2, (0.9, 0.95), 1e-8, 0.1


def trained(rank, folder):
    """Losses of steps that are all of the same documents, and how many ranks groups have."""
    model = llama(12, 4, torch.float32)
    if rank == 0:
        model.save_pretrained(folder / "model")
    model.config.architectures = ["LlamaForCausalLM"]
    pt.attach(model)
    mine = planner(model, memory=44_000, weights="ddp")
    plan = mine.plan(LENGTHS)
    if rank == 0:
        plan.write(folder / "plan.json")
    ddp = wrapped(model, "ddp").train()
    matrices = [p for p in ddp.parameters() if p.ndim > 1]  # which alone decay, as in the program
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY},
                                   {"params": [p for p in ddp.parameters() if p.ndim < 2], "weight_decay": 0.0}],
                                  lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for _ in range(STEPS):
        losses.append(pt.Step(plan, range(len(LENGTHS)), mine).play(ddp, documents(LENGTHS, 7)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, sorted({len(g.ranks) for m in plan.micro_batches for g in m.groups}), len(plan.micro_batches)


class TrainTest(unittest.TestCase):
    @unittest.skipUnless(pathlib.Path(PROGRAM).is_file(), "no program paradyse (PARADYSE names it)")
    def test_losses_of_the_same_plan(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            losses, sizes, micro_batches = on_ranks(4, trained, folder)[0]
            self.assertGreater(max(sizes), 1)
            self.assertGreater(micro_batches, 1)
            self.assertLess(losses[-1], losses[0] - 0.05)
            with open(folder / "data.jsonl", "w") as file:
                for item in documents(LENGTHS, 7):
                    file.write(json.dumps({"tokens": item["input_ids"], "labels": item["labels"]}) + "\n")
            settings = {"output.folder": folder, "output.name": "run", "train.steps": STEPS, "train.dtype": "float32",
                        "train.tokens_per_step": sum(LENGTHS), "data.min_tokens": 1, "optimizer.lr": LR,
                        "optimizer.beta1": BETAS[0], "optimizer.beta2": BETAS[1], "optimizer.eps": EPS,
                        "optimizer.weight_decay": DECAY, "optimizer.max_grad_norm": 0, "optimizer.warmup_steps": 0,
                        "optimizer.min_lr_ratio": 1}
            done = subprocess.run(
                [PROGRAM, "train", "--model", folder / "model", "--data", folder / "data.jsonl", "--ranks", "4", "--plan",
                 folder / "plan.json", *(part for key, value in settings.items() for part in ("--set", f"{key}={value}"))],
                capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = (folder / "run/metrics.jsonl").read_text().splitlines()
            for line, wanted in zip(map(json.loads, lines), losses, strict=True):
                self.assertAlmostEqual(line["loss"] / wanted, 1, delta=1e-5)


if __name__ == "__main__":
    unittest.main()
