"""Gradients of plans on several ranks are those of one process that runs each document by itself."""

import json
import unittest

import paradyse
import paradyse.torch as pt
import torch
from ranks import LENGTHS, LONG, documents, hows, llama, on_ranks, planner_for, played, random_plan, truth, worst, wrapped

HEADS = ((28, 7), (5, 1), (12, 4))
HOWS = hows()
LIMIT = {torch.float64: 1e-9, torch.float32: 1e-5}


def differences(rank, cases, how):
    """Of each case (heads, keys, dtype, plan's seed, idle) the difference of loss and gradients."""
    found = []
    ranks = torch.distributed.get_world_size()
    for heads, keys, dtype, seed, idle in cases:
        model = llama(heads, keys, dtype)
        lengths = LENGTHS if not idle else LENGTHS[:max(1, ranks // 2)]
        items = documents(lengths, seed, without=(seed % len(lengths), 0))
        loss, grads = truth(model, items)
        pt.attach(model)
        step = pt.Step(random_plan(ranks, lengths, seed, idle), range(len(lengths)), planner_for(model, how))
        model.train()
        mine, gradients = played(wrapped(model, how), step, items)
        found.append((abs(mine - loss) / max(abs(loss), 1e-9), worst(gradients, grads), dtype))
    return found


def with_little(rank, heads, keys, lengths, how, again):
    """All ranks on documents of fewer tokens, or of fewer heads, than ranks."""
    model = llama(heads, keys)
    items = documents(lengths, 3)
    _, grads = truth(model, items)
    pt.attach(model)
    made = planner_for(model, how, space="static")
    text = json.loads(made.plan(lengths).to_json())
    if again:
        for runs in text["programs"].values():
            runs[0]["recompute"] = "layer"
    step = pt.Step(paradyse.Plan.from_json(json.dumps(text)), range(len(lengths)), made)
    model.train()
    found = played(wrapped(model, how), step, items)[1]
    return worst(found, grads), [mb.inputs["paradyse"].tokens for mb in step.played], step.played[0].recompute


def mixed(rank):
    """Weights in float64 that compute in float32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy
    model = llama(12, 4, torch.float64)
    items = documents(LENGTHS)
    loss, grads = truth(model, items)
    pt.attach(model)
    step = pt.Step(random_plan(2, LENGTHS, 3, False), range(len(LENGTHS)), planner_for(model, "fsdp2"))
    model.train()
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
    mine, gradients = played(wrapped(model, "fsdp2", mp_policy=policy), step, items)
    return abs(mine - loss) / abs(loss), worst(gradients, grads)


def autocast(rank):
    """More ranks than heads, so that one has none, and weights in float32 that autocast computes in bfloat16."""
    model = llama(2, 1, torch.float32)
    lengths = [9, 4]
    items = documents(lengths, 3)
    with torch.autocast("cpu", torch.bfloat16):
        loss, grads = truth(model, items)
        pt.attach(model)
        made = planner_for(model, "ddp", space="static")
        step = pt.Step(made.plan(lengths), range(len(lengths)), made)
        model.train()
        mine, found = played(wrapped(model, "ddp"), step, items)
    return abs(mine - loss) / abs(loss), worst(found, grads)


class GradientsTest(unittest.TestCase):
    def expect(self, ranks, how, cases):
        for of_rank in on_ranks(ranks, differences, cases, how, deadline=600):
            for case, (loss, gradient, dtype) in zip(cases, of_rank, strict=True):
                self.assertLess(loss, LIMIT[dtype], (ranks, how, case))
                self.assertLess(gradient, LIMIT[dtype], (ranks, how, case))

    def test_heads_lengths_and_ranks(self):
        for ranks in range(1, 7) if LONG else (1, 3, 4):
            for how in HOWS:
                cases = [(heads, keys, dtype, 10 * ranks + more, idle)
                         for heads, keys in (HEADS if LONG else HEADS[ranks % 3:ranks % 3 + 1])
                         for dtype in LIMIT for idle in (False, True) for more in range(3 if LONG else 1)]
                with self.subTest(ranks=ranks, how=how):
                    self.expect(ranks, how, cases)

    def test_ranks_without_a_token_or_a_head(self):
        for ranks, heads, keys, lengths in ((3, 5, 1, [2]), (4, 2, 1, [1, 2, 1]), (4, 3, 1, [13, 2]), (2, 1, 1, [1])):
            for how in HOWS:
                for again in (False, True):
                    found = on_ranks(ranks, with_little, heads, keys, lengths, how, again, deadline=60)
                    self.assertTrue(heads < ranks or min(tokens[0] for _, tokens, _ in found) == 0)
                    for gradient, _, made_again in found:
                        self.assertEqual(made_again, again)
                        self.assertLess(gradient, LIMIT[torch.float64], (ranks, heads, lengths, how))

    @unittest.skipUnless("fsdp2" in HOWS, "Gloo of this PyTorch does not average")
    def test_fully_shard_with_mixed_precision(self):
        for loss, gradient in on_ranks(2, mixed, deadline=60):
            self.assertLess(loss, 1e-5)
            self.assertLess(gradient, 1e-5)

    def test_autocast_where_a_rank_has_no_head(self):
        for loss, gradient in on_ranks(3, autocast, deadline=60):
            self.assertLess(loss, 2e-2)  # bfloat16 has 8 bits
            self.assertLess(gradient, 5e-2)

    @unittest.skipUnless("fsdp2" in HOWS, "Gloo of this PyTorch does not average")
    def test_hsdp(self):
        self.expect(4, "hsdp", [(12, 4, torch.float64, seed, seed == 2) for seed in range(3 if LONG else 2)])


if __name__ == "__main__":
    unittest.main()
