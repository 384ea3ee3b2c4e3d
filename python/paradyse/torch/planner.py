"""Plans for PyTorch: what measured costs and a rank's memory say of groups, and paradyse.plan_groups."""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import paradyse
import torch
import torch.distributed as dist
from paradyse.data.container import replace_file

from .agreement import expect_same
from .exchange import by_nccl, expect_average
from .items import expect_whole, finite, whole

SPACES = {"torch": "planned groups", "static": "every document over all ranks",
          "node": "every document over a node", "packed": "longest first, onto single ranks",
          "turns": "one document a rank in turn"}


@dataclasses.dataclass
class Costs:
    """What measure() found of a model on a machine: seconds of forward and backward of one rank, and bytes.

    A micro-batch takes micro_batch + the sum over its documents of token n + square n^2 + document.  message,
    byte, reduce: seconds of an all-to-all, a byte that a rank sends in one, a byte of an all-reduce; of each
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
    ranks: int = 0  # that measured at once; 0: not known

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            pair, least = name in ("message", "byte", "reduce"), int(name == "itemsize")
            if value is None and name in ("recompute", "error"):
                continue
            numbers = value if pair and isinstance(value, (tuple, list)) and len(value) == 2 else [value]
            for number in numbers:
                if not finite(number) or number < least or (name == "recompute" and not number):
                    raise ValueError(f"costs: {name} {value!r}: accepted " + (
                        "are two finite numbers" if pair else "is a finite number") + " from 0 on")
            if pair and len(numbers) != 2:
                raise ValueError(f"costs: {name} {value!r}: accepted are two finite numbers from 0 on")

    def write(self, path: str | Path, force: bool = False) -> None:
        """Raises FileExistsError for a file that is not of costs, unless `force` is given."""
        if os.path.lexists(path) and not force:
            try:
                costs(path)
            except (ValueError, OSError) as error:
                raise FileExistsError(f"{path} is there already, and is no file of Costs.write(): give another "
                                      "path, or force=True to replace it") from error
        replace_file(Path(path), (json.dumps(  # numbers of NumPy are accepted, too
            dataclasses.asdict(self), indent=1, default=lambda number: number.item()) + "\n").encode())


def costs(path: str | Path) -> Costs:
    """Reads what Costs.write() wrote."""
    try:
        read: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                                for name, value in json.loads(Path(path).read_text()).items()}
        return Costs(**read)
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no file of Costs.write(): {error}; make it anew by measure()") from error


def expect_one_of(name: str, value: str, accepted: Iterable[str]) -> None:
    if value not in accepted:
        raise ValueError(f"{name} {value!r} is not known; accepted: {', '.join(accepted)}")


def ranks_of_node(given: int | None, ranks: int) -> int:
    """`given`, else what torchrun says; all ranks without it."""
    return given or min(ranks, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))


def sizes_of(most: int, node: int, pool: bool) -> list[int]:
    """Of groups: up to a node or of whole nodes; of a pool few, powers of two above all."""
    return [p for p in range(1, most + 1) if (p <= node or p % node == 0)
            and (not pool or p & (p - 1) == 0 or p in (node, most))]


def pool_of(ranks: int, node: int, sizes: Iterable[int]) -> list[range]:
    """All groups of these sizes that a plan may have: at multiples of the size in a node, or over nodes."""
    return [range(r, r + size) for size in sizes if size > 1
            for begin in (range(0, ranks, node) if size <= node else (0,))
            for r in range(begin, (begin + node if size <= node else ranks) - size + 1, size)]


class Planner:
    """Plans batches of a Hugging Face model as the training loop plays them.

    config: of the model, or an object with num_attention_heads, num_hidden_layers and hidden_size.  memory:
    of a rank, bytes or as in "70GiB", of which `reserve` stays free.  ranks: else those of torch.distributed;
    1: this process alone.  weights: "ddp" (whole on every rank), "fsdp2" (sharded over all), "hsdp" (over a
    node).  node: ranks of one; else torchrun's LOCAL_WORLD_SIZE.  space: of SPACES.  moments: bytes of
    optimizer state a parameter (AdamW in float32: 8).  deadline: seconds of a wait.  All ranks make it, after
    init_process_group, with the same arguments.  Raises ValueError for what is not accepted, for arguments that
    differ between ranks, for costs that fewer ranks measured, and for weights that leave no memory.
    """

    def __init__(self, config: Any, *, costs: Costs, memory: int | str, ranks: int | None = None,
                 weights: str = "ddp", node: int | None = None, space: str = "torch", recompute: bool = True,
                 moments: int = 8, reserve: float = 0.05, seed: int = 1, deadline: float = 600.0) -> None:
        for what, count, least in (("ranks", ranks, 1), ("node", node, 1), ("seed", seed, 0),
                                   ("moments", moments, 0)):
            if count is not None:
                expect_whole(what, count, least)
        if seed >= 2**64:
            raise ValueError(f"seed {seed}: accepted are whole numbers below 2^64")
        if not (finite(reserve) and 0 <= reserve < 1):
            raise ValueError(f"reserve {reserve!r}: accepted is a share of the memory, from 0 to below 1")
        if not (finite(deadline) and deadline > 0):
            raise ValueError(f"deadline {deadline!r}: accepted are seconds above 0")
        joined = dist.is_initialized() and ranks != 1
        self.joined, self.alone = joined, ranks == 1
        self.ranks = ranks or (dist.get_world_size() if joined else 1)
        self.rank = dist.get_rank() if joined else 0
        self.node = ranks_of_node(node, self.ranks)
        domains = {"ddp": 0, "fsdp2": self.ranks, "hsdp": self.node}
        expect_one_of("weights", weights, domains)
        expect_one_of("space", space, SPACES)
        if self.ranks % self.node or (joined and self.ranks != dist.get_world_size()):
            raise ValueError(f"ranks {self.ranks}: nodes of {self.node} ranks must divide them, and "
                             "torch.distributed must have as many, as every rank plays a part of every plan")
        self.config = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.costs, self.weights, self.space = costs, weights, space
        self.recompute, self.seed, self.deadline = recompute and costs.recompute is not None, seed, deadline
        self.model: paradyse.Model | None = None
        try:  # a model that the program paradyse plays, too: plans then say that they are for it
            self.model = paradyse.Model.from_config(config.to_json_string(use_diff=False))
        except (ValueError, TypeError, AttributeError):
            pass
        self.domain = domains[weights]
        most, pool = self.domain or self.ranks, joined and by_nccl()
        self.sizes = sizes_of(most, self.node, pool)
        self._given = {"memory": _bytes(memory), "reserve": reserve, "moments": moments}
        if joined and self.ranks > 1:  # before the first message whose sizes depend on it
            settings = self.settings()
            expect_same("what they give to Planner", str(sorted(settings.items())), self.settings, deadline)
        if 0 < costs.ranks < self.ranks:
            raise ValueError(f"costs that {costs.ranks} ranks measured say nothing of messages and shared cores of "
                             f"{self.ranks}: call measure() on all ranks, after init_process_group; to plan by "
                             "these nevertheless, set costs.ranks = 0")
        self.groups = dict[tuple[int, ...], Any]()
        if pool:
            self._make_groups()
        if joined and self.ranks > 1 and weights != "ddp":
            expect_average(deadline)
        static = self.static_bytes(moments)
        self.room = _bytes(memory) * (1 - reserve) - static
        if self.room <= 0:
            raise ValueError(f"{costs.parameters:,} parameters by {weights} take {static:,} bytes of "
                             f"{memory} a rank: give more memory or ranks, or weights='fsdp2'")

    def settings(self) -> dict[str, str]:
        """What plans depend on besides lengths, by name."""
        numbers = {f"costs.{name}": value for name, value in dataclasses.asdict(self.costs).items()
                   if name != "error"}
        given: dict[str, Any] = {
            "ranks": self.ranks, "node": self.node, "weights": self.weights, "space": self.space,
            "recompute": self.recompute, "seed": self.seed, **self._given, **numbers,
            **{f"config.{name}": getattr(self.config, name, None)
               for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "head_dim")},
            "the version of paradyse": paradyse.__version__}
        return {name: _said(value) for name, value in given.items()}

    def expect_joined(self) -> None:
        """Raises RuntimeError where torch.distributed has come, or gone, since this was made."""
        world = dist.get_world_size() if dist.is_initialized() else 1
        if not self.alone and (world != self.ranks or (world > 1 and not self.joined)):
            raise RuntimeError(f"a Planner of {self.ranks} ranks that was made "
                               f"{'with' if self.joined else 'without'} a process group is played by {world} ranks: "
                               "make it after init_process_group (ranks=1: each process trains alone)")

    def group(self, ranks: Sequence[int]) -> Any:
        """The process group of these ranks.  All ranks of the job call this in the same order."""
        key = tuple(ranks)
        if len(key) > 1 and key not in self.groups:
            self.groups[key] = dist.new_group(list(key), timeout=timedelta(seconds=self.deadline))
        return self.groups.get(key)

    def _make_groups(self) -> None:
        """On NCCL all at once: a line says what memory they take."""
        before = torch.cuda.mem_get_info()[0]
        for members in pool_of(self.ranks, self.node, self.sizes):
            group = self.group(members)
            if self.rank in members:
                dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
        if self.rank == 0:
            taken = (before - torch.cuda.mem_get_info()[0]) / 2**20
            print(f"paradyse.torch: {len(self.groups)} NCCL groups of {self.sizes[1:]} ranks take "
                  f"{taken:.0f} MiB")

    def static_bytes(self, moments: int) -> int:
        """Weights, gradients and moments of a rank.  Gradients are whole on each while they accumulate; DDP
        has them in buckets, too; FSDP2 has the weights of two layers gathered."""
        item = self.costs.itemsize
        if self.weights == "ddp":
            return self.costs.parameters * (3 * item + moments)
        gathered = 2 * item / self.config.num_hidden_layers
        return int(self.costs.parameters * ((2 * item + moments) / self.domain + gathered + item))

    def plan(self, lengths: Sequence[int], space: str | None = None) -> paradyse.Plan:
        """Of documents of these lengths (tokens), the same on every rank.  Raises paradyse.NoPlan."""
        space, costs, layers = space or self.space, self.costs, self.config.num_hidden_layers
        lengths = whole(lengths, "lengths")
        expect_one_of("space", space, SPACES)
        only = {"static": self.sizes[-1:], "node": [self.node], "packed": [1], "turns": [1]}
        kinds = [self.group_cost(p, again, lengths) for p in only.get(space, self.sizes)
                 for again in (False, True)[:1 + self.recompute]]
        if space == "turns":
            kinds = [kind for kind in kinds if kind.capacity >= max(lengths)][:1] or kinds[:1]
        inside, across = int(self.domain > self.node), int(self.ranks > self.node)
        gradients = costs.parameters * costs.itemsize  # bytes: to gather weights twice is to all-reduce these
        gather = gradients * costs.reduce[inside] + 2 * (layers + 1) * costs.message[inside]
        gather = gather if self.domain > 1 else 0.0
        update = gradients * costs.reduce[across] / (1 + (self.weights == "fsdp2")) if self.ranks > 1 else 0.0
        plan = paradyse.plan_groups(
            lengths, [kind for kind in kinds if kind.capacity > 0], self.ranks, seed=self.seed,
            node=self.node, layers=layers, model=self.model, weight_domain=self.domain,
            micro_batch_seconds=gather, batch_seconds=update,
            planner="longest-first" if space == "packed" else "fast")
        return self._in_turns(plan, kinds[0], gather, update) if space == "turns" else plan

    def group_cost(self, ranks: int, again: bool, lengths: Sequence[int]) -> paradyse.GroupCost:
        """Of groups of so many ranks: each does its share of tokens and heads, and waits for its messages."""
        c, heads, across = self.costs, self.config.num_attention_heads, int(ranks > self.node)
        slower, passes = (c.recompute or 1.0, 3) if again else (1.0, 2)
        most = -(-heads // ranks) / heads  # of the heads that a rank has
        width = getattr(self.config, "head_dim", None) or self.config.hidden_size // heads
        messages = 2 * passes * self.config.num_hidden_layers
        sent = messages * 2 * heads * width * c.itemsize * (ranks - 1) / ranks**2  # bytes a token, of a rank
        n = np.asarray(lengths, float)
        computed = (c.token * n / ranks + c.square * n * n * most) * slower
        seconds = computed + c.document + c.byte[across] * sent * n
        fixed = c.micro_batch + (messages * c.message[across] if ranks > 1 else 0.0)
        a_token = (c.token_bytes_again if again else c.token_bytes) * most  # bytes of a token on a rank
        return paradyse.GroupCost(ranks, int(self.room / a_token) if a_token > 0 else 2**40,
                                  np.maximum(seconds, 1e-9).tolist(), fixed, "layer" if again else "none")

    def _in_turns(self, plan: paradyse.Plan, cost: paradyse.GroupCost, gather: float,
                  update: float) -> paradyse.Plan:
        """The same documents, the next to the next rank."""
        text = json.loads(plan.to_json())
        program, text["micro_batches"], done = next(iter(text["programs"])), [], np.zeros(self.ranks)
        for first in range(0, len(cost.seconds), self.ranks):
            count = len(cost.seconds[first:first + self.ranks])
            taken = np.zeros(self.ranks)
            taken[:count] = np.array(cost.seconds[first:first + count]) + cost.fixed_seconds
            text["micro_batches"].append({"groups": [
                {"ranks": [r], "documents": [first + r] if r < count else [], "program": program,
                 "predicted": {"seconds": float(taken[r])}} for r in range(self.ranks)]})
            done += taken.max() + gather if self.domain > 1 else taken  # sharded: all ranks meet
        text["predicted"] = {"seconds": float(done.max()) + update}
        return paradyse.Plan.from_json(json.dumps(text))


def _said(value: Any) -> str:
    """Equal numbers are one text, of whatever types."""
    if isinstance(value, (tuple, list)):
        return " and ".join(map(_said, value))
    return repr(float(value)).removesuffix(".0") if finite(value) else str(value)


def _bytes(memory: int | str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT])iB", str(memory))
    if not found and (not isinstance(memory, Integral) or isinstance(memory, bool)):
        raise ValueError(f"memory {memory!r}: accepted are bytes, or a text as in '70GiB' (KiB, MiB, GiB, "
                         "TiB)")
    taken = int(float(found[1]) * 1024 ** ("KMGT".index(found[2]) + 1)) if found else int(memory)
    if taken < 1:
        raise ValueError(f"memory {memory!r}: a rank has at least one byte")
    return taken
