"""Whether all ranks plan the same: by unlike plans some documents train twice and others never, in silence."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from .exchange import gathered, message_device, wait

MOST = 6  # names, and values of one, that an error lists


def expect_same(what: str, key: str, said: Callable[[], Mapping[str, str]], deadline: float) -> None:
    """All ranks call it.  Where `key` is not the same on all, every rank raises ValueError, which names the ranks
    and what differs in `said()`.  Costs one message of two integers."""
    digest = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 2
    both = torch.tensor([digest, -digest], device=message_device())
    wait(dist.all_reduce(both, dist.ReduceOp.MAX, async_op=True), deadline,
         f"the comparison of {what} over all ranks")
    most, least = both.tolist()
    if most == -least:
        return
    everyone = gathered(dict(said()), f"what ranks say of {what}", deadline)
    names = [name for name in dict.fromkeys(name for one in everyone for name in one)
             if len({one.get(name) for one in everyone}) > 1]
    listed = "; ".join(_by_rank(name, everyone) for name in names[:MOST])
    more = f"; and {len(names) - MOST} more" if len(names) > MOST else ""
    raise ValueError(f"ranks differ in {what}, so that documents would train twice or never: {listed}{more}. Give "
                     "all ranks the same (of memory the least that a rank has, of costs one file or what "
                     "measure() gives after init_process_group)")


def _by_rank(name: str, everyone: Sequence[Mapping[str, str]]) -> str:
    of: dict[str, list[int]] = {}
    for rank, one in enumerate(everyone):
        of.setdefault(one.get(name, "not given"), []).append(rank)
    found = [f"{value} on {_ranks(ranks)}" for value, ranks in of.items()]
    return f"{name} is " + ", ".join(found[:MOST]) + (", and so on" if len(found) > MOST else "")


def _ranks(ranks: Sequence[int]) -> str:
    """rank 3, or ranks 0-4, 7."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] + 1 == rank:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ("ranks " if len(ranks) > 1 else "rank ") + ", ".join(
        str(first) if first == last else f"{first}-{last}" for first, last in runs)
