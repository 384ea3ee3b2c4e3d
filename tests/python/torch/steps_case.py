"""Steps: the same on every rank and after a restart; losses with one denominator; no wait without an end."""

import os
import random
import signal
import time
import unittest

import numpy
import paradyse
import paradyse.torch as pt
import torch
import torch.distributed as dist
from ranks import IGNORED, documents, hows, llama, on_ranks, planner, planner_for, played, random_plan, truth, worst, wrapped
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.utils.data import DataLoader

DRAW = random.Random(5)
MANY = [1 + int(DRAW.lognormvariate(3, 1)) % 100 for _ in range(60)]


def drawn(steps, most=1000):
    return [(step.documents, step.plan.hash) for step, _ in zip(steps, range(most))]


def train(rank, begin, steps_to_do, kill_at=None):
    """Losses and documents of each step, and the state after it; killed in the middle of a step."""
    model = llama(dtype=torch.float64)
    pt.attach(model)
    steps = pt.Steps(MANY, tokens_per_step=300, planner=planner(model, memory=140_000), seed=3)
    ddp = wrapped(model, "ddp")
    ddp.train()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    if begin is not None:
        model.load_state_dict({name: torch.from_numpy(value) for name, value in begin[1].items()})
        steps.load_state_dict(begin[0])
    items = documents(MANY)
    found = []
    for step in steps:
        total = 0.0
        for mb in step.micro_batches(items):
            with pt.accumulate(ddp, mb):
                loss = pt.loss_sum(ddp(**mb.inputs), mb.labels)
                (loss * step.scale).backward()
            total += float(loss.detach())
            if len(found) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        found.append((step.documents, step.mean(total), len(step.played), steps.state_dict()))
        if len(found) == steps_to_do:
            break
    return found, {name: value.numpy().copy() for name, value in model.state_dict().items()}


def of_every_rank(rank):
    model = llama()
    return drawn(pt.Steps(MANY, tokens_per_step=300, planner=planner(model, memory=140_000), seed=4))


def averaged(rank, how):
    """Two ranks, of which one has nearly all labels: the mean over labels, not over ranks or micro-batches."""
    model = llama(dtype=torch.float64)
    items = documents([40, 2, 3], without=(1,))
    loss, grads = truth(model, items)
    pt.attach(model)
    model.train()
    step = pt.Step(planner(model, space="turns").plan([40, 2, 3]), range(3), planner_for(model, how))
    mine, found = played(wrapped(model, how), step, items)
    return abs(mine - loss) / loss, worst(found, grads), len(step.played)


def messages(rank, how):
    """Of each micro-batch: is it the last, were gradients sent, calls of attention, and is it recomputed."""
    model = llama(dtype=torch.float64)
    pt.attach(model)
    trained = wrapped(model, how)
    trained.train()
    sent = []
    if how == "ddp":
        def count(state, bucket):
            sent.append(bucket.index())
            return default_hooks.allreduce_hook(None, bucket)
        trained.register_comm_hook(None, count)
    lengths = [29, 5, 1, 13, 7, 11, 2, 3]
    step = pt.Step(random_plan(3, lengths, 4), range(len(lengths)), planner_for(model, how))
    found = []
    for mb in step.micro_batches(documents(lengths)):
        with pt.accumulate(trained, mb):
            (pt.loss_sum(trained(**mb.inputs), mb.labels) * step.scale).backward()
        there = bool(sent) if how == "ddp" else any(p.grad is not None for p in trained.parameters())
        found.append((mb.last, there, mb.inputs["paradyse"].calls, mb.recompute))
    return found


def wrapped_otherwise(rank):
    model = llama()
    pt.attach(model)
    mine = planner(model)
    mine.weights = "fsdp2"
    step = pt.Step(mine.plan([5, 3]), range(2), mine)
    try:
        step.play(wrapped(model, "ddp"), documents([5, 3]))
    except ValueError as error:
        return str(error)
    return "not refused"


def late(rank):
    """The other rank never comes."""
    model = llama()
    pt.attach(model)
    mine = planner(model, space="static")
    mine.deadline = 2.0
    step = pt.Step(mine.plan([20]), [7], mine, labels=[19] * 8)
    mb, = step.micro_batches({7: list(range(20))})
    if rank == 0:
        begin = time.monotonic()
        try:
            model(**mb.inputs)
        except TimeoutError as error:
            return str(error), time.monotonic() - begin
        return "no error", 0.0
    time.sleep(8)
    return "", 0.0


class StepsTest(unittest.TestCase):
    def test_every_rank_draws_the_same_and_every_document_once(self):
        found = on_ranks(3, of_every_rank)
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])
        self.assertEqual(sorted(d for documents_, _ in found[0] for d in documents_), list(range(len(MANY))))
        for documents_, _ in found[0]:
            self.assertLessEqual(sum(MANY[d] for d in documents_), 300)

    def test_seeds_epochs_and_states(self):
        one = planner(llama(), ranks=2)
        made = lambda seed=0, epochs=1: pt.Steps(MANY, tokens_per_step=300, planner=one, seed=seed, epochs=epochs)
        self.assertNotEqual(drawn(made()), drawn(made(1)))
        whole = drawn(made(epochs=3))
        order = [d for documents_, _ in whole for d in documents_]
        for epoch in range(3):
            self.assertEqual(sorted(order[60 * epoch:60 * epoch + 60]), list(range(60)))
        self.assertNotEqual(order[:60], order[60:120])
        for cuts in ((1,), (4, 5), (len(whole) - 1,), (2, 9, 20)):  # a second resume in one epoch, too
            found, state = [], {"seed": 0, "documents": 0}
            for cut in (*cuts, len(whole)):
                steps = made(seed=9, epochs=3)
                steps.load_state_dict(state)
                found += drawn(steps, 0) if cut == len(found) else [
                    (step.documents, step.plan.hash) for step, _ in zip(steps, range(cut - len(found)))]
                state = {"seed": 0, "documents": sum(len(documents_) for documents_, _ in found)}
            self.assertEqual(found, whole)

    def test_killed_and_resumed_has_the_same_documents_losses_and_weights(self):
        whole, weights = on_ranks(2, train, None, 6)[0]
        self.assertGreater(max(count for _, _, count, _ in whole), 1)  # several micro-batches
        with self.assertRaisesRegex(AssertionError, "ended by signal 9"):
            on_ranks(2, train, None, 6, 3)
        first, saved = on_ranks(2, train, None, 3)[0]
        rest, again = on_ranks(2, train, (first[-1][3], saved), 3)[0]
        self.assertEqual([d for d, *_ in first + rest], [d for d, *_ in whole])
        for (_, mine, *_), (_, wanted, *_) in zip(first + rest, whole, strict=True):
            self.assertAlmostEqual(mine, wanted, 12)
        for name, value in again.items():
            numpy.testing.assert_allclose(value, weights[name], rtol=1e-12, atol=1e-14)
        other = on_ranks(3, train, (first[-1][3], saved), 3)[0][0]  # another number of ranks
        self.assertEqual([d for d, *_ in other], [d for d, *_ in rest])
        for (_, mine, *_), (_, wanted, *_) in zip(other, rest, strict=True):
            self.assertAlmostEqual(mine, wanted, 9)

    def test_one_denominator(self):
        for how in hows():
            for loss, gradient, count in on_ranks(2, averaged, how):
                self.assertEqual(count, 2)
                self.assertLess(loss, 1e-12)
                self.assertLess(gradient, 1e-9)

    def test_gradients_travel_once_and_layers_are_made_again_as_planned(self):
        for how in hows()[1:]:
            for of_rank in on_ranks(3, messages, how):
                self.assertGreater(len(of_rank), 1)
                for last, sent, calls, recompute in of_rank:
                    self.assertEqual(sent, last)
                    self.assertEqual(calls, 4 if recompute else 2)  # of two layers
            self.assertEqual({recompute for _, _, _, recompute in of_rank}, {False, True})

    def test_a_rank_that_is_late_is_named_with_micro_batch_and_documents(self):
        said, seconds = on_ranks(2, late)[0]
        self.assertRegex(said, r"exchange of ranks \[0, 1\] in micro-batch 0 \(documents \[7\]\), on rank 0: not done")
        self.assertLess(seconds, 7.5)

    def test_a_model_that_is_wrapped_otherwise_than_planned_is_refused(self):
        for said in on_ranks(2, wrapped_otherwise):
            self.assertIn("assumes weights='fsdp2', but the model is not wrapped so", said)

    def test_what_is_refused(self):
        model = llama()
        one = planner(model, ranks=1)
        with self.assertRaisesRegex(ValueError, "document 1 has no token"):
            pt.Steps([5, 0], tokens_per_step=5, planner=one)
        step = next(iter(pt.Steps([5], tokens_per_step=5, planner=one)))
        with self.assertRaisesRegex(RuntimeError, "known once step.micro_batches"):
            step.scale
        with self.assertRaisesRegex(ValueError, "document 0 has 4 ids and 4 labels, but its length was given as 5"):
            step.micro_batches([[1, 2, 3, 4]])
        for arguments, words in (({"weights": "zero"}, "accepted: ddp, fsdp2, hsdp"), ({"space": "all"}, "accepted"),
                                 ({"ranks": 4, "node": 3}, "nodes of 3 ranks"), ({"memory": "much"}, "70GiB"),
                                 ({"memory": 1000}, "give more memory")):
            with self.assertRaisesRegex(ValueError, words):
                planner(model, **{"ranks": 1, **arguments})
        with self.assertRaisesRegex(paradyse.NoPlan, "document 0 has 100000 tokens"):
            planner(model, ranks=2, memory="1MiB").plan([100_000])

    def test_nonsense_is_refused_by_name(self):
        one = planner(llama(), ranks=1)
        made = lambda **more: pt.Steps(**{"lengths": [5, 6, 7, 8], "tokens_per_step": 12, "planner": one, **more})
        for given, words in (
                ({"tokens_per_step": 0}, "tokens_per_step 0"), ({"tokens_per_step": -5}, "tokens_per_step -5"),
                ({"tokens_per_step": 1.5}, "tokens_per_step 1.5"), ({"epochs": 0}, "epochs 0"), ({"epochs": True}, "epochs"),
                ({"seed": -1}, "seed -1"), ({"seed": "a"}, "seed 'a'"), ({"lengths": []}, "no document"),
                ({"lengths": [5.7]}, "lengths that are no row of whole numbers"), ({"lengths": ["5"]}, "whole numbers"),
                ({"labels": [1]}, "1 counts for 4 documents"), ({"labels": [1, 2, 3, 4, 5]}, "5 counts for 4"),
                ({"labels": [4, 5, 6, 8]}, "labels: 8 of document 3, which has 8 tokens"),
                ({"labels": [4, -1, 6, 7]}, "labels: -1 of document 1")):
            with self.subTest(given), self.assertRaisesRegex(ValueError, words):
                made(**given)
        self.assertEqual(len(drawn(made(lengths=torch.tensor([5, 6]), labels=numpy.array([4, 5])))), 1)
        steps = made(planner=planner(llama(), ranks=1, memory=140_000), lengths=[5, 100_000, 6], tokens_per_step=5)
        done = []
        with self.assertRaises(paradyse.NoPlan):
            for step in steps:
                done += step.documents
        self.assertEqual(steps.state_dict()["documents"], len(done))  # without those that have no plan
        good = made().state_dict()
        for state, words in (
                ({}, "no seed and no documents"), ({"seed": 0}, "no documents"), ({**good, "documents": -3}, "documents -3"),
                ({**good, "documents": 1.5}, "documents 1.5"), ({**good, "documents": "2"}, "documents '2'"),
                ({**good, "documents": 5}, "5 documents consumed, but 1 epochs of 4"),
                (made(lengths=[5, 6, 8, 7]).state_dict(), "documents of other lengths"),
                (made(lengths=[5, 6, 7, 8, 9]).state_dict(), "documents of other lengths")):
            steps = made()
            with self.subTest(state), self.assertRaisesRegex(ValueError, words):
                steps.load_state_dict(state)
            self.assertEqual(steps.state_dict(), good)
        for given, words in (
                ({"ranks": 0}, "ranks 0"), ({"ranks": 2.5}, "ranks 2.5"), ({"ranks": 4, "node": 0}, "node 0"),
                ({"ranks": 4, "node": 8}, "nodes of 8 ranks"), ({"seed": -1}, "seed -1"), ({"seed": 1.5}, "seed 1.5"),
                ({"seed": 2**64}, "seed 18446744073709551616"), ({"moments": -100}, "moments -100"),
                ({"reserve": -3}, "reserve -3"), ({"reserve": 1.5}, "reserve 1.5"), ({"memory": "1.2.3GiB"}, "70GiB"),
                ({"memory": True}, "70GiB"), ({"memory": 0}, "memory 0: a rank has"), ({"memory": -5}, "memory -5"),
                ({"memory": "0GiB"}, "memory '0GiB'")):
            with self.subTest(given), self.assertRaisesRegex(ValueError, words):
                planner(llama(), **given)
        for deadline in (-1, 0, float("nan")):
            with self.assertRaisesRegex(ValueError, "deadline"):
                pt.Planner(llama().config, costs=one.costs, memory="1GiB", deadline=deadline)
        for lengths in ([1.5], ["a"], [True], [[5]]):
            with self.subTest(lengths), self.assertRaisesRegex(ValueError, "lengths that are no row"):
                one.plan(lengths)
        with self.assertRaisesRegex(ValueError, "a step of 1 documents, but a plan of 2"):
            pt.Step(one.plan([5, 6]), [0], one)
        for logits, labels in (((2, 5, 9), (2, 5)), ((1, 5, 9), (1, 4)), ((5, 9), (5,))):
            with self.subTest(logits), self.assertRaisesRegex(ValueError, "one row"):
                pt.loss_sum(torch.zeros(logits), torch.zeros(labels, dtype=torch.long))

    def test_steps_that_are_drawn_to_their_end_say_so(self):
        made = lambda: pt.Steps([5, 6, 7, 8], tokens_per_step=12, planner=planner(llama(), ranks=1))
        steps, begun = made(), made()
        whole = drawn(steps)
        with self.assertRaisesRegex(RuntimeError, "all 1 epochs are drawn already"):
            drawn(steps)
        self.assertEqual([*drawn(begun, 1)], whole[:1])  # zip draws one more, which is not seen
        self.assertEqual(drawn(begun), whole[2:])
        done = made()
        done.load_state_dict(steps.state_dict())  # a run that had ended
        self.assertEqual(drawn(done), [])
        older = made()
        older.load_state_dict({"seed": 0, "documents": len(whole[0][0])})  # without lengths
        self.assertEqual(drawn(older), whole[1:])

    def test_workers_of_a_loader_are_refused(self):
        steps = lambda: pt.Steps([5, 6, 7, 8], tokens_per_step=12, planner=planner(llama(), ranks=1))
        loader = lambda workers: DataLoader(steps(), batch_size=None, collate_fn=lambda step: step.documents,
                                            num_workers=workers, timeout=60 * (workers > 0))
        self.assertEqual([*loader(0)], [step.documents for step in steps()])
        with self.assertRaisesRegex(RuntimeError, "num_workers=0"):
            [*loader(1)]

    def test_labels_of_the_index_take_no_message(self):
        model = llama()
        pt.attach(model)
        items = documents(MANY)
        counts = [sum(label != IGNORED for label in item["labels"][1:]) for item in items]
        steps = pt.Steps(MANY, tokens_per_step=300, planner=planner(model, ranks=2), labels=counts)
        self.assertFalse(dist.is_initialized())
        for step in steps:
            self.assertEqual(step.scale, 2 / sum(counts[d] for d in step.documents))


if __name__ == "__main__":
    unittest.main()
