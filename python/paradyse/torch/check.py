"""Whether a model on its plan has the loss and gradients of one process: the first thing to run."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .exchange import Exchange
from .planner import Costs, Planner
from .steps import IGNORED, Step, accumulate, loss_sum

FLOOR = 1e-6  # of the whole gradient's norm: gradients that are zero in exact arithmetic


@dataclass
class Check:
    """Differences from one process in float64, relative: of the loss, and the largest of a parameter's gradient."""

    loss: float
    gradient: float
    parameter: str  # whose gradient that is
    own: float  # the largest difference of one process's gradients in the model's own precision

    def __str__(self) -> str:
        return (f"loss differs by {self.loss:.1e}, gradients by at most {self.gradient:.1e} ({self.parameter}); one "
                f"process in this precision by {self.own:.1e}")


def check(model: Any, batch: Sequence[Any], planner: Planner | None = None) -> Check:
    """Plays `batch` (items as Steps reads them) on a plan and in one process each, and prints the difference.

    model: attached, the same on all ranks, not wrapped by DDP or fully_shard.  Without a planner every document is
    cut over all ranks.  Dropout must be 0.  All ranks call it; gradients of the model are cleared.
    """
    lengths = [len(item["input_ids"] if hasattr(item, "keys") else item) for item in batch]
    costs = Costs(token=1.0, recompute=None)
    alone = Planner(model.config, costs=costs, memory="1TiB", ranks=None, space="static")
    planner = planner or alone
    step = Step(planner.plan(lengths), range(len(batch)), planner, next(model.parameters()).device)
    found = _played(model, step, batch)
    exact, wanted = _one_process(copy.deepcopy(model).double(), batch)
    own = _worst(_one_process(model, batch)[1], wanted)[0]
    gradient, parameter = _worst(found[1], wanted)
    result = Check(abs(found[0] - exact) / max(abs(exact), 1e-12), gradient, parameter, own)
    if planner.rank == 0:
        print(f"paradyse.torch.check: {result}")
    return result


def _played(model: Any, step: Step, batch: Sequence[Any]) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    total = 0.0
    for mb in step.micro_batches(batch):
        with accumulate(model, mb):
            loss = loss_sum(model(**mb.inputs), mb.labels)
            (loss * step.scale).backward()
        total += float(loss.detach())
    return step.mean(total), _gradients(model)


def _one_process(model: Any, batch: Sequence[Any]) -> tuple[float, dict[str, torch.Tensor]]:
    """Each document by itself."""
    model.zero_grad(set_to_none=True)
    device = next(model.parameters()).device
    total, count = 0.0, 0
    for item in batch:
        ids = torch.as_tensor(item["input_ids"] if hasattr(item, "keys") else item, device=device)
        labels = torch.as_tensor(item["labels"], device=device) if hasattr(item, "keys") and "labels" in item else ids
        shifted = torch.cat([labels[1:], labels.new_full((1,), IGNORED)])
        logits = model(input_ids=ids[None], position_ids=torch.arange(len(ids), device=device)[None], use_cache=False,
                       paradyse=Exchange([len(ids)]))
        loss = loss_sum(logits, shifted[None])
        loss.backward()
        total, count = total + float(loss.detach()), count + int((shifted != IGNORED).sum())
    gradients = {name: grad / max(1, count) for name, grad in _gradients(model).items()}
    return total / max(1, count), gradients


def _gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad
             for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad(set_to_none=True)
    return found


def _worst(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> tuple[float, str]:
    floor = FLOOR * float(sum(float(g.norm()) ** 2 for g in wanted.values())) ** 0.5
    apart = {name: float((found[name].double() - g).norm()) / max(float(g.norm()), floor, 1e-300)
             for name, g in wanted.items()}
    return max((difference, name) for name, difference in apart.items())
