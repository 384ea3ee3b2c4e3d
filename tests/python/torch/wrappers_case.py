"""What is around a model: torch.compile is looked through, and what averages gradients otherwise is refused by name."""

import unittest

import paradyse.torch as pt
import torch
import torch._dynamo  # slow, so once before ranks are forked
from ranks import LENGTHS, LONG, documents, hows, llama, on_ranks, planner_for, played, random_plan, truth, worst, wrapped
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard


def compiled(rank, how, attached_late):
    """Difference of loss and gradients, and the micro-batches that all-reduced before the last."""
    model = llama()
    items = documents(LENGTHS, 3)
    loss, grads = truth(model, items)
    if not attached_late:
        pt.attach(model)
    outer = torch.compile(wrapped(torch.compile(model, backend="eager") if how == "ddp" else model, how), backend="eager")
    if attached_late:
        pt.attach(outer)
    outer.train()
    sent = []
    if how == "ddp":
        def count(state, bucket):
            sent.append(bucket.index())
            return default_hooks.allreduce_hook(None, bucket)
        outer._orig_mod.register_comm_hook(None, count)
    step = pt.Step(random_plan(2, LENGTHS, 3), range(len(LENGTHS)), planner_for(model, how))
    mine, found = played(outer, step, items)
    found = {name.replace("_orig_mod.", "").removeprefix("module."): grad for name, grad in found.items()}
    assert {mb.recompute for mb in step.played} == {False, True} and len(step.played) > 1
    return abs(mine - loss) / loss, worst(found, grads), len(sent)


def refused(rank):
    """What attach() and accumulate() say of each."""
    class Engine(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    def inner_layers(model):
        for layer in model.model.layers:
            fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
        return model

    device = torch.device("cpu")
    kinds = {"flat": lambda model: FullyShardedDataParallel(model, device_id=device),
             "original parameters": lambda model: FullyShardedDataParallel(model, use_orig_params=True, device_id=device),
             "compiled": lambda model: torch.compile(FullyShardedDataParallel(model, device_id=device), backend="eager"),
             "inner": lambda model: Engine(FullyShardedDataParallel(model, device_id=device)),
             "DataParallel": torch.nn.DataParallel, "Engine": Engine, "layers": inner_layers}
    found = {}
    for name, wrap in kinds.items():
        model = llama()
        pt.attach(model)
        step = pt.Step(random_plan(2, LENGTHS, 3), range(len(LENGTHS)), planner_for(model, "ddp"))
        step.micro_batches(documents(LENGTHS))
        outer = wrap(model)
        for call in (lambda: pt.attach(outer), lambda: pt.accumulate(outer, step.played[0]).__enter__()):
            try:
                call()
                found.setdefault(name, []).append("not refused")
            except ValueError as error:
                found.setdefault(name, []).append(str(error))
    return found


class WrappersTest(unittest.TestCase):
    def test_compiled_models_have_the_gradients_of_one_process(self):
        for how in hows() if LONG else hows()[1:]:
            for late in (False, True) if LONG else (how == "ddp",):
                for loss, gradient, sent in on_ranks(2, compiled, how, late):
                    self.assertLess(loss, 1e-12)
                    self.assertLess(gradient, 1e-9)
                    self.assertEqual(sent, int(how == "ddp"))

    def test_others_are_refused_by_name(self):
        for found in on_ranks(2, refused):
            for name, said in found.items():
                words = {"DataParallel": r"DataParallel is not supported: it wraps a model", "layers": "call fully_shard on the whole",
                         "Engine": "Engine is not supported: it wraps"}.get(name, r"FSDP1 .*call fully_shard\(model\)")
                for text in said:
                    with self.subTest(name):
                        self.assertRegex(text, words)
                        self.assertIn("plans are for a plain model, DDP and FSDP2", text)
                self.assertEqual(len(said), 2)


if __name__ == "__main__":
    unittest.main()
