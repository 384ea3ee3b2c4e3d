"""What steps took beside what their plans said, and what other ways to divide them would have taken."""

from collections.abc import Sequence
from typing import Any

import paradyse

from .exchange import gathered
from .planner import SPACES
from .steps import Step

COLUMNS = "groups", "documents", "predicted", "measured"


def report(steps: Sequence[Step]) -> dict[str, Any]:
    """Of played steps: seconds predicted and measured (of forward and backward; waiting included), by size of
    group and together, imbalance of ranks (busiest / mean - 1) of both, and what every space would take by the
    same costs (None: does not fit).  Measured, a rank that waits for others inside its micro-batches is busy, so
    that imbalance is the smaller one.  All ranks call it with the same steps; rank 0 prints it."""
    if not steps:
        raise ValueError("there is no step to report: give those that were played")
    for number, step in enumerate(steps):
        if len(step.played) != len(step.plan.micro_batches):
            raise ValueError(f"step {number} was not played, so that it has no measured seconds: play it, or leave "
                             "it out")
    planner = steps[0].planner
    own = [[mb.seconds for mb in step.played] for step in steps]
    everyone = gathered(own, "the report's seconds of all ranks", planner.deadline) if planner.ranks > 1 else [own]
    groups: dict[int, dict[str, float]] = {}
    imbalance, measured_imbalance = 0.0, 0.0

    def uneven(busy: Sequence[float]) -> float:
        return (max(busy) * planner.ranks / max(sum(busy), 1e-12) - 1) / len(steps)

    for s, step in enumerate(steps):
        busy = [0.0] * planner.ranks
        for m, micro_batch in enumerate(step.plan.micro_batches):
            for group in filter(lambda group: group.documents, micro_batch.groups):
                row = groups.setdefault(len(group.ranks), dict.fromkeys(COLUMNS, 0))
                row["groups"] += 1
                row["documents"] += len(group.documents)
                row["predicted"] += group.predicted_seconds or 0.0
                row["measured"] += max(everyone[rank][s][m] for rank in group.ranks)
                for rank in group.ranks:
                    busy[rank] += group.predicted_seconds or 0.0
        imbalance += uneven(busy)
        measured_imbalance += uneven([sum(of_rank[s]) for of_rank in everyone])

    def seconds(space: str) -> float | None:
        try:
            plans = [planner.plan(step.plan.lengths.tolist(), space) for step in steps]
            return sum(plan.predicted_seconds or 0.0 for plan in plans)
        except paradyse.NoPlan:
            return None

    predicted = sum(step.plan.predicted_seconds or 0.0 for step in steps)
    measured = sum(max(sum(of_rank[s]) for of_rank in everyone) for s in range(len(steps)))
    spaces = {space: seconds(space) for space in SPACES}
    if planner.rank == 0:
        print(f"paradyse.torch: {len(steps)} steps, predicted {predicted:.3g} s, measured {measured:.3g} s, "
              f"imbalance of ranks {imbalance:.0%} predicted, {measured_imbalance:.0%} measured with waiting")
        for size, row in sorted(groups.items()):
            print(f"  {row['groups']} groups of {size} ranks: {row['documents']} documents, predicted "
                  f"{row['predicted']:.3g} s, measured {row['measured']:.3g} s")
        for space, taken in spaces.items():
            print(f"  {space} ({SPACES[space]}): {f'{taken:.3g} s predicted' if taken else 'does not fit'}")
    return {"predicted": predicted, "measured": measured, "imbalance": imbalance, "imbalance_measured": measured_imbalance,
            "groups": dict(sorted(groups.items())), "spaces": spaces}
