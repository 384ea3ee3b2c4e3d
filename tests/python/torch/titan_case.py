"""A torchtitan model, and the trainer's arithmetic on what its planned data loader yields."""

import copy
import importlib.util
import pathlib
import re
import sys
import tempfile
import types
import unittest

import paradyse.torch as pt
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from adapters_case import launched
from ranks import IGNORED, documents, on_ranks
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

ROOT = pathlib.Path(__file__).resolve().parents[3]
LENGTHS = [29, 5, 1, 13, 40, 2, 3]


def model_and_shape():
    import warnings
    warnings.filterwarnings("ignore")
    if not hasattr(torch.distributed.fsdp, "DataParallelMeshDims"):  # newer than 2.11; what needs it is not run here
        torch.distributed.fsdp.DataParallelMeshDims = object
    from torchtitan.models.llama3 import model_registry
    from paradyse.torch import titan
    config = model_registry("debugmodel", attn_backend="varlen").model
    config.layers = config.layers[:2]
    titan.attach(config)
    model = config.build()
    model.init_states(buffer_device=torch.device("cpu"))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.05 + ("norm" in name))
    return model, types.SimpleNamespace(num_attention_heads=16, num_hidden_layers=2, hidden_size=256)


class Plain(torch.nn.Module):
    def forward(self, q, k, v, *, attention_masks, scale=None, **kwargs):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2)


def alone(model, items):
    """Each document by itself, by PyTorch's attention."""
    for layer in model.layers.values():
        layer.attention.inner_attention = Plain()
    count = sum(label != IGNORED for item in items for label in item["labels"][1:])
    for item in items:
        ids = torch.tensor([item["input_ids"]])
        logits = model(ids, positions=torch.arange(ids.shape[1])[None])
        wanted = torch.tensor([*item["labels"][1:], IGNORED])
        (cross_entropy(logits[0], wanted, ignore_index=IGNORED, reduction="sum") / count).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def trained(rank):
    from paradyse.torch import titan
    model, shape = model_and_shape()
    items = documents(LENGTHS, 3)
    wanted = alone(copy.deepcopy(model), items)
    costs = pt.Costs(token=1e-3, square=1e-4, document=1e-3, token_bytes=1000)
    planner = pt.Planner(shape, costs=costs, memory=20_000, weights="ddp", deadline=60)
    steps = pt.Steps(LENGTHS, tokens_per_step=1000, planner=planner, seed=2)
    loader = titan.PlannedLoader.Config(steps=steps, items=items, micro_batches=6).build(
        dp_world_size=dist.get_world_size(), dp_rank=rank, tokenizer=None, seq_len=64, local_batch_size=1)
    batches = list(loader)  # as Trainer.train_step() takes them
    assert len(batches) == 6, len(batches)
    valid = sum((labels != IGNORED).sum() for _, labels in batches)
    dist.all_reduce(valid)
    for inputs, labels in batches:
        inputs = dict(inputs)
        logits = model(inputs.pop("input"), **inputs)
        (pt.loss_sum(logits, labels) / valid).backward()
    sizes = {len(g.ranks) for m in planner.plan(LENGTHS).micro_batches for g in m.groups}
    worst = 0.0
    for name, parameter in model.named_parameters():
        dist.all_reduce(parameter.grad)  # torchtitan sums: its division by ranks is switched off
        worst = max(worst, float((parameter.grad - wanted[name]).norm() / wanted[name].norm()))
    assert loader.state_dict() == steps.state_dict() and steps.documents == len(LENGTHS)
    for named, words in (({"dp_world_size": 2}, "plans are for 3 ranks"), ({"seq_len": 39}, "has 40 tokens")):
        try:
            loader.config.build(**named)
            raise AssertionError(named)
        except ValueError as error:
            assert words in str(error), error
    few = titan.PlannedLoader.Config(steps=pt.Steps(LENGTHS, tokens_per_step=1000, planner=planner), items=items)
    try:
        list(few.build())
        said = ""
    except ValueError as error:
        said = str(error)
    return worst, sizes, said


def one_step_of_the_trainer():
    """On each rank that torchrun starts: prints the largest difference of a gradient, and the largest group."""
    spec = importlib.util.spec_from_file_location("example", ROOT / "examples/torch/titan.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    dist.init_process_group("gloo")
    items = documents(LENGTHS, 3)
    shape = types.SimpleNamespace(num_attention_heads=16, num_hidden_layers=2, hidden_size=256)
    costs = pt.Costs(token=1e-3, square=1e-4, document=1e-3, token_bytes=1000)
    planner = pt.Planner(shape, costs=costs, memory=60_000 // dist.get_world_size(), weights="fsdp2", deadline=60)
    steps = pt.Steps(LENGTHS, tokens_per_step=1000, planner=planner, seed=2)
    with tempfile.TemporaryDirectory() as folder:
        trainer = example.Trained(example.config(folder, items, steps, max_norm=1e9))
        weights = {name: parameter.full_tensor().detach().clone()
                   for name, parameter in trainer.model_parts[0].named_parameters()}
        trainer.train_step(trainer.batch_generator(trainer.dataloader))
    model = trainer.model_config.build()
    model.init_states(buffer_device=torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    wanted = alone(model, items)
    found = {name: parameter.grad.full_tensor() for name, parameter in trainer.model_parts[0].named_parameters()}
    assert found.keys() == wanted.keys()
    worst = max(float((found[name] - wanted[name]).norm() / wanted[name].norm()) for name in wanted)
    size = max(len(g.ranks) for m in planner.plan(LENGTHS).micro_batches for g in m.groups)
    if dist.get_rank() == 0:
        print(f"gradients {worst:.3e}, groups of {size}")
    dist.destroy_process_group()


@unittest.skipUnless(importlib.util.find_spec("torchtitan"), "no torchtitan in this Python")
class TitanTest(unittest.TestCase):
    def test_a_step_has_the_gradients_of_one_process(self):
        for worst, sizes, said in on_ranks(3, trained, deadline=300):
            self.assertLess(worst, 1e-5)
            self.assertGreater(max(sizes), 1)
            self.assertIn("the trainer accumulates 1", said)

    def test_a_step_of_the_trainer_itself(self):
        for ranks in (1, 2, 3, 4):
            said = launched(ranks, __file__, "trainer")
            worst, size = re.search(r"gradients (\S+), groups of (\d+)", said).groups()
            self.assertLess(float(worst), 1e-5, ranks)
            self.assertEqual(int(size) > 1, ranks > 1)

    def test_the_example_trains_the_same_on_one_rank_and_on_several(self):
        with tempfile.TemporaryDirectory() as folder:
            said = [launched(ranks, "titan.py", folder) for ranks in (1, 3)]
        steps = [re.findall(r"step: +\d+ +loss: +([\d.]+) +grad_norm: +([\d.]+)", text) for text in said]
        steps = [found[::ranks] for found, ranks in zip(steps, (1, 3))]
        self.assertEqual(len(steps[0]), 6)
        for one, several in zip(*steps, strict=True):
            for mine, wanted in zip(several, one):
                self.assertAlmostEqual(float(mine) / float(wanted), 1, delta=2e-3)
        self.assertLess(float(steps[0][-1][0]), float(steps[0][0][0]) - 0.3)  # it learns


if __name__ == "__main__":
    if importlib.util.find_spec("torchtitan") is None:
        print("skipped: torchtitan's trainer is not tested: no torchtitan in this Python")
    one_step_of_the_trainer() if sys.argv[1:] == ["trainer"] else unittest.main()
