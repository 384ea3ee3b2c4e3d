"""Steps of training by plans: which documents, in which groups, and one denominator for all of them."""

import contextlib
import hashlib
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
from torch.utils.data import IterableDataset, get_worker_info

from .agreement import expect_same
from .exchange import Exchange, piece, wait
from .items import IGNORED, expect_whole, ids_and_labels, whole
from .planner import Planner
from .wrappers import expect_known, inside


@dataclass
class MicroBatch:
    """What this rank does in one micro-batch: model(**inputs) gives the logits of `labels`."""

    inputs: dict[str, Any]  # input_ids, position_ids: [1, tokens]; paradyse: the Exchange
    labels: torch.Tensor  # [1, tokens], shifted: of the next token, or -100
    planner: Planner
    last: bool  # of the step: gradients are exchanged with it
    recompute: bool  # layers are made again in the backward pass
    seconds: float = field(default=0.0, init=False)  # measured by accumulate()


class Step:
    """One optimizer step: a plan, and the documents (indices into the dataset) that it is for."""

    def __init__(self, plan: paradyse.Plan, documents: Sequence[int], planner: Planner,
                 device: torch.device | str = "cpu", labels: Sequence[int] | None = None) -> None:
        self.plan, self.documents, self.planner, self.device = plan, list(documents), planner, device
        if len(self.documents) != len(plan.lengths):
            raise ValueError(f"a step of {len(self.documents)} documents, but a plan of {len(plan.lengths)}")
        self.counts = None if labels is None else [labels[d] for d in documents]
        self.labels: int | None = None if self.counts is None else sum(self.counts)
        self.played: list[MicroBatch] = []
        self.drawn_by: Steps | None = None

    @property
    def scale(self) -> float:
        """Of each sum of losses: the averaged gradients are then those of the mean over the step's labels."""
        if self.labels is None:
            raise RuntimeError("step.scale is known once step.micro_batches(dataset) has begun: it counts "
                               "the labels")
        return self.planner.ranks / self.labels if self.labels else 0.0

    def micro_batches(self, dataset: Any) -> list[MicroBatch]:
        """Those of this rank, as many as every other rank has; all ranks call it.

        Raises ValueError on all of them, naming what differs, where they have unlike plans, documents or labels.
        dataset[i] has "input_ids" and maybe "labels" (as many, not shifted, -100: none), or is a list of ids.
        Masks of tokens that count are heeded (completion_mask, assistant_masks); padding, several documents in an
        item and other lists that may say what counts are refused.
        """
        planner, self.played = self.planner, []
        planner.expect_joined()
        if planner.ranks > 1:
            key = f"{self.plan.hash} {self.documents} {self.counts}"
            expect_same("the plan of a step", key, self._said, planner.deadline)
        vocabulary = getattr(planner.config, "vocab_size", None)
        for number, micro_batch in enumerate(self.plan.micro_batches):
            for group in micro_batch.groups:
                planner.group(group.ranks)  # by all ranks, in the plan's order
            group = micro_batch.group_of(planner.rank)
            documents = [self.documents[d] for d in group.documents]
            exchange = Exchange(
                [int(self.plan.lengths[d]) for d in group.documents], group.ranks.index(planner.rank),
                len(group.ranks), planner.group(group.ranks), f"ranks {group.ranks} in micro-batch {number} "
                f"(documents {documents}), on rank {planner.rank}", planner.deadline, self.device)
            rows: list[list[int]] = [[], [], []]
            for place, document, n in zip(group.documents, documents, exchange.lengths):
                mine = piece(n, exchange.rank, exchange.ranks)
                read = ids_and_labels(dataset[document], document, n, vocabulary)
                count = n - read[1].count(IGNORED)
                if self.counts is not None and self.counts[place] != count:
                    raise ValueError(f"document {document} has {count} labels that count, but {self.counts[place]} "
                                     "were given as labels=: a first token has none that counts")
                for row, values in zip(rows, (*read, range(n))):
                    row += values[mine.start:mine.stop]
            if exchange.tokens == 0:
                rows = [[0], [IGNORED], [0]]  # a dummy that reaches every parameter with weight 0
            ids, labels, positions = (torch.tensor([row], device=self.device) for row in rows)
            inputs = {"input_ids": ids, "position_ids": positions, "use_cache": False, "paradyse": exchange}
            self.played.append(MicroBatch(inputs, labels, planner, number + 1 == len(self.plan.micro_batches),
                                          "layer" in self.plan.programs[group.program][0].parts[0].recompute))
        if self.labels is None:
            counted = sum(int((mb.labels != IGNORED).sum()) for mb in self.played)
            self.labels = int(self._sum(torch.tensor(counted, device=self.device), "the count of labels"))
        return self.played

    def play(self, model: torch.nn.Module, dataset: Any) -> float:
        """Forward and backward of all micro-batches, and the mean loss over labels; all ranks call it."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for mb in self.micro_batches(dataset):
            with accumulate(model, mb):
                loss = loss_sum(model(**mb.inputs), mb.labels)
                (loss * self.scale).backward()
            total += loss.detach()
        return self.mean(total)

    def mean(self, total: torch.Tensor | float) -> float:
        """The step's mean loss from this rank's sum of losses (unscaled); all ranks call it."""
        both = torch.as_tensor(total, dtype=torch.float64, device=self.device).clone()
        return float(self._sum(both, "the sum of losses")) / max(1, self.labels or 0)

    def _said(self) -> dict[str, str]:
        """What the plan was made of, or the plan itself where nothing is known of that."""
        drawn = self.drawn_by.settings() if self.drawn_by else {
            "documents": f"{self.documents}"[:80], "labels": f"{self.counts}"[:80]}
        return {**drawn, **self.planner.settings(), "the plan's hash": self.plan.hash[:12]}

    def _sum(self, value: torch.Tensor, what: str) -> torch.Tensor:
        if self.planner.ranks > 1:
            wait(dist.all_reduce(value, async_op=True), self.planner.deadline, f"{what}, over all ranks")
        return value


class Steps(IterableDataset[Step]):
    """Yields Step after Step.  All ranks draw the same from `seed`, so no plan is sent; Step.micro_batches compares
    hashes.  For a DataLoader of batch_size=None it is a dataset.

    lengths: tokens of each document of the dataset.  tokens_per_step: at most, but at least one document.
    epochs: each in an order of its own.  labels: each document's count; without them a step takes one
    all-reduce of an integer.
    """

    def __init__(self, lengths: Sequence[int], *, tokens_per_step: int, planner: Planner, seed: int = 0,
                 epochs: int = 1, labels: Sequence[int] | None = None,
                 device: torch.device | str = "cpu") -> None:
        self.lengths, self.tokens_per_step, self.planner = whole(lengths, "lengths"), tokens_per_step, planner
        self.seed, self.epochs, self.labels, self.device = seed, epochs, labels, device
        self.documents = 0  # consumed, those of the step in hand included
        self._ended = False
        for name, least in (("tokens_per_step", 1), ("epochs", 1), ("seed", 0)):
            expect_whole(name, getattr(self, name), least)
        if not self.lengths:
            raise ValueError("lengths: there is no document")
        for document, n in enumerate(self.lengths):
            if n < 1:
                raise ValueError(f"lengths: document {document} has no token; each needs at least 1")
        if labels is not None:
            self.labels = whole(labels, "labels")
            if len(self.labels) != len(self.lengths):
                raise ValueError(f"labels: {len(self.labels)} counts for {len(self.lengths)} documents")
            for document, (count, n) in enumerate(zip(self.labels, self.lengths)):
                if not 0 <= count < n:
                    raise ValueError(f"labels: {count} of document {document}, which has {n} tokens: all but the "
                                     "first can count")

    def __iter__(self) -> Iterator[Step]:
        if get_worker_info() is not None:  # of which each would draw all steps, without the ranks' groups
            raise RuntimeError("Steps are drawn in the process that trains: give DataLoader(steps, batch_size=None, "
                               "num_workers=0)")
        if self._ended:
            raise RuntimeError(f"Steps: all {self.epochs} epochs are drawn already; give epochs=, or make new "
                               "Steps")
        return self._drawn()

    def _drawn(self) -> Iterator[Step]:
        for epoch in range(self.documents // max(1, len(self.lengths)), self.epochs):
            order = list(range(len(self.lengths)))
            random.Random(f"{self.seed} {epoch}").shuffle(order)
            while rest := order[self.documents - epoch * len(order):]:
                tokens, count = self.lengths[rest[0]], 1
                while count < len(rest) and tokens + self.lengths[rest[count]] <= self.tokens_per_step:
                    tokens, count = tokens + self.lengths[rest[count]], count + 1
                try:
                    plan = self.planner.plan([self.lengths[d] for d in rest[:count]])
                except paradyse.NoPlan as error:  # which numbers the documents of the step
                    longest = max(rest[:count], key=self.lengths.__getitem__)
                    raise paradyse.NoPlan(f"no plan for a step whose longest document is dataset[{longest}] with "
                                          f"{self.lengths[longest]} tokens: {error}") from None
                self.documents += count
                step = Step(plan, rest[:count], self.planner, self.device, self.labels)
                step.drawn_by = self
                yield step
        self._ended = True

    def state_dict(self) -> dict[str, Any]:
        """Between two steps: what another run, also of other ranks, goes on from."""
        return {"seed": self.seed, "documents": self.documents, "lengths": self._fingerprint()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError for a state of another dataset, or of more epochs."""
        missing = [name for name in ("seed", "documents") if name not in state]
        if missing:
            raise ValueError(f"the state has no {' and no '.join(missing)}: give what Steps.state_dict() gave")
        for name in ("seed", "documents"):
            expect_whole(f"the state's {name}", state[name], 0)
        if state.get("lengths", self._fingerprint()) != self._fingerprint():  # older states have none
            raise ValueError(f"the state is of documents of other lengths than these {len(self.lengths)}: resume "
                             "with the dataset that the run had, in its order")
        if state["documents"] > self.epochs * len(self.lengths):
            raise ValueError(f"the state has {state['documents']} documents consumed, but {self.epochs} epochs of "
                             f"{len(self.lengths)} documents have {self.epochs * len(self.lengths)}: give epochs=, "
                             "or the dataset that the run had")
        self.seed, self.documents, self._ended = int(state["seed"]), int(state["documents"]), False

    def settings(self) -> dict[str, str]:
        """What steps depend on besides the planner, by name."""
        return {"Steps.lengths": f"{len(self.lengths)} documents ({self._fingerprint()})",
                "Steps.labels": "not given" if self.labels is None else _hash(self.labels),
                "Steps.seed": str(self.seed), "Steps.tokens_per_step": str(self.tokens_per_step),
                "Steps.epochs": str(self.epochs), "consumed": f"{self.documents} documents"}

    def _fingerprint(self) -> str:
        return _hash(self.lengths)


def _hash(numbers: Sequence[int]) -> str:
    return hashlib.sha256(",".join(map(str, numbers)).encode()).hexdigest()[:16]


@contextlib.contextmanager
def accumulate(model: torch.nn.Module, mb: MicroBatch) -> Iterator[None]:
    """Around forward and backward of a micro-batch: gradients travel with the step's last one alone.

    A plain model on several ranks: an all-reduce after the last.  Switches Hugging Face's gradient
    checkpointing as the plan has it.  Looks through torch.compile.  Raises ValueError for a model that is wrapped
    otherwise than planned, or by others than DDP and FSDP2, and where attention did not go by the plan.
    """
    planner, model = mb.planner, expect_known(model)
    if isinstance(model, FSDPModule if planner.weights == "ddp" else DistributedDataParallel):
        raise ValueError(f"the plan assumes weights={planner.weights!r}, but the model is not wrapped so: "
                         "give Planner(weights=) 'ddp' for DDP, and 'fsdp2' or 'hsdp' for fully_shard")
    if getattr(model, "static_graph", False):
        raise ValueError("DistributedDataParallel(static_graph=True) cannot skip the messages of a micro-batch, nor "
                         "recompute in some: leave static_graph out")
    recompute_layers(inside(model), mb.recompute)
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(mb.last)
        model.set_is_last_backward(mb.last)
    begin = now()
    quiet = isinstance(model, DistributedDataParallel) and not mb.last
    with model.no_sync() if quiet else contextlib.nullcontext():  # type: ignore[operator]
        with set_checkpoint_early_stop(False):  # all ranks of a group make the same exchanges again
            yield
    mb.seconds = now() - begin
    if not mb.inputs["paradyse"].calls:
        raise ValueError(f"{type(model).__name__} attended without the documents of the micro-batch, so that they "
                         "mixed: call attach(model), pass it mb.inputs, and leave own_attention() before a step")
    if mb.last and planner.ranks > 1 and not isinstance(model, (DistributedDataParallel, FSDPModule)):
        for parameter in (parameter for parameter in model.parameters() if parameter.requires_grad):
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            work = dist.all_reduce(parameter.grad, async_op=True)
            wait(work, planner.deadline, "the gradients' sum over all ranks")
            parameter.grad /= planner.ranks


def now() -> float:
    """Seconds, when the GPU has done what it was given."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def recompute_layers(model: Any, on: bool) -> None:
    """Switches a Hugging Face model's gradient checkpointing (its layers, not reentrant)."""
    layers = [module for module in model.modules() if hasattr(module, "gradient_checkpointing")]
    if on and not any(hasattr(module, "_gradient_checkpointing_func") for module in layers):
        hooks = ("_require_grads_hooks", "_require_grads_hook")
        before = any(getattr(model, name, None) for name in hooks)
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        # With adapters its inputs now need gradients, as reentrant checkpoints want: on this rank alone, so that
        # others of a group would have no exchange in the backward pass where it has one.
        if not before and any(getattr(model, name, None) for name in hooks):
            model.disable_input_require_grads()
    for module in layers:
        module.gradient_checkpointing = on


def loss_sum(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropies of logits [1, tokens, vocabulary], summed where labels [1, tokens] (shifted) count."""
    if getattr(output, "aux_loss", None) is not None:
        raise ValueError("the model gave an auxiliary loss of its routers (output_router_logits), which is no part "
                         "of this sum: set output_router_logits=False, or give loss_sum(output.logits, labels) and "
                         "add it yourself")
    logits = getattr(output, "logits", output)
    if logits.ndim != 3 or tuple(labels.shape) != tuple(logits.shape[:2]) or len(labels) != 1:
        raise ValueError(f"logits {list(logits.shape)} and labels {list(labels.shape)}: expected is one row of "
                         "tokens, as micro-batches have")
    logits = logits.float() if logits.itemsize < 4 else logits
    return torch.nn.functional.cross_entropy(logits[0], labels[0], ignore_index=IGNORED, reduction="sum")
