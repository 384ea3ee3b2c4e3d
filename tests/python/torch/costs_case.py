"""measure, plans by its costs, check and report."""

import contextlib
import io
import json
import pathlib
import random
import tempfile
import types
import unittest

import numpy
import paradyse.torch as pt
import torch
from paradyse.torch.measure import fit
from paradyse.torch.planner import pool_of, sizes_of
from ranks import LONG, documents, llama, on_ranks, planner, wrapped


def checked(rank, spoil):
    model = llama(28, 7, torch.float32)
    pt.attach(model)
    model.train()
    if spoil and rank == 1:
        with torch.no_grad():
            model.model.layers[1].self_attn.k_proj.weight *= 1.01
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        static = pt.check(model, documents([29, 5, 1, 13]))
        planned = pt.check(model, documents([29, 5, 1, 13]), planner(model))
    return static, planned, said.getvalue()


def measured(rank):
    model = llama(dtype=torch.float32)
    pt.attach(model)
    costs = pt.measure(model, seconds=3, longest=256, node=1)
    mine = pt.Planner(model.config, costs=costs, memory="1GiB", weights="ddp", node=1, deadline=60)
    steps, played = pt.Steps([200, 3, 9, 100, 40, 5, 5] * 3, tokens_per_step=400, planner=mine), []
    items = documents([200, 3, 9, 100, 40, 5, 5] * 3)
    ddp = wrapped(model, "ddp")
    ddp.train()
    for step in steps:
        for mb in step.micro_batches(items):
            with pt.accumulate(ddp, mb):
                (pt.loss_sum(ddp(**mb.inputs), mb.labels) * step.scale).backward()
        played.append(step)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        found = pt.report(played)
    return costs, found, said.getvalue(), [step.plan.hash for step in played]


class CostsTest(unittest.TestCase):
    def test_check_finds_no_difference_beyond_the_models_own(self):
        for static, planned, said in on_ranks(3, checked, False):
            for found in (static, planned):
                self.assertLess(found.gradient, 1e-5)
                self.assertLess(found.loss, 1e-6)
                self.assertGreater(found.own, 1e-9)  # float32
        self.assertIn("gradients by at most", on_ranks(1, checked, False)[0][2])

    def test_check_finds_a_rank_with_other_weights(self):
        for static, _, _ in on_ranks(3, checked, True):
            self.assertGreater(static.gradient, 1e-4)

    def test_check_finds_a_gradient_that_is_no_number(self):
        model = llama(4, 2, torch.float32)
        pt.attach(model)
        for name in ("model.layers.0.mlp.down_proj.weight", "lm_head.weight"):
            hook = model.get_parameter(name).register_hook(
                lambda grad: grad * float("nan") if grad.dtype == torch.float32 else grad)
            with contextlib.redirect_stdout(io.StringIO()):
                found = pt.check(model, documents([5, 3]), planner(model, ranks=1))
            hook.remove()
            self.assertEqual((found.gradient, found.parameter), (float("inf"), name))

    def test_check_of_a_reference_that_is_no_number(self):
        model = llama(4, 2, torch.float32)
        pt.attach(model)
        model.model.embed_tokens.weight.data[5:].fill_(float("nan"))  # all gradients, and those of other rows
        with contextlib.redirect_stdout(io.StringIO()):
            found = pt.check(model, documents([5, 3]), planner(model, ranks=1))
        self.assertEqual(found.gradient, float("inf"))

    def test_spaces_that_are_not_known(self):
        one = planner(llama(), ranks=1)
        with self.assertRaisesRegex(ValueError, "space 'x' is not known; accepted: torch"):
            one.plan([5], "x")

    def test_the_fit_finds_what_made_the_seconds(self):
        draw = numpy.random.default_rng(1)
        table = numpy.stack([numpy.ones(40), *draw.integers(1, 1000, (3, 40)).astype(float)], 1)
        table[:, 2] **= 2
        for wanted in ([0.01, 1e-4, 1e-8, 1e-3], [0.0, 1e-4, 0.0, 1e-3], [0.01, 1e-4, 1e-9, 0.0]):
            numpy.testing.assert_allclose(fit(table, table @ wanted), wanted, rtol=1e-6, atol=1e-12)
        self.assertTrue((fit(table, table @ [0.01, 1e-4, -1e-9, 1e-3]) >= 0).all())

    def test_costs_are_measured_and_the_same_on_all_ranks(self):
        found = on_ranks(2, measured)
        (costs, report, said, plans), (others, _, _, their_plans) = found
        self.assertEqual(costs, others)  # ranks plan the same by them
        self.assertEqual(plans, their_plans)
        self.assertGreater(costs.token + costs.document, 0)
        self.assertGreater(costs.message[1], 0)
        self.assertGreater(costs.token_bytes, costs.token_bytes_again)
        self.assertGreater(costs.token_bytes_again, 2 * 16 * 4)  # hidden states of two layers
        self.assertIsNotNone(costs.error)
        self.assertGreater(report["predicted"], 0)
        self.assertGreater(report["measured"], 0)
        self.assertEqual(set(report["spaces"]), set(pt.SPACES))
        self.assertLessEqual(report["spaces"]["torch"], report["predicted"] * 1.001)
        self.assertEqual(sum(row["documents"] for row in report["groups"].values()), 21)
        self.assertIn("one document a rank in turn", said)
        self.assertRegex(said, r"imbalance of ranks \d+% predicted, \d+% measured with waiting")
        self.assertTrue(0 <= report["imbalance_measured"] < 1)  # of two ranks

    def test_costs_are_a_file(self):
        costs = pt.Costs(token=1e-6, square=1e-9, message=(1e-5, 1e-4), recompute=1.3)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "costs.json"
            costs.write(file)
            self.assertEqual(pt.costs(file), costs)
            costs.write(file)  # its own
            for mine in ("mine", '{"a": 1}', ""):
                file.write_text(mine)
                with self.subTest(mine), self.assertRaisesRegex(FileExistsError, f"{file} is there already"):
                    costs.write(file)
                self.assertEqual(file.read_text(), mine)
            costs.write(file, force=True)
            self.assertEqual(pt.costs(file), costs)
            of_numpy = pt.Costs(token=numpy.float32(0.1), parameters=numpy.int64(7), message=(numpy.float32(0.2), 0.0))
            of_numpy.write(file)
            self.assertEqual(pt.costs(file), of_numpy)
            file.write_text(json.dumps({"tokens": 3}))
            with self.assertRaisesRegex(ValueError, "no file of Costs.write"):
                pt.costs(file)

    def test_costs_that_nothing_takes_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "costs.json"
            for text, words in (
                    ('{"token": NaN}', "token nan"), ('{"token": -1.0}', "token -1.0"), ('{"token": 1e999}', "token inf"),
                    ('{"token": "a"}', "token 'a'"), ('{"token": null}', "token None"), ('{"token": true}', "token True"),
                    ('{"token": 1.0, "square": -1e-9}', "square"), ('{"token": 1.0, "message": [1.0]}', "message"),
                    ('{"token": 1.0, "byte": [1.0, -2.0]}', "byte"), ('{"token": 1.0, "reduce": 1.0}', "reduce"),
                    ('{"token": 1.0, "itemsize": 0}', "itemsize 0"), ('{"token": 1.0, "recompute": 0}', "recompute 0"),
                    ('{"token": 1.0, "parameters": [1]}', "parameters"), ("[" * 100_000, "no file of Costs.write"),
                    ("[1]", "no file of"), ("{}", "no file of"), ('{"token": 1.', "no file of"), ("", "no file of")):
                file.write_text(text)
                with self.subTest(text[:40]), self.assertRaisesRegex(ValueError, f"{file} is no file of .*{words}"
                                                                     if "no file" not in words else words):
                    pt.costs(file)
        with self.assertRaisesRegex(ValueError, "token -1"):
            pt.Costs(token=-1)

    def test_nothing_to_check_measure_or_report(self):
        model = llama()
        with self.assertRaisesRegex(ValueError, "LlamaForCausalLM is not attached"):
            pt.measure(model, seconds=0, longest=16)
        pt.attach(model)
        for given, words in (({"seconds": -1}, "seconds -1"), ({"seconds": float("nan")}, "seconds nan"),
                             ({"longest": 0}, "longest 0"), ({"longest": 1}, "longest 1"), ({"longest": -3}, "longest -3"), ({"node": 0}, "node 0"),
                             ({"node": 2}, "divide the 1 ranks")):
            with self.subTest(given), self.assertRaisesRegex(ValueError, words):
                pt.measure(model, **given)
        for batch in ([], [[3]], [{"input_ids": [1, 2, 3], "labels": [-100] * 3}]):
            with self.subTest(batch), self.assertRaisesRegex(ValueError, "nothing to compare"):
                pt.check(model, batch)
        one = planner(model, ranks=1)
        with self.assertRaisesRegex(ValueError, "no step to report"):
            pt.report([])
        with self.assertRaisesRegex(ValueError, "step 0 was not played"):
            pt.report([pt.Step(one.plan([5]), [0], one)])
        with self.assertRaisesRegex(ValueError, "1 ids for the 2 documents"):
            pt.to_megatron(one.plan([5, 6]), ["a"])

    def test_groups_keep_to_nodes_and_to_the_pool_of_nccl(self):
        costs = pt.Costs(token=1e-5, square=1e-8, document=1e-4, token_bytes=1000, message=(1e-4, 1e-2),
                         byte=(1e-11, 1e-8), parameters=1000)
        for ranks, node in ((6, 3), (12, 6), (8, 4), (16, 8), (24, 12), (24, 8), (12, 4), (8, 8), (6, 6), (10, 5)):
            config = types.SimpleNamespace(num_attention_heads=2 * ranks, num_hidden_layers=4, hidden_size=16 * ranks)
            for weights in ("ddp", "fsdp2", "hsdp"):
                for pool in (False, True):
                    mine = pt.Planner(config, costs=costs, memory="8MiB", ranks=ranks, node=node, weights=weights)
                    most = mine.domain or ranks
                    self.assertEqual(mine.sizes, sizes_of(most, node, False))
                    mine.sizes = sizes_of(most, node, pool)
                    members = {tuple(group) for group in pool_of(ranks, node, mine.sizes)}
                    draw, used, crossing = random.Random(ranks), set(), []
                    for _ in range(100 if LONG else 20):
                        lengths = [min(6000 * most, 1 + int(draw.lognormvariate(7, 1.6))) for _ in range(40)]
                        for micro_batch in mine.plan(lengths).micro_batches:
                            for group in filter(lambda group: len(group.ranks) > 1, micro_batch.groups):
                                used.add(tuple(group.ranks))
                                nodes = {rank // node for rank in group.ranks}
                                if len(nodes) > max(1, len(group.ranks) // node):
                                    crossing.append(group.ranks)
                    with self.subTest(ranks=ranks, node=node, weights=weights, pool=pool):
                        self.assertEqual(crossing, [])
                        if pool:
                            self.assertEqual(used - members, set())
                            self.assertGreater(len(used), len(members) // 2)  # and few that no plan uses

    def test_plans_follow_the_costs(self):
        config = llama().config
        costs = pt.Costs(token=1e-5, square=1e-8, document=1e-3, micro_batch=1e-3, recompute=1.3, parameters=10_000_000,
                         token_bytes=100_000, token_bytes_again=20_000, reduce=(1e-9, 1e-9))
        made = lambda memory="1GiB", **more: pt.Planner(config, costs=costs, memory=memory, ranks=4, **more)
        lengths = [4000, 30, 30, 30]
        longest = next(g for m in made().plan(lengths).micro_batches for g in m.groups if 0 in g.documents)
        self.assertGreater(len(longest.ranks), 1)  # it is worth cutting
        for space, size in (("static", 4), ("packed", 1), ("turns", 1)):
            plan = made(space=space).plan(lengths)
            self.assertEqual({len(g.ranks) for m in plan.micro_batches for g in m.groups if g.documents}, {size})
            self.assertLessEqual(made().plan(lengths).predicted_seconds, plan.predicted_seconds * (1 + 1e-9))
        node = made(space="node", node=2).plan(lengths)
        self.assertEqual({len(g.ranks) for m in node.micro_batches for g in m.groups if g.documents}, {2})
        tight = made(memory="250MiB").plan([3000] * 4)  # layers are made again where room is short
        self.assertIn("layer", {run.parts[0].recompute for runs in tight.programs.values() for run in runs})
        none = pt.Planner(config, costs=costs, memory="250MiB", ranks=4, recompute=False)
        self.assertEqual({run.parts[0].recompute for runs in none.plan([400] * 4).programs.values() for run in runs},
                         {"none"})
        # sharded weights are gathered in each micro-batch, whole ones are not
        whole, sharded = (made(weights=weights).plan(lengths) for weights in ("ddp", "fsdp2"))
        self.assertGreater(sharded.predicted_seconds, whole.predicted_seconds)
        hsdp = made(weights="hsdp", node=2).plan(lengths)
        self.assertEqual(hsdp.sharding_group, 2)
        self.assertLessEqual(max(len(g.ranks) for m in hsdp.micro_batches for g in m.groups), 2)
        # seconds a document: small ones do not all go to one rank
        small = made(space="packed").plan([2000] + [1] * 90)
        self.assertLess(max(len(g.documents) for m in small.micro_batches for g in m.groups), 60)


if __name__ == "__main__":
    unittest.main()
