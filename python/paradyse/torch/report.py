"""What steps took beside what their plans said, and beside what other ways to divide them would have taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import paradyse
import torch.distributed as dist

from .planner import SPACES
from .steps import Step


def report(steps: Sequence[Step]) -> dict[str, Any]:
    """Of played steps: seconds predicted and measured (of forward and backward; waiting included), by size of group
    and together, imbalance of ranks (busiest / mean - 1), and what every space would take by the same costs (None:
    does not fit).  All ranks call it with the same steps; rank 0 prints it."""
    planner = steps[0].planner
    mine = [[mb.seconds for mb in step.played] for step in steps]
    everyone: list[Any] = [mine]
    if planner.ranks > 1:
        everyone = [None] * planner.ranks
        dist.all_gather_object(everyone, mine)
    groups: dict[int, dict[str, float]] = {}
    predicted = measured = 0.0
    imbalance = []
    spaces: dict[str, float | None] = dict.fromkeys(SPACES, 0.0)
    for s, step in enumerate(steps):
        busy = [0.0] * planner.ranks
        for m, micro_batch in enumerate(step.plan.micro_batches):
            for group in micro_batch.groups:
                seconds = max(everyone[rank][s][m] for rank in group.ranks)
                for rank in group.ranks:
                    busy[rank] += group.predicted_seconds or 0.0
                if group.documents:
                    row = groups.setdefault(len(group.ranks), {"groups": 0, "documents": 0, "predicted": 0.0,
                                                               "measured": 0.0})
                    for key, value in (("groups", 1), ("documents", len(group.documents)),
                                       ("predicted", group.predicted_seconds or 0.0), ("measured", seconds)):
                        row[key] += value
        predicted += step.plan.predicted_seconds or 0.0
        measured += max(sum(of_rank[s]) for of_rank in everyone)
        imbalance.append(max(busy) * planner.ranks / max(sum(busy), 1e-12) - 1)
        for space, seconds_of in spaces.items():
            try:
                plan = planner.plan(step.plan.lengths.tolist(), space)
            except paradyse.NoPlan:
                spaces[space] = None
            else:
                spaces[space] = None if seconds_of is None else seconds_of + (plan.predicted_seconds or 0.0)
    found = {"predicted": predicted, "measured": measured, "imbalance": sum(imbalance) / len(imbalance),
             "groups": dict(sorted(groups.items())), "spaces": spaces}
    if planner.rank == 0:
        print(f"paradyse.torch: {len(steps)} steps, predicted {predicted:.3g} s, measured {measured:.3g} s, imbalance "
              f"{found['imbalance']:.0%}")
        for size, row in found["groups"].items():
            print(f"  {row['groups']:.0f} groups of {size} ranks: {row['documents']:.0f} documents, predicted "
                  f"{row['predicted']:.3g} s, measured {row['measured']:.3g} s")
        for space, value in spaces.items():
            print(f"  {space} ({SPACES[space]}): " + ("does not fit" if value is None else f"{value:.3g} s predicted"))
    return found
