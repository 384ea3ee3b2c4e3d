"""Ranks that would play unlike plans: every one of them says who differs and in what."""

import unittest

import paradyse.torch as pt
import torch.distributed as dist
from ranks import documents, llama, on_ranks, planner, random_plan

LENGTHS = [40, 3, 17, 29, 5, 60, 11, 8]


def error_of(call):
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def costs(**more):
    return pt.Costs(**{"token": 1e-3, "document": 1e-3, "parameters": 1000, "token_bytes": 1000, **more})


def of_planners(rank):
    """What each rank says where the last has another argument."""
    config, last = llama().config, rank == dist.get_world_size() - 1
    made = lambda given: pt.Planner(config, **{"costs": costs(), "memory": "1GiB", "deadline": 30, **given})
    found = {}
    for name, given in (("memory", {"memory": "512MiB"}), ("seed", {"seed": 2}), ("reserve", {"reserve": 0.1}),
                        ("moments", {"moments": 4}), ("space", {"space": "turns"}), ("node", {"node": 1}),
                        ("weights", {"weights": "fsdp2"}), ("recompute", {"costs": costs(recompute=1.3)}),
                        ("costs.square", {"costs": costs(square=1e-9)}), ("costs.message", {"costs": costs(message=(1, 2))})):
        found[name] = error_of(lambda: made(given if last else {}))
    alike = error_of(lambda: made({"memory": 2**30 if last else "1GiB", "costs": costs(error=0.1 * rank)}))
    return found, alike


def of_steps(rank):
    last, items = rank == dist.get_world_size() - 1, documents(LENGTHS)
    mine = planner(llama())
    counts = [sum(label != -100 for label in item["labels"][1:]) for item in items]
    found = {}
    for name, given in (("Steps.lengths", {"lengths": [41, *LENGTHS[1:]]}), ("Steps.seed", {"seed": 1}),
                        ("Steps.tokens_per_step", {"tokens_per_step": 70}),
                        ("Steps.labels", {"labels": [max(0, count - 1) for count in counts]})):
        wanted = {"lengths": LENGTHS, "tokens_per_step": 100, "labels": counts, **(given if last else {})}
        steps = pt.Steps(planner=mine, **wanted)
        found[name] = error_of(lambda: next(iter(steps)).micro_batches(items))
    resumed = pt.Steps(LENGTHS, tokens_per_step=60, planner=mine)
    if last:
        resumed.load_state_dict({"seed": 0, "documents": 3})
    found["consumed"] = error_of(lambda: next(iter(resumed)).micro_batches(items))
    plan = random_plan(dist.get_world_size(), LENGTHS, 1)
    order = list(range(len(LENGTHS)))
    shuffled = pt.Step(plan, order[::-1] if last else order, mine)
    found["documents"] = error_of(lambda: shuffled.micro_batches(items))
    unlike = pt.Step(random_plan(dist.get_world_size(), LENGTHS, 2) if last else plan, order, mine)
    found["the plan's hash"] = error_of(lambda: unlike.micro_batches(items))
    mine.costs.square = 1.0 if last else 0.0  # of a planner that is changed later
    changed = pt.Step(mine.plan(LENGTHS), order, mine)
    found["costs.square"] = error_of(lambda: changed.micro_batches(items))
    return found


def of_costs(rank, before):
    """By costs that a process measured alone, and by those of all."""
    model = llama()
    pt.attach(model)
    alone = error_of(lambda: pt.Planner(model.config, costs=before, memory="1GiB", deadline=30))
    together = pt.measure(model, seconds=0, longest=16, recompute=False)
    return alone, together.ranks, error_of(lambda: pt.Planner(model.config, costs=together, memory="1GiB", deadline=30))


def of_early_planners(rank, before):
    plan = before.plan(LENGTHS)
    return error_of(lambda: pt.Step(plan, range(len(LENGTHS)), before).micro_batches(documents(LENGTHS)))


class AgreementTest(unittest.TestCase):
    def test_planners(self):
        for found, alike in on_ranks(3, of_planners):
            self.assertEqual(alike, "not refused")
            for name, said in found.items():
                with self.subTest(name):
                    self.assertRegex(said, rf"^ValueError: ranks differ in .*\b{name} is \S.* on ranks 0-1, .* on rank 2")

    def test_steps(self):
        for found in on_ranks(3, of_steps):
            for name, said in found.items():
                with self.subTest(name):
                    self.assertRegex(said, rf"^ValueError: ranks differ in the plan of a step.*\b{name} is .* on ranks 0-1, .* on rank 2")

    def test_costs_that_a_process_measured_alone(self):
        model = llama()
        pt.attach(model)
        before = pt.measure(model, seconds=0, longest=16, recompute=False)
        self.assertEqual(before.ranks, 1)
        for alone, ranks, together in on_ranks(2, of_costs, before):
            self.assertRegex(alone, "^ValueError: costs that 1 ranks measured .* of 2: call measure.. on all ranks")
            self.assertEqual((ranks, together), (2, "not refused"))
        with self.assertRaisesRegex(ValueError, "costs that 1 ranks measured"):
            pt.Planner(model.config, costs=before, memory="1GiB", ranks=8)
        before.ranks = 0
        self.assertEqual(pt.Planner(model.config, costs=before, memory="1GiB", ranks=8).ranks, 8)

    def test_planners_that_are_made_before_the_process_group(self):
        config = llama().config
        made = lambda **more: pt.Planner(config, costs=costs(), memory="1GiB", **more)
        for early, words in ((made(), "a Planner of 1 ranks"), (made(ranks=2), "a Planner of 2 ranks")):
            for said in on_ranks(2, of_early_planners, early):
                self.assertRegex(said, f"^RuntimeError: {words} .*without a process group .* by 2 ranks")
        self.assertEqual(on_ranks(2, of_early_planners, made(ranks=1)), ["not refused"] * 2)


if __name__ == "__main__":
    unittest.main()
