"""Plans for PyTorch: what measured costs and a rank's memory say of groups, and paradyse.plan_groups."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paradyse
import torch.distributed as dist

from .exchange import Groups

SPACES = {"torch": "planned groups", "static": "every document over all ranks", "node": "every document over a node",
          "packed": "longest first, onto single ranks", "turns": "one document a rank in turn"}


@dataclasses.dataclass
class Costs:
    """What measure() found of a model on a machine: seconds of forward and backward of one rank, and bytes.

    The network's are seconds of one message and seconds a byte that a rank sends, inside a node and across nodes.
    """

    token: float  # seconds a token
    square: float = 0.0  # a token squared: attention
    document: float = 0.0  # a document: a call of attention in each layer
    micro_batch: float = 0.0
    recompute: float | None = None  # times as long where layers are made again; None: the model cannot
    error: float | None = None  # median of |predicted / measured - 1| of what the fit did not see
    message: tuple[float, float] = (0.0, 0.0)  # inside a node, across
    byte: tuple[float, float] = (0.0, 0.0)
    reduce: tuple[float, float] = (0.0, 0.0)  # all-reduce, seconds a byte of gradients
    parameters: int = 0
    itemsize: int = 4  # bytes of a parameter, and of a number in attention
    token_bytes: float = 0.0  # of memory, from forward to backward
    token_bytes_again: float = 0.0  # where layers are made again

    def write(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def costs(path: str | Path) -> Costs:
    """Reads what Costs.write() wrote."""
    try:
        read = json.loads(Path(path).read_text())
        return Costs(**{name: tuple(value) if isinstance(value, list) else value for name, value in read.items()})
    except (TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no file of Costs.write(): {error}; make it anew by measure()") from error


class Planner:
    """Plans batches of a Hugging Face model as the training loop plays them.

    weights: "ddp" (whole on every rank: groups wait for no others), "fsdp2" (sharded over all ranks and gathered in
    each micro-batch), "hsdp" (over a node).  memory: of a rank, bytes or as in "70GiB", of which `reserve` stays free.
    moments: bytes of optimizer state a parameter (AdamW in float32: 8).  node: ranks of one; by default torchrun's
    LOCAL_WORLD_SIZE.  space: "torch", or what it is compared with (SPACES).  Errors: ValueError, paradyse.NoPlan.
    """

    def __init__(self, config: Any, *, costs: Costs, memory: int | str, ranks: int | None = None, weights: str = "ddp",
                 node: int | None = None, space: str = "torch", recompute: bool = True, moments: int = 8,
                 reserve: float = 0.05, seed: int = 1, deadline: float = 600.0) -> None:
        joined = dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.ranks = ranks or (dist.get_world_size() if joined else 1)
        self.node = min(self.ranks, node or int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks)))
        if weights not in ("ddp", "fsdp2", "hsdp"):
            raise ValueError(f"weights {weights!r} is not known; accepted: ddp, fsdp2, hsdp")
        if space not in SPACES:
            raise ValueError(f"space {space!r} is not known; accepted: {', '.join(SPACES)}")
        if self.ranks % self.node:
            raise ValueError(f"nodes of {self.node} ranks do not divide {self.ranks} ranks")
        if joined and self.ranks != dist.get_world_size():
            raise ValueError(f"ranks {self.ranks}, but torch.distributed has {dist.get_world_size()}: they must be "
                             "the same, as every rank plays a part of every plan")
        self.config, self.costs, self.weights, self.space = config.get_text_config(), costs, weights, space
        self.recompute = recompute and costs.recompute is not None
        self.seed, self.deadline = seed, deadline
        self.domain = {"ddp": 0, "fsdp2": self.ranks, "hsdp": self.node}[weights]
        most = self.domain or self.ranks
        nccl = joined and dist.get_backend() == "nccl"  # from a fixed pool
        self.sizes = [p for p in range(1, most + 1) if (p <= self.node or p % self.node == 0)
                      and (not nccl or p & (p - 1) == 0 or p in (self.node, most))]
        self.groups = Groups(self.ranks if joined else 1, [p for p in self.sizes if p > 1], deadline)
        bytes_of_rank = memory if isinstance(memory, int) else _bytes(memory)
        self.room = bytes_of_rank * (1 - reserve) - self.static_bytes(moments)
        if self.room <= 0:
            raise ValueError(f"{costs.parameters:,} parameters by {weights} take {self.static_bytes(moments):,.0f} "
                             f"bytes of {memory} a rank: give more memory or ranks, or weights='fsdp2'")

    def static_bytes(self, moments: int) -> float:
        """Weights, gradients and moments of a rank.  Gradients are whole on each while they accumulate; DDP has
        them in buckets, too; FSDP2 has the weights of two layers gathered."""
        c = self.costs
        if self.weights == "ddp":
            return c.parameters * (3 * c.itemsize + moments)
        gathered = 2 * c.itemsize / self.config.num_hidden_layers
        return c.parameters * ((2 * c.itemsize + moments) / self.domain + gathered + c.itemsize)

    def plan(self, lengths: Sequence[int], space: str | None = None) -> paradyse.Plan:
        """The plan of documents of these lengths (tokens); the same on every rank.  Raises paradyse.NoPlan."""
        space = space or self.space
        sizes = {"static": [max(self.sizes)], "node": [self.node], "packed": [1], "turns": [1]}.get(space, self.sizes)
        levels = (False, True) if self.recompute else (False,)
        kinds = [self.group_cost(p, again, lengths) for p in sizes for again in levels]
        c, across = self.costs, int(self.domain > self.node)
        bytes_ = c.parameters * c.itemsize
        gather = bytes_ * c.reduce[across] if self.domain > 1 else 0.0
        update = bytes_ * c.reduce[int(self.ranks > self.node)] / (2 if self.weights == "fsdp2" else 1)
        plan = paradyse.plan_groups(
            lengths, [kind for kind in kinds if kind.capacity > 0], self.ranks, seed=self.seed, node=self.node,
            layers=self.config.num_hidden_layers, weight_domain=self.domain, micro_batch_seconds=gather,
            batch_seconds=update if self.ranks > 1 else 0.0,
            planner="longest-first" if space == "packed" else "fast")
        return plan if space != "turns" else self._in_turns(plan, kinds, gather, update)

    def group_cost(self, ranks: int, again: bool, lengths: Sequence[int]) -> paradyse.GroupCost:
        """Of groups of so many ranks: each does its share of tokens and of heads, and waits for its messages."""
        c, heads, layers = self.costs, self.config.num_attention_heads, self.config.num_hidden_layers
        slower = c.recompute or 1.0 if again else 1.0
        most = math.ceil(heads / ranks) / heads  # of the heads that a rank has
        across = int(ranks > self.node)
        width = getattr(self.config, "head_dim", None) or self.config.hidden_size // heads
        passes = 3 if again else 2
        sent = 4 * heads * width * c.itemsize * layers * passes * (ranks - 1) / ranks**2  # bytes a token
        seconds = [(c.token * n / ranks + c.square * n * n * most) * slower + c.document + c.byte[across] * sent * n
                   for n in lengths]
        fixed = c.micro_batch + (2 * layers * passes * c.message[across] if ranks > 1 else 0.0)
        a_token = (c.token_bytes_again if again else c.token_bytes) * most  # activations of a token on a rank
        capacity = int(self.room / a_token) if a_token > 0 else 2**40
        return paradyse.GroupCost(ranks, capacity, [max(s, 1e-9) for s in seconds], fixed,
                                  "layer" if again else "none")

    def _in_turns(self, plan: paradyse.Plan, kinds: list[paradyse.GroupCost], gather: float, update: float) -> Any:
        """The same documents, the next to the next rank."""
        text = json.loads(plan.to_json())
        program = plan.micro_batches[0].groups[0].program
        seconds = kinds[0].seconds
        text["micro_batches"] = []
        total = [0.0] * self.ranks
        for first in range(0, len(seconds), self.ranks):
            groups = [{"ranks": [r], "documents": [first + r] if first + r < len(seconds) else [], "program": program}
                      for r in range(self.ranks)]
            for r, group in enumerate(groups):
                if group["documents"]:
                    alone = seconds[first + r] + kinds[0].fixed_seconds
                    group["predicted"] = {"seconds": alone}
                    total[r] += alone
            text["micro_batches"].append({"groups": groups})
        text["predicted"] = {"seconds": max(total) + update}
        return paradyse.Plan.from_json(json.dumps(text))


def _bytes(text: str) -> int:
    for unit, factor in (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30), ("TiB", 2**40)):
        if text.endswith(unit):
            return int(float(text[:-3]) * factor)
    raise ValueError(f"memory {text!r}: accepted are bytes, or a text as in '70GiB' (KiB, MiB, GiB, TiB)")
