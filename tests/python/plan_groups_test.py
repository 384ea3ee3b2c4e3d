"""paradyse.plan_groups: plans by costs that come with the question, those of paradyse.torch."""

import random
import unittest

import paradyse


def costs(lengths, sizes=(1, 2, 4), levels=("none",), capacity=1000, document=0.0):
    """A token takes a second on one rank, and a fifth more where layers are made again, with twice the room."""
    slower = {"none": 1.0, "layer": 1.2}
    room = {"none": 1, "layer": 2}
    return [paradyse.GroupCost(size, capacity * size * room[level],
                               [n * slower[level] / size + document for n in lengths], recompute=level)
            for level in levels for size in sizes]


def replayed(plan):
    """Until the last rank is done, where ranks wait for those of their groups alone."""
    done = [0.0] * plan.ranks
    for micro_batch in plan.micro_batches:
        for group in micro_batch.groups:
            end = max(done[rank] for rank in group.ranks) + (group.predicted_seconds or 0)
            for rank in group.ranks:
                done[rank] = end
    return max(done)


class PlanGroupsTest(unittest.TestCase):
    def test_every_document_runs_once_alone_or_by_ulysses(self):
        draw = random.Random(1)
        for weight_domain in (0, 2, 4):
            for _ in range(20):
                lengths = [draw.randint(1, 900 * (weight_domain or 4)) for _ in range(draw.randint(1, 30))]
                sizes = [size for size in (1, 2, 4) if size <= (weight_domain or 4)]
                groups = costs(lengths, sizes, ("none", "layer"))
                plan = paradyse.plan_groups(lengths, groups, 4, layers=3, weight_domain=weight_domain,
                                            micro_batch_seconds=5.0 if weight_domain else 0.0, batch_seconds=7.0)
                self.assertEqual(paradyse.check(plan), [])
                self.assertEqual(plan.planner, "fast")
                documents = sorted(d for m in plan.micro_batches for g in m.groups for d in g.documents)
                self.assertEqual(documents, list(range(len(lengths))))
                for micro_batch in plan.micro_batches:
                    for group in micro_batch.groups:
                        run, = plan.programs[group.program]
                        self.assertEqual(run.layers, 3)
                        self.assertEqual(run.parts[0].strategy, "UlyssesZ" if len(group.ranks) > 1 else "DataZ")
                        again = {part.recompute for part in run.parts}
                        self.assertIn(again, ({"none"}, {"layer"}))
                        room = 1000 * len(group.ranks) * (2 if again == {"layer"} else 1)
                        self.assertLessEqual(sum(lengths[d] for d in group.documents), room)
                if weight_domain == 0:
                    self.assertAlmostEqual(plan.predicted_seconds, replayed(plan) + 7)
                else:
                    self.assertAlmostEqual(plan.predicted_seconds,
                                           7 + sum(m.predicted_seconds for m in plan.micro_batches))
                    for micro_batch in plan.micro_batches:
                        used = {p.recompute for g in micro_batch.groups for p in plan.programs[g.program][0].parts}
                        self.assertEqual(len(used), 1)
                self.assertLessEqual(plan.lower_bound_seconds, plan.predicted_seconds)
                again = paradyse.plan_groups(lengths, groups, 4, layers=3, weight_domain=weight_domain,
                                             micro_batch_seconds=5.0 if weight_domain else 0.0, batch_seconds=7.0)
                self.assertEqual(again.to_json(), plan.to_json())

    def test_without_a_barrier_the_next_group_begins_when_its_ranks_are_free(self):
        lengths = [900, 100, 900, 100]
        groups = costs(lengths, (1,))
        whole = paradyse.plan_groups(lengths, groups, 2)
        self.assertEqual(whole.predicted_seconds, 1000)  # 900 and then 100 on each

    def test_seconds_a_document_spread_small_documents(self):
        lengths = [1000] + [1] * 60
        groups = costs(lengths, (1,), capacity=2000, document=20.0)
        plan = paradyse.plan_groups(lengths, groups, 2)
        most = max(len(g.documents) for m in plan.micro_batches for g in m.groups)
        self.assertLess(most, 60)  # by tokens alone all sixty belong beside the long one
        self.assertLess(plan.predicted_seconds, 60 * 21)

    def test_what_is_refused(self):
        one = [paradyse.GroupCost(1, 10, [1.0])]
        with self.assertRaisesRegex(paradyse.NoPlan, "document 0 has 11 tokens"):
            paradyse.plan_groups([11], one, 2)
        for arguments, words in (({"weight_domain": 3}, "a divisor of 4 ranks"),
                                 ({"micro_batch_seconds": -1.0}, "at least 0"), ({"planner": "fats"}, "fats")):
            with self.assertRaisesRegex(ValueError, words):
                paradyse.plan_groups([5], one, 4, **arguments)
        with self.assertRaisesRegex(ValueError, "accepted: none, layer"):
            paradyse.plan_groups([5], [paradyse.GroupCost(1, 10, [1.0], recompute="some")], 4)
        with self.assertRaisesRegex(ValueError, "larger than the 2"):
            paradyse.plan_groups([5], [paradyse.GroupCost(4, 10, [1.0])], 4, weight_domain=2)
        with self.assertRaisesRegex(ValueError, "at least one document"):
            paradyse.plan_groups([], one, 4)


if __name__ == "__main__":
    unittest.main()
