"""Whether a model on its plan has the loss and gradients of one process: the first thing to run."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .planner import Costs, Planner
from .steps import Step

FLOOR = 1e-6  # of the whole gradient's norm: gradients that are zero in exact arithmetic


@dataclass
class Check:
    """Differences from one process in float64, relative: of the loss, and the largest of a parameter's gradient."""

    loss: float
    gradient: float
    parameter: str  # whose gradient that is
    own: float  # the largest difference of one process's gradients in the model's own precision

    def __str__(self) -> str:
        return (f"loss differs by {self.loss:.1e}, gradients by at most {self.gradient:.1e}\n"
                f"  largest for {self.parameter}\n"
                f"  one process in this precision: gradients by at most {self.own:.1e}")


def check(model: Any, batch: Sequence[Any], planner: Planner | None = None) -> Check:
    """Plays `batch` (items as Step.micro_batches reads them) by a plan and in one process, and prints the difference.

    model: attached, the same on all ranks, not wrapped by DDP or fully_shard, without dropout.  Without a planner
    every document is cut over all ranks.  All ranks call it; gradients of the model are cleared.
    """
    anyhow: dict[str, Any] = {"costs": Costs(token=1.0), "memory": "1TiB"}
    planner = planner or Planner(model.config, space="static", **anyhow)
    alone = Planner(model.config, ranks=1, space="turns", **anyhow)  # each document by itself
    loss, found = _played(model, batch, planner)
    exact, wanted = _played(copy.deepcopy(model).double(), batch, alone)
    gradient, parameter = _worst(found, wanted)
    own = _worst(_played(model, batch, alone)[1], wanted)[0]
    result = Check(abs(loss - exact) / max(abs(exact), 1e-12), gradient, parameter, own)
    if planner.rank == 0:
        print(f"paradyse.torch.check: {result}")
    return result


def _played(model: Any, batch: Sequence[Any], planner: Planner) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    plan = planner.plan([len(item["input_ids"] if hasattr(item, "keys") else item) for item in batch])
    loss = Step(plan, range(len(batch)), planner, next(model.parameters()).device).play(model, batch)
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss, grads


def _worst(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> tuple[float, str]:
    floor = FLOOR * float(sum(float(g.norm()) ** 2 for g in wanted.values())) ** 0.5
    return max((float((found[name].double() - g).norm()) / max(float(g.norm()), floor, 1e-300), name)
               for name, g in wanted.items())
