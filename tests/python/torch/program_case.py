"""The program paradyse plays the plans of paradyse.torch: the same loss and gradients, by another runtime."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import paradyse.torch as pt
import safetensors.torch
import torch
from ranks import documents, hows, llama, on_ranks, planner, played, worst

PROGRAM = os.environ.get("PARADYSE", "")
LENGTHS = [29, 5, 1, 13, 40, 2]


def by_torch(rank, folder, weights):
    model = llama(12, 4, torch.float64)
    if rank == 0:
        model.save_pretrained(folder / "model")
    model.config.architectures = ["LlamaForCausalLM"]
    pt.attach(model)
    model.train()
    mine = planner(model, memory=60_000 if weights == "ddp" else "1GiB", weights=weights, recompute=weights == "ddp")
    plan = mine.plan(LENGTHS)
    if rank == 0:
        plan.write(folder / "plan.json")
    loss, grads = played(model, pt.Step(plan, range(len(LENGTHS)), mine), documents(LENGTHS, 7))
    return (loss, {name: grad.numpy() for name, grad in grads.items()}, len(plan.micro_batches),
            sorted({len(g.ranks) for m in plan.micro_batches for g in m.groups}))


class ProgramTest(unittest.TestCase):
    @unittest.skipUnless(pathlib.Path(PROGRAM).is_file(), "no program paradyse (PARADYSE names it)")
    def test_losses_and_gradients_of_the_same_plan(self):
        for weights in hows()[1:]:
            with tempfile.TemporaryDirectory() as name, self.subTest(weights):
                folder = pathlib.Path(name)
                loss, grads, micro_batches, sizes = on_ranks(4, by_torch, folder, weights)[0]
                self.assertGreater(max(sizes), 1)
                with open(folder / "data.jsonl", "w") as file:
                    for item in documents(LENGTHS, 7):
                        file.write(json.dumps({"tokens": item["input_ids"], "labels": item["labels"]}) + "\n")
                done = subprocess.run(
                    [PROGRAM, "grad", "--model", folder / "model", "--data", folder / "data.jsonl", "--plan",
                     folder / "plan.json", "--dtype", "float64", "--out", folder / "grads.safetensors", "--json"],
                    capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stderr)
                said = json.loads(done.stdout)
                self.assertLess(abs(said["loss"] - loss) / loss, 1e-9)
                theirs = safetensors.torch.load_file(folder / "grads.safetensors")
                mine = {name: torch.from_numpy(grad) for name, grad in grads.items()}
                self.assertLess(worst(mine, theirs), 1e-9)


if __name__ == "__main__":
    unittest.main()
