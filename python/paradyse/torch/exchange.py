"""Who has which tokens and heads of a group's documents, and the all-to-all between the two.

Of p ranks, rank r has the tokens n r // p to n (r + 1) // p of each document of n tokens, and in attention the query
heads H r // p to H (r + 1) // p of all its tokens (Ulysses, arXiv 2309.14509).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist


def piece(size: int, rank: int, ranks: int) -> range:
    """What a rank has of `size` tokens or heads."""
    return range(size * rank // ranks, size * (rank + 1) // ranks)


def wait(work: Any, seconds: float, what: str) -> None:
    """Waits for a collective.  Raises TimeoutError, naming `what`, when it fails or takes longer."""
    try:
        work.wait(timedelta(seconds=seconds))
    except RuntimeError as error:
        raise TimeoutError(f"{what}: not done after {seconds:.0f} s, or a rank is gone ({error}). Look for the first "
                           "rank that failed; a longer deadline is Planner(deadline=seconds)") from error


@dataclass
class Exchange:
    """How the documents of a group travel in one micro-batch; each model call has one as `paradyse=`."""

    lengths: Sequence[int]  # tokens of each document; none: an idle rank
    rank: int = 0  # this one, in the group
    ranks: int = 1
    group: Any = None  # its torch.distributed.ProcessGroup
    name: str = "one process"  # for errors: group, micro-batch, documents
    deadline: float = 600.0  # seconds
    device: torch.device | str = "cpu"
    calls: int = field(default=0, init=False)  # of attention

    def __post_init__(self) -> None:
        pieces = [[piece(n, rank, self.ranks) for n in self.lengths] for rank in range(self.ranks)]
        self.counts = [sum(map(len, of_rank)) for of_rank in pieces]  # [rank] tokens
        self.tokens = self.counts[self.rank]  # 0: this rank's one token is a dummy that others do not see
        starts = [0, *accumulate(self.lengths)]
        # [token, one rank's pieces after the other's] its place in the documents
        self.places = torch.tensor([starts[d] + i for of_rank in pieces for d, tokens in enumerate(of_rank)
                                    for i in tokens], dtype=torch.long, device=self.device)
        self.order = torch.argsort(self.places)  # [token of the documents] its place among what ranks send

    def to_heads(self, tensors: Sequence[torch.Tensor], heads: Sequence[Sequence[range]]) -> list[torch.Tensor]:
        """[heads, tokens of this rank, d] each -> [its heads of each, tokens of all documents, d]; one message.

        heads[i][r]: of tensor i those that rank r gets.
        """
        if self.ranks == 1:
            return list(tensors)
        sent = [torch.cat([t[h[r].start:h[r].stop].reshape(-1) for t, h in zip(tensors, heads)])
                for r in range(self.ranks)]
        mine = [len(h[self.rank]) for h in heads]
        widths = [n * t.shape[-1] for n, t in zip(mine, tensors)]
        came = [part.split([n * width for width in widths])
                for n, part in zip(self.counts, self._all_to_all(sent, [n * sum(widths) for n in self.counts]))]
        return [torch.cat([parts[i].view(mine[i], n, t.shape[-1]) for n, parts in zip(self.counts, came)], 1)
                .index_select(1, self.order) for i, t in enumerate(tensors)]

    def to_tokens(self, out: torch.Tensor, heads: Sequence[range]) -> torch.Tensor:
        """[tokens of all documents, heads of this rank, d] -> [tokens of this rank, all heads, d]."""
        if self.ranks == 1:
            return out
        sent = [part.reshape(-1) for part in out.index_select(0, self.places).split(self.counts)]
        came = self._all_to_all(sent, [self.tokens * len(each) * out.shape[-1] for each in heads])
        return torch.cat([part.view(self.tokens, len(each), out.shape[-1]) for part, each in zip(came, heads)], 1)

    def _all_to_all(self, sent: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        flat = _AllToAll.apply(torch.cat(sent), [part.numel() for part in sent], sizes, self)
        return list(flat.split(sizes))


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, sent: list[int], came: list[int], exchange: Exchange) -> torch.Tensor:
        ctx.about = sent, came, exchange
        out = flat.new_empty(sum(came))
        work = dist.all_to_all_single(out, flat, came, sent, group=exchange.group, async_op=True)
        wait(work, exchange.deadline, f"attention's exchange of {exchange.name}")
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        sent, came, exchange = ctx.about
        return _AllToAll.apply(grads[0].contiguous(), came, sent, exchange), None, None, None


def expect_average(seconds: float) -> None:
    """Raises ValueError where the backend sums when FSDP2 asks it to average, as Gloo of PyTorch 2.7 does."""
    ones = torch.ones(dist.get_world_size(), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    mean = torch.zeros_like(ones[:1])
    work = dist.reduce_scatter_tensor(mean, ones, dist.ReduceOp.AVG, async_op=True)
    wait(work, seconds, "a first message over all ranks")
    if float(mean) != 1.0:
        raise ValueError(f"FSDP2 over {dist.get_backend()} of PyTorch {torch.__version__} multiplies gradients by "
                         f"{float(mean):.0f}: take a newer PyTorch, or DDP with weights='ddp'")


class Groups:
    """Process groups as plans need them, made by all ranks in the plans' order.  Gloo's are made when a plan first
    has them.  On NCCL those of `sizes` ranks, each at multiples of itself, are made at once and their memory printed.
    """

    def __init__(self, ranks: int, sizes: Sequence[int], deadline: float) -> None:
        self.deadline, self.known = deadline, dict[tuple[int, ...], Any]()
        if ranks > 1 and dist.get_backend() == "nccl":
            before = torch.cuda.mem_get_info()[0]
            for size in sizes:
                for first in range(0, ranks - size + 1, size):
                    group = self.of(range(first, first + size))
                    if dist.get_rank() in range(first, first + size):
                        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
            taken = (before - torch.cuda.mem_get_info()[0]) / 2**20
            if dist.get_rank() == 0:
                print(f"paradyse.torch: {len(self.known)} NCCL groups of {list(sizes)} ranks take {taken:.0f} MiB")

    def of(self, ranks: Sequence[int]) -> Any:
        """The group of these ranks.  All ranks of the job call this in the same order."""
        key = tuple(ranks)
        if len(key) > 1 and key not in self.known:
            self.known[key] = dist.new_group(list(key), timeout=timedelta(seconds=self.deadline))
        return self.known.get(key)
