"""Who has which tokens and heads of a group's documents, and the all-to-all between the two.

Of p ranks, rank r has the tokens n r // p to n (r + 1) // p of each document of n tokens, and in
attention the query heads H r // p to H (r + 1) // p of all its tokens (Ulysses, arXiv 2309.14509).
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
    """How the documents of a group travel in one micro-batch; one travels in each model call as `paradyse=`."""

    lengths: Sequence[int]  # tokens of each document; none: an idle rank
    rank: int = 0  # this one, in the group
    ranks: int = 1
    group: Any = None  # its torch.distributed.ProcessGroup
    name: str = "one process"  # for errors: group, micro-batch, documents
    deadline: float = 600.0  # seconds
    calls: int = field(default=0, init=False)  # of attention

    def __post_init__(self) -> None:
        pieces = [[piece(n, rank, self.ranks) for n in self.lengths] for rank in range(self.ranks)]
        self.counts = [sum(map(len, of_rank)) for of_rank in pieces]  # [rank] tokens
        starts = [0, *accumulate(self.lengths)]
        # [token as ranks send them, one rank's pieces after the other's] its place in the documents
        places = [starts[d] + i for of_rank in pieces for d, tokens in enumerate(of_rank) for i in tokens]
        self.places = torch.tensor(places, dtype=torch.long)
        self.order = torch.argsort(self.places)

    @property
    def tokens(self) -> int:
        """Of this rank; 0: its one token is a dummy that others do not see."""
        return self.counts[self.rank]

    def to_heads(self, tensors: Sequence[torch.Tensor], heads: Sequence[Sequence[range]]) -> list[torch.Tensor]:
        """[heads, tokens of this rank, d] each -> [its heads of each, tokens of all documents, d]; one message.

        heads[i][r]: of tensor i those that rank r gets.
        """
        if self.ranks == 1:
            return [tensor[mine[0].start:mine[0].stop] for tensor, mine in zip(tensors, heads)]
        sent = [[t[h[r].start:h[r].stop].reshape(-1) for t, h in zip(tensors, heads)] for r in range(self.ranks)]
        widths = [len(h[self.rank]) * t.shape[-1] for t, h in zip(tensors, heads)]
        came = self._all_to_all([torch.cat(parts) for parts in sent], [n * sum(widths) for n in self.counts])
        found: list[list[torch.Tensor]] = [[] for _ in tensors]
        for n, part in zip(self.counts, came):
            for i, (one, tensor) in enumerate(zip(part.split([n * width for width in widths]), tensors)):
                found[i].append(one.view(len(heads[i][self.rank]), n, tensor.shape[-1]))
        return [torch.cat(parts, 1).index_select(1, self.order.to(tensors[0].device)) for parts in found]

    def to_tokens(self, out: torch.Tensor, heads: Sequence[range]) -> torch.Tensor:
        """[tokens of all documents, heads of this rank, d] -> [tokens of this rank, all heads, d]."""
        if self.ranks == 1:
            return out
        width = out.shape[-1]
        sent = [part.reshape(-1) for part in out.index_select(0, self.places.to(out.device)).split(self.counts)]
        came = self._all_to_all(sent, [self.tokens * len(each) * width for each in heads])
        return torch.cat([part.view(self.tokens, len(each), width) for part, each in zip(came, heads)], 1)

    def _all_to_all(self, sent: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        flat = _AllToAll.apply(torch.cat(sent), [part.numel() for part in sent], sizes, self)
        return list(flat.split(sizes))


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, sent: list[int], came: list[int], exchange: Exchange) -> torch.Tensor:
        ctx.about = sent, came, exchange
        return _send(flat, sent, came, exchange)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        sent, came, exchange = ctx.about
        return _send(grads[0].contiguous(), came, sent, exchange), None, None, None


def _send(flat: torch.Tensor, sent: list[int], came: list[int], exchange: Exchange) -> torch.Tensor:
    out = flat.new_empty(sum(came))
    what = f"attention's exchange of {exchange.name}"
    try:
        work = dist.all_to_all_single(out, flat, came, sent, group=exchange.group, async_op=True)
    except RuntimeError as error:
        raise RuntimeError(f"{what}: {error}") from error
    wait(work, exchange.deadline, what)
    return out


class Groups:
    """Process groups as plans need them, made by all ranks in the plans' order.

    Gloo's are made when a plan first has them.  On NCCL those that planners use (`sizes`, each at multiples of
    itself) are made at once, and what they take of the GPU's memory is printed.
    """

    def __init__(self, ranks: int, sizes: Sequence[int], deadline: float) -> None:
        self.deadline = deadline
        self.known: dict[tuple[int, ...], Any] = {}
        if ranks > 1 and dist.get_backend() == "nccl":
            before = torch.cuda.mem_get_info()[0]
            for size in sizes:
                for first in range(0, ranks - size + 1, size):
                    self.of(range(first, first + size))
            for members, group in self.known.items():
                if dist.get_rank() in members:
                    dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
            if dist.get_rank() == 0:
                mib = (before - torch.cuda.mem_get_info()[0]) / 2**20
                print(f"paradyse.torch: {len(self.known)} NCCL groups of {list(sizes)} ranks take {mib:.0f} MiB")

    def of(self, ranks: Sequence[int]) -> Any:
        """The group of these ranks.  All ranks of the job call this in the same order."""
        key = tuple(ranks)
        if len(key) > 1 and key not in self.known:
            self.known[key] = dist.new_group(list(key), timeout=timedelta(seconds=self.deadline))
        return self.known.get(key)
