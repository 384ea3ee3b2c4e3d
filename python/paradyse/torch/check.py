"""Whether a model on its plan has the loss and gradients of one process: the first thing to run."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .items import IGNORED, ids_and_labels, length_of
from .planner import Costs, Planner
from .steps import Step

FLOOR = 1e-6  # of the whole gradient's norm: gradients that are zero in exact arithmetic


@dataclass
class Check:
    """Relative differences from one process in float64: of the loss, and the largest of a gradient."""

    loss: float
    gradient: float
    parameter: str  # whose gradient that is
    own: float  # the largest difference of one process's gradients in the model's own precision

    def __str__(self) -> str:
        return (f"loss differs by {self.loss:.1e}, gradients by at most {self.gradient:.1e}\n"
                f"  largest for {self.parameter}\n"
                f"  one process in this precision: gradients by at most {self.own:.1e}")


def check(model: Any, batch: Sequence[Any], planner: Planner | None = None) -> Check:
    """Plays `batch` (items of a dataset) by a plan and in one process, and prints the difference.

    model: attached, the same on all ranks, not wrapped by DDP or fully_shard, without dropout.  Without a
    planner every document is cut over all ranks.  All ranks call it; gradients of the model are cleared.
    """
    lengths = [length_of(item) for item in batch]
    counts = [ids_and_labels(item, d, n)[1] for d, (item, n) in enumerate(zip(batch, lengths))]
    if all(label == IGNORED for labels in counts for label in labels):
        raise ValueError(f"no label of the {len(lengths)} documents counts, so that there is nothing to compare: give "
                         "documents of two tokens or more")
    planner = planner or Planner(model.config, costs=Costs(token=1.0), memory="1TiB", space="static")
    alone = Planner(model.config, costs=Costs(token=1.0), memory="1TiB", space="turns", ranks=1)

    def played(model: Any, planner: Planner) -> tuple[float, dict[str, torch.Tensor]]:
        model.zero_grad(set_to_none=True)
        plan = planner.plan(lengths)
        loss = Step(plan, range(len(batch)), planner, next(model.parameters()).device).play(model, batch)
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad(set_to_none=True)
        return loss, grads

    reference = copy.deepcopy(model).double()
    if hasattr(reference, "set_experts_implementation"):  # grouped products have no float64
        reference.set_experts_implementation("eager")
    exact, wanted = played(reference, alone)
    norms = {name: float(grad.norm()) for name, grad in wanted.items()}
    floor = max(FLOOR * sum(norm**2 for norm in norms.values() if math.isfinite(norm)) ** 0.5, 1e-300)

    def worst(grads: dict[str, torch.Tensor]) -> tuple[float, str]:
        differences = {name: float((grads[name].double() - grad).norm()) / max(norms[name], floor)
                       for name, grad in wanted.items()}
        # NaN is below nothing and above nothing
        return max((math.inf if math.isnan(one) else one, name) for name, one in differences.items())

    loss, grads = played(model, planner)
    own = worst(played(model, alone)[1])[0]
    result = Check(abs(loss - exact) / max(abs(exact), 1e-12), *worst(grads), own)
    if planner.rank == 0:
        print(f"paradyse.torch.check: {result}")
    return result
