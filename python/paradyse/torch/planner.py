"""Plans for PyTorch: what measured costs and a rank's memory say of groups, and paradyse.plan_groups."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import paradyse
import torch.distributed as dist

from .exchange import Groups, expect_average

SPACES = {"torch": "planned groups", "static": "every document over all ranks", "node": "every document over a node",
          "packed": "longest first, onto single ranks", "turns": "one document a rank in turn"}


@dataclasses.dataclass
class Costs:
    """What measure() found of a model on a machine: seconds of forward and backward of one rank, and bytes.

    message, byte, reduce: seconds of an all-to-all, a byte that a rank sends in one, a byte of an all-reduce; of each
    the first inside a node, the second over all ranks.
    """

    token: float  # seconds a token
    square: float = 0.0  # a token squared: attention
    document: float = 0.0  # a document: a call of attention in each layer
    micro_batch: float = 0.0
    recompute: float | None = None  # times as long where layers are made again; None: the model cannot
    error: float | None = None  # median of |predicted / measured - 1| of what the fit did not see
    message: tuple[float, float] = (0.0, 0.0)
    byte: tuple[float, float] = (0.0, 0.0)
    reduce: tuple[float, float] = (0.0, 0.0)
    parameters: int = 0
    itemsize: int = 4  # bytes of a parameter, and of a number in attention
    token_bytes: float = 0.0  # of memory, from forward to backward
    token_bytes_again: float = 0.0  # where layers are made again

    def write(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")


def costs(path: str | Path) -> Costs:
    """Reads what Costs.write() wrote."""
    try:
        read: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                for name, value in json.loads(Path(path).read_text()).items()}
        return Costs(**read)
    except (TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no file of Costs.write(): {error}; make it anew by measure()") from error


class Planner:
    """Plans batches of a Hugging Face model as the training loop plays them.

    config: of the model, or an object with num_attention_heads, num_hidden_layers and hidden_size.
    weights: "ddp" (whole on every rank: groups wait for no others), "fsdp2" (sharded over all ranks and gathered in
    each micro-batch), "hsdp" (over a node).  memory: of a rank, bytes or as in "70GiB", of which `reserve` stays free.
    moments: bytes of optimizer state a parameter (AdamW in float32: 8).  ranks: by default those of torch.distributed;
    1: this process alone.  node: ranks of one; by default torchrun's LOCAL_WORLD_SIZE.  space: "torch", or what it is
    compared with (SPACES).  Raises ValueError for what is not accepted, and for weights that leave no memory.
    """

    def __init__(self, config: Any, *, costs: Costs, memory: int | str, ranks: int | None = None, weights: str = "ddp",
                 node: int | None = None, space: str = "torch", recompute: bool = True, moments: int = 8,
                 reserve: float = 0.05, seed: int = 1, deadline: float = 600.0) -> None:
        joined = dist.is_initialized() and ranks != 1
        self.ranks = ranks or (dist.get_world_size() if joined else 1)
        self.rank = dist.get_rank() if joined else 0
        self.node = min(self.ranks, node or int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks)))
        for name, value, accepted in (("weights", weights, ("ddp", "fsdp2", "hsdp")), ("space", space, SPACES)):
            if value not in accepted:
                raise ValueError(f"{name} {value!r} is not known; accepted: {', '.join(accepted)}")
        if self.ranks % self.node or (joined and self.ranks != dist.get_world_size()):
            raise ValueError(f"ranks {self.ranks}: nodes of {self.node} ranks must divide them, and torch.distributed "
                             "must have as many, as every rank plays a part of every plan")
        self.config = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.costs, self.weights, self.space = costs, weights, space
        self.recompute, self.seed, self.deadline = recompute and costs.recompute is not None, seed, deadline
        self.model: paradyse.Model | None = None
        try:  # a model that the program paradyse plays, too: plans then say that they are for it
            self.model = paradyse.Model.from_config(config.to_json_string(use_diff=False))
        except (ValueError, TypeError, AttributeError):
            pass
        self.domain = {"ddp": 0, "fsdp2": self.ranks, "hsdp": self.node}[weights]
        most, pool = self.domain or self.ranks, joined and dist.get_backend() == "nccl"
        self.sizes = [p for p in range(1, most + 1) if (p <= self.node or p % self.node == 0)
                      and (not pool or p & (p - 1) == 0 or p in (self.node, most))]
        self.groups = Groups(self.ranks if joined else 1, self.sizes[1:], deadline)
        if joined and self.ranks > 1 and weights != "ddp":
            expect_average(deadline)
        self.room = _bytes(memory) * (1 - reserve) - self.static_bytes(moments)
        if self.room <= 0:
            raise ValueError(f"{costs.parameters:,} parameters by {weights} take {self.static_bytes(moments):,} "
                             f"bytes of {memory} a rank: give more memory or ranks, or weights='fsdp2'")

    def static_bytes(self, moments: int) -> int:
        """Weights, gradients and moments of a rank.  Gradients are whole on each while they accumulate; DDP has
        them in buckets, too; FSDP2 has the weights of two layers gathered."""
        item = self.costs.itemsize
        if self.weights == "ddp":
            return self.costs.parameters * (3 * item + moments)
        gathered = 2 * item / self.config.num_hidden_layers
        return int(self.costs.parameters * ((2 * item + moments) / self.domain + gathered + item))

    def plan(self, lengths: Sequence[int], space: str | None = None) -> paradyse.Plan:
        """The plan of documents of these lengths (tokens); the same on every rank.  Raises paradyse.NoPlan."""
        space = space or self.space
        sizes = {"static": self.sizes[-1:], "node": [self.node], "packed": [1], "turns": [1]}.get(space, self.sizes)
        kinds = [self.group_cost(p, again, lengths) for p in sizes for again in (False, True)[:1 + self.recompute]]
        if space == "turns":
            kinds = [kind for kind in kinds if kind.capacity >= max(lengths)][:1] or kinds[:1]
        costs, layers = self.costs, self.config.num_hidden_layers
        inside, across = int(self.domain > self.node), int(self.ranks > self.node)
        gradients = costs.parameters * costs.itemsize  # bytes; to gather weights twice is as much as to all-reduce them
        gather = gradients * costs.reduce[inside] + 2 * (layers + 1) * costs.message[inside] if self.domain > 1 else 0.0
        update = gradients * costs.reduce[across] / (2 if self.weights == "fsdp2" else 1) if self.ranks > 1 else 0.0
        plan = paradyse.plan_groups(
            lengths, [kind for kind in kinds if kind.capacity > 0], self.ranks, seed=self.seed, node=self.node,
            layers=layers, model=self.model, weight_domain=self.domain, micro_batch_seconds=gather, batch_seconds=update,
            planner="longest-first" if space == "packed" else "fast")
        return self._in_turns(plan, kinds[0], gather, update) if space == "turns" else plan

    def group_cost(self, ranks: int, again: bool, lengths: Sequence[int]) -> paradyse.GroupCost:
        """Of groups of so many ranks: each does its share of tokens and of heads, and waits for its messages."""
        c, heads, across = self.costs, self.config.num_attention_heads, int(ranks > self.node)
        slower, passes = (c.recompute or 1.0, 3) if again else (1.0, 2)
        most = -(-heads // ranks) / heads  # of the heads that a rank has
        width = getattr(self.config, "head_dim", None) or self.config.hidden_size // heads
        messages = 2 * passes * self.config.num_hidden_layers
        sent = messages * 2 * heads * width * c.itemsize * (ranks - 1) / ranks**2  # bytes a token, of a rank
        seconds = [max(1e-9, (c.token * n / ranks + c.square * n * n * most) * slower + c.document
                       + c.byte[across] * sent * n) for n in lengths]
        fixed = c.micro_batch + (messages * c.message[across] if ranks > 1 else 0.0)
        a_token = (c.token_bytes_again if again else c.token_bytes) * most  # bytes of a token on a rank
        capacity = int(self.room / a_token) if a_token > 0 else 2**40
        return paradyse.GroupCost(ranks, capacity, seconds, fixed, "layer" if again else "none")

    def _in_turns(self, plan: paradyse.Plan, cost: paradyse.GroupCost, gather: float, update: float) -> paradyse.Plan:
        """The same documents, the next to the next rank."""
        text = json.loads(plan.to_json())
        program, text["micro_batches"], done = next(iter(text["programs"])), [], [0.0] * self.ranks
        for first in range(0, len(cost.seconds), self.ranks):
            taken = [s + cost.fixed_seconds for s in cost.seconds[first:first + self.ranks]]
            groups = [{"ranks": [r], "documents": [first + r] if r < len(taken) else [], "program": program,
                       "predicted": {"seconds": taken[r] if r < len(taken) else 0.0}} for r in range(self.ranks)]
            text["micro_batches"].append({"groups": groups})
            done = [before + (max(taken) + gather if self.domain > 1 else mine)  # sharded: all ranks meet
                    for before, mine in zip(done, taken + [0.0] * self.ranks)]
        text["predicted"] = {"seconds": max(done) + update}
        return paradyse.Plan.from_json(json.dumps(text))


def _bytes(memory: int | str) -> int:
    found = re.fullmatch(r"([\d.]+) ?([KMGT])iB", str(memory))
    if not found and not isinstance(memory, int):
        raise ValueError(f"memory {memory!r}: accepted are bytes, or a text as in '70GiB' (KiB, MiB, GiB, TiB)")
    return int(float(found[1]) * 1024 ** ("KMGT".index(found[2]) + 1)) if found else int(memory)
