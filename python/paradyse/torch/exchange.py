"""Who has which tokens and heads of a group's documents, and the all-to-all between the two.

Of p ranks, rank r has the tokens n r // p to n (r + 1) // p of each document of n tokens, and in attention
the query heads H r // p to H (r + 1) // p of all its tokens (Ulysses, arXiv 2309.14509).
"""

import math
import pickle
from collections.abc import Sequence
from datetime import timedelta
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
        raise TimeoutError(
            f"{what}: not done after {seconds:.0f} s, or a rank is gone ({error}). Look for the first rank "
            "that failed; a longer deadline is Planner(deadline=seconds)") from error


class Exchange:
    """How the documents of a group travel in one micro-batch; each model call has one as `paradyse=`.

    No dataclass: fully_shard with a mixed-precision policy copies those among a model's inputs.
    """

    def __init__(self, lengths: Sequence[int],  # tokens of each document; none: an idle rank
                 rank: int = 0,  # this one, in the group
                 ranks: int = 1,
                 group: Any = None,  # its torch.distributed.ProcessGroup
                 name: str = "one process",  # for errors: group, micro-batch, documents
                 deadline: float = 600.0,  # seconds
                 device: torch.device | str = "cpu") -> None:
        self.lengths, self.rank, self.ranks, self.group = lengths, rank, ranks, group
        self.name, self.deadline, self.device = name, deadline, device
        self.calls = 0  # of attention
        self.causal = True  # each of them
        owners = torch.cat([torch.zeros(0, dtype=torch.long), *(  # [token of the documents] its rank
            (torch.arange(1, n + 1) * self.ranks - 1) // n for n in self.lengths)])
        self.counts = owners.bincount(minlength=self.ranks).tolist()  # [rank] tokens
        self.tokens: int = self.counts[self.rank]  # 0: its one token is a dummy that others do not see
        self.places = owners.argsort(stable=True).to(self.device)  # [token as ranks send it] its place there
        self.order = self.places.argsort()  # and back

    def to_heads(self, tensors: Sequence[torch.Tensor], heads: Sequence[list[range]]) -> list[torch.Tensor]:
        """[heads, tokens of this rank, d] each -> [its heads, tokens of all documents, d] each; one message.

        heads[i][r]: of tensor i those that rank r gets.
        """
        if self.ranks == 1:
            return list(tensors)
        sent = [[t[h[r].start:h[r].stop] for t, h in zip(tensors, heads)] for r in range(self.ranks)]
        came = self._all_to_all(sent, [[(len(h[self.rank]), n, t.shape[-1]) for t, h in zip(tensors, heads)]
                                       for n in self.counts])
        return [torch.cat(parts, 1).index_select(1, self.order) for parts in zip(*came)]

    def to_tokens(self, out: torch.Tensor, heads: Sequence[range]) -> torch.Tensor:
        """[tokens of all documents, heads of this rank, d] -> [tokens of this rank, all heads, d]."""
        if self.ranks == 1:
            return out
        sent = [[part] for part in out.index_select(0, self.places).split(self.counts)]
        came = self._all_to_all(sent, [[(self.tokens, len(each), out.shape[-1])] for each in heads])
        return torch.cat([part for part, in came], 1)

    def _all_to_all(self, sent: list[list[torch.Tensor]], shapes: Any) -> list[list[torch.Tensor]]:
        """[rank] tensors for it -> [rank] tensors of it, in these shapes."""
        sizes = [[math.prod(shape) for shape in of_rank] for of_rank in shapes]
        flat = torch.cat([t.flatten() for of_rank in sent for t in of_rank])
        came = _AllToAll.apply(flat, [sum(t.numel() for t in of_rank) for of_rank in sent],
                               [sum(of_rank) for of_rank in sizes], self)
        parts = iter(came.split([n for of_rank in sizes for n in of_rank]))
        return [[next(parts).view(shape) for shape in of_rank] for of_rank in shapes]


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: torch.Tensor, sent: list[int], came: list[int], exchange: Exchange) -> Any:
        ctx.about = sent, came, exchange
        out = flat.new_empty(sum(came))
        work = dist.all_to_all_single(out, flat, came, sent, group=exchange.group, async_op=True)
        wait(work, exchange.deadline, f"attention's exchange of {exchange.name}")
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        sent, came, exchange = ctx.about
        return _AllToAll.apply(grads[0].contiguous(), came, sent, exchange), None, None, None


def message_device() -> str:
    """Of tensors that travel over all ranks."""
    return "cuda" if by_nccl() else "cpu"


def by_nccl() -> bool:
    """Whether tensors on GPUs travel by NCCL, which may be one of several backends."""
    return torch.cuda.is_available() and "nccl" in dist.get_backend_config()


def gathered(own: Any, what: str, seconds: float) -> list[Any]:
    """[rank] What every rank has of its own: dist.all_gather_object() with a deadline, as wait()."""
    device, ranks = message_device(), range(dist.get_world_size())
    text = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in ranks]
    wait(dist.all_gather(sizes, torch.tensor([len(text)], device=device), async_op=True), seconds, what)
    counts = [int(size) for size in sizes]
    texts = [torch.zeros(max(counts), dtype=torch.uint8, device=device) for _ in ranks]
    padded = torch.cat([text, text.new_zeros(max(counts) - len(text))])
    wait(dist.all_gather(texts, padded, async_op=True), seconds, what)
    return [pickle.loads(one[:count].cpu().numpy().tobytes()) for one, count in zip(texts, counts)]


def expect_average(seconds: float) -> None:
    """Raises ValueError where the backend sums when FSDP2 asks it to average, as Gloo of PyTorch 2.7 does."""
    ones = torch.ones(dist.get_world_size(), device=message_device())
    mean = torch.zeros_like(ones[:1])
    work = dist.reduce_scatter_tensor(mean, ones, dist.ReduceOp.AVG, async_op=True)
    wait(work, seconds, "a first message over all ranks")
    if float(mean) != 1.0:
        raise ValueError(f"FSDP2 over {dist.get_backend()} of PyTorch {torch.__version__} multiplies "
                         f"gradients by {float(mean):.0f}: take a newer PyTorch, or DDP with weights='ddp'")
