"""Steps of training by plans: which documents, in which groups, and one denominator for all of them."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import paradyse
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import set_checkpoint_early_stop

from .exchange import Exchange, piece, wait
from .planner import Planner

IGNORED = -100  # a label that counts nothing


@dataclass
class MicroBatch:
    """What this rank does in one micro-batch: model(**inputs) gives the logits of `labels`."""

    inputs: dict[str, Any]  # input_ids, position_ids: [1, tokens]; paradyse: the Exchange
    labels: torch.Tensor  # [1, tokens], shifted: of the next token, or -100
    group: paradyse.Group
    deadline: float
    number: int = 0
    last: bool = True  # of the step: gradients are exchanged with it
    recompute: bool = False  # layers are made again in the backward pass
    seconds: float | None = field(default=None, init=False)  # measured by accumulate()


class Step:
    """One optimizer step: a plan, and the documents (indices into the dataset) that it is for."""

    def __init__(self, plan: paradyse.Plan, documents: Sequence[int], planner: Planner,
                 device: torch.device | str = "cpu", labels: Sequence[int] | None = None) -> None:
        self.plan, self.documents, self.planner, self.device = plan, list(documents), planner, device
        self.labels: int | None = None if labels is None else sum(labels[d] for d in documents)
        self.played: list[MicroBatch] = []

    @property
    def scale(self) -> float:
        """Of each sum of losses, so that the averaged gradients are those of the mean over the step's labels."""
        if self.labels is None:
            raise RuntimeError("step.scale is known once step.micro_batches(dataset) has begun: it counts the labels")
        return self.planner.ranks / self.labels if self.labels else 0.0

    def micro_batches(self, dataset: Any) -> list[MicroBatch]:
        """Those of this rank, as many as every other rank has; all ranks call it.

        dataset[i] has "input_ids" and maybe "labels" (as many, not shifted, -100: none), or is a sequence of ids.
        """
        planner, me = self.planner, self.planner.rank
        self.played = []
        for number, micro_batch in enumerate(self.plan.micro_batches):
            for group in micro_batch.groups:
                planner.groups.of(group.ranks)  # by all ranks, in the plan's order
            group = micro_batch.group_of(me)
            rank, ranks = group.ranks.index(me), len(group.ranks)
            documents = [self.documents[d] for d in group.documents]
            exchange = Exchange([int(self.plan.lengths[d]) for d in group.documents], rank, ranks,
                                planner.groups.of(group.ranks), deadline=planner.deadline,
                                name=f"ranks {group.ranks} in micro-batch {number} (documents {documents}), "
                                     f"on rank {me}")
            rows: list[list[int]] = [[], [], []]
            for document, n in zip(documents, exchange.lengths):
                ids, labels = _item(dataset[document], document, n)
                for row, values in zip(rows, (ids, range(n), labels)):
                    mine = piece(n, rank, ranks)
                    row += values[mine.start:mine.stop]
            if exchange.tokens == 0:
                rows = [[0], [0], [IGNORED]]  # a dummy that reaches every parameter with weight 0
            ids, positions, labels = (torch.tensor([row], device=self.device) for row in rows)
            run = self.plan.programs[group.program][0].parts[0]
            self.played.append(MicroBatch(
                {"input_ids": ids, "position_ids": positions, "use_cache": False, "paradyse": exchange}, labels, group,
                planner.deadline, number, number + 1 == len(self.plan.micro_batches), "layer" in run.recompute))
        if self.labels is None:
            counted = sum(int((mb.labels != IGNORED).sum()) for mb in self.played)
            self.labels = int(self._sum(torch.tensor(counted, device=self.device), "the count of labels"))
        return self.played

    def mean(self, total: torch.Tensor | float) -> float:
        """The step's mean loss from this rank's sum of losses (unscaled); all ranks call it."""
        both = torch.tensor(float(total), dtype=torch.float64, device=self.device)
        return float(self._sum(both, "the sum of losses")) / max(1, self.labels or 0)

    def _sum(self, value: torch.Tensor, what: str) -> torch.Tensor:
        if self.planner.ranks > 1:
            wait(dist.all_reduce(value, async_op=True), self.planner.deadline, f"{what}, over all ranks")
        return value


def _item(item: Any, document: int, length: int) -> tuple[list[int], list[int]]:
    """Ids and shifted labels."""
    ids = item["input_ids"] if isinstance(item, Mapping) else item
    labels = item.get("labels") if isinstance(item, Mapping) else None
    ids, labels = ([int(i) for i in values] for values in (ids, ids if labels is None else labels))
    if len(ids) != length or len(labels) != length:
        raise ValueError(f"document {document} has {len(ids)} ids and {len(labels)} labels, but its length was given "
                         f"as {length}: lengths must be those of the dataset")
    return ids, labels[1:] + [IGNORED]


class Steps:
    """Yields Step after Step.  All ranks draw the same from `seed`, so none sends anything.

    lengths: tokens of each document of the dataset.  tokens_per_step: at most, but at least one document.  labels:
    the count of each document's labels, where the data's index has it; else a step takes one all-reduce of an
    integer.  epochs: each with its own order, without a border in a step.
    """

    def __init__(self, lengths: Sequence[int], *, tokens_per_step: int, planner: Planner, seed: int = 0,
                 epochs: int = 1, labels: Sequence[int] | None = None, device: torch.device | str = "cpu") -> None:
        self.lengths, self.tokens_per_step, self.planner = [int(n) for n in lengths], tokens_per_step, planner
        self.seed, self.epochs, self.labels, self.device = seed, epochs, labels, device
        self.documents = 0  # consumed, those of the step in hand included
        if min(self.lengths, default=0) < 1:
            raise ValueError(f"lengths: document {self.lengths.index(min(self.lengths)) if self.lengths else 0} has "
                             "no token; each needs at least 1")

    def __iter__(self) -> Iterator[Step]:
        while self.documents < self.epochs * len(self.lengths):
            drawn: list[int] = []
            tokens = 0
            while self.documents + len(drawn) < self.epochs * len(self.lengths):
                document = self._document(self.documents + len(drawn))
                if drawn and tokens + self.lengths[document] > self.tokens_per_step:
                    break
                drawn.append(document)
                tokens += self.lengths[document]
            self.documents += len(drawn)
            plan = self.planner.plan([self.lengths[d] for d in drawn])
            yield Step(plan, drawn, self.planner, self.device, self.labels)

    def _document(self, place: int) -> int:
        epoch, place = divmod(place, len(self.lengths))
        if getattr(self, "_epoch", None) != (self.seed, epoch):
            self._epoch = self.seed, epoch
            self._order = list(range(len(self.lengths)))
            random.Random(f"{self.seed} {epoch}").shuffle(self._order)
        return self._order[place]

    def state_dict(self) -> dict[str, int]:
        """Between two steps: what another run, also of other ranks, goes on from."""
        return {"seed": self.seed, "documents": self.documents}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.seed, self.documents = state["seed"], state["documents"]


@contextlib.contextmanager
def accumulate(model: torch.nn.Module, mb: MicroBatch) -> Iterator[None]:
    """Around forward and backward of a micro-batch: gradients travel with the step's last one alone.

    DDP: no_sync().  FSDP2: set_requires_gradient_sync(), set_is_last_backward().  A plain model on several ranks: an
    all-reduce when the last is done.  Switches Hugging Face's gradient checkpointing as the plan has it.
    """
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    recompute_layers(inner, mb.recompute)
    sync: Any = contextlib.nullcontext()
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(mb.last)
        model.set_is_last_backward(mb.last)
    elif isinstance(model, DistributedDataParallel) and not mb.last:
        sync = model.no_sync()
    begin = _now(mb)
    with sync, set_checkpoint_early_stop(False):  # all ranks of a group make the same exchanges again
        yield
    mb.seconds = _now(mb) - begin
    if mb.last and not isinstance(model, (FSDPModule, DistributedDataParallel)) and dist.is_initialized():
        _average(model, mb.deadline)


def _now(mb: MicroBatch) -> float:
    if mb.labels.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def recompute_layers(model: Any, on: bool) -> None:
    """Switches a Hugging Face model's gradient checkpointing (its layers, not reentrant)."""
    layers = [module for module in model.modules() if hasattr(module, "gradient_checkpointing")]
    if on and not any(hasattr(module, "_gradient_checkpointing_func") for module in layers):
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    for module in layers:
        module.gradient_checkpointing = on


def _average(model: torch.nn.Module, deadline: float) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            wait(dist.all_reduce(parameter.grad, async_op=True), deadline, "the gradients' sum over all ranks")
            parameter.grad /= dist.get_world_size()


def loss_sum(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """The sum of cross entropies of logits [1, tokens, vocabulary] where labels [1, tokens] (shifted) are not -100."""
    logits = getattr(output, "logits", output)
    logits = logits.float() if logits.element_size() < 4 else logits
    return torch.nn.functional.cross_entropy(logits[0], labels[0], ignore_index=IGNORED, reduction="sum")
