"""What a model takes on this machine, fitted from its own forward and backward passes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .exchange import Exchange, wait
from .planner import Costs
from .steps import loss_sum, recompute_layers


def measure(model: Any, *, seconds: float = 60.0, longest: int = 4096, node: int | None = None,
            recompute: bool = True) -> Costs:
    """Costs of an attached model (before DDP or fully_shard), from about so many seconds of forward and backward.

    longest: tokens of the longest document that is tried.  Fits seconds = micro_batch + token n + square n^2 +
    document, summed over documents; Costs.error is the median error of the third of the runs that the fit did not
    see.  On several ranks all measure at once, as they share cores and links, and the slowest rank counts; messages
    inside a node (of `node` ranks) and over all ranks are measured, too.  Gradients of the model are cleared.
    """
    model.train()
    config = model.config.get_text_config()
    longest = min(longest, getattr(config, "max_position_embeddings", longest))
    sizes = sorted({max(1, round(longest / 4**i)) for i in range(5)})
    mixes = [[n] for n in sizes] + [[sizes[0]] * k for k in (4, 16)] + [[sizes[1]] * k for k in (2, 6)] + [
        [sizes[2], sizes[0]], [sizes[-2]] * 2, [sizes[-2], sizes[1], sizes[0]], [sizes[0]] * 9]
    _run(model, mixes[0])
    taken: list[list[float]] = [[] for _ in mixes]
    end = time.perf_counter() + seconds
    while not _all_done(len(taken[0]) > 1 and time.perf_counter() > end):
        for mix, times in zip(mixes, taken):
            times.append(_run(model, mix))
    found = _slowest([float(np.median(times)) for times in taken])
    table = np.array([[1, sum(mix), sum(n * n for n in mix), len(mix)] for mix in mixes], dtype=float)
    unseen = np.arange(len(mixes)) % 3 == 2
    guess = table @ _fit(table[~unseen], found[~unseen])
    fit = _fit(table, found)
    base = Costs(token=fit[1], square=fit[2], document=fit[3], micro_batch=fit[0],
                 error=float(np.median(np.abs(guess[unseen] / found[unseen] - 1))),
                 parameters=sum(p.numel() for p in model.parameters()), itemsize=next(model.parameters()).itemsize)
    few, many = sizes[-2], longest
    base.token_bytes = _bytes(model, few, many)
    if recompute and any(hasattr(m, "gradient_checkpointing") for m in model.modules()):
        recompute_layers(model, True)
        again = [_run(model, [many]) for _ in range(3)]
        outside = _bytes(model, few, many)
        recompute_layers(model, False)
        plain = [_run(model, [many]) for _ in range(3)]
        base.recompute = max(1.0, float(_slowest([float(np.median(again))])[0] / _slowest([float(np.median(plain))])[0]))
        layers = config.num_hidden_layers
        base.token_bytes_again = outside if torch.cuda.is_available() else (
            outside + layers * config.hidden_size * base.itemsize + (base.token_bytes - outside) / layers)
    if dist.is_initialized() and dist.get_world_size() > 1:
        _measure_messages(base, node or dist.get_world_size(), next(model.parameters()).device)
    model.zero_grad(set_to_none=True)
    return base


def _run(model: Any, lengths: Sequence[int]) -> float:
    """Seconds of forward and backward of documents of these lengths on this rank alone."""
    device = next(model.parameters()).device
    ids = torch.arange(sum(lengths), device=device) % model.config.get_text_config().vocab_size
    positions = torch.cat([torch.arange(n, device=device) for n in lengths])
    exchange = Exchange(lengths)
    _synchronize()
    begin = time.perf_counter()
    loss = loss_sum(model(input_ids=ids[None], position_ids=positions[None], use_cache=False, paradyse=exchange),
                    ids[None])
    loss.backward()
    _synchronize()
    return time.perf_counter() - begin


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _fit(table: Any, seconds: Any) -> Any:
    """Least squares of relative errors with no negative term."""
    scaled = table / seconds[:, None]
    kept = list(range(table.shape[1]))
    while True:
        some = np.linalg.lstsq(scaled[:, kept], np.ones(len(seconds)), rcond=None)[0]
        if (some >= 0).all() or len(kept) == 1:
            found = np.zeros(table.shape[1])
            found[kept] = np.maximum(some, 0)
            return found
        kept.pop(int(np.argmin(some * np.linalg.norm(scaled[:, kept], axis=0))))


def _bytes(model: Any, few: int, many: int) -> float:
    """Of memory a token takes from forward to backward: on CUDA at the peak; else what autograd saves, once each."""
    at = []
    for tokens in (few, many):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            _run(model, [tokens])
            at.append(torch.cuda.max_memory_allocated() - before)
            continue
        seen = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}

        def saved(tensor: torch.Tensor, seen: dict[int, int] = seen) -> torch.Tensor:
            storage = tensor.untyped_storage()
            seen.setdefault(storage.data_ptr(), storage.nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor):
            _run(model, [tokens])
        logits = 2 * model.config.get_text_config().vocab_size * 4 * tokens  # their gradient, while it is made
        at.append(sum(seen.values()) + logits)
    return (at[1] - at[0]) / (many - few)


def _slowest(seconds: Sequence[float]) -> Any:
    found = torch.tensor(list(seconds), dtype=torch.float64)
    if dist.is_initialized() and dist.get_world_size() > 1:
        found = found.cuda() if dist.get_backend() == "nccl" else found
        wait(dist.all_reduce(found, op=dist.ReduceOp.MAX, async_op=True), 600, "the slowest rank's seconds")
    return found.cpu().numpy()


def _all_done(done: bool) -> bool:
    return bool(_slowest([float(not done)])[0] == 0)


def _measure_messages(costs: Costs, node: int, device: torch.device) -> None:
    """A small and a large all-to-all, and an all-reduce, inside nodes (all at once) and over all ranks."""
    world = dist.get_world_size()
    inside = [dist.new_group(range(first, first + node)) for first in range(0, world, node)][dist.get_rank() // node]
    found = []
    for ranks, group in ((node, inside), (world, None)):
        if ranks == 1:
            found.append((0.0, 0.0, 0.0))
            continue
        small, large = (torch.zeros(n // ranks * ranks, device=device) for n in (64, 2**19))
        times = []
        for tensor, reduced in ((small, False), (large, False), (large, True)):
            of_call = []
            for _ in range(4):
                _synchronize()
                begin = time.perf_counter()
                work = dist.all_reduce(tensor, group=group, async_op=True) if reduced else dist.all_to_all_single(
                    torch.empty_like(tensor), tensor, group=group, async_op=True)
                wait(work, 600, f"a message over {ranks} ranks while measuring")
                _synchronize()
                of_call.append(time.perf_counter() - begin)
            times.append(min(of_call[1:]))
        sent = large.nbytes * (ranks - 1) / ranks
        found.append((times[0], max(0.0, times[1] - times[0]) / sent, times[2] / large.nbytes))
    values = [float(value) for value in _slowest([v for of_size in zip(*found) for v in of_size])]
    costs.message, costs.byte, costs.reduce = ((values[i], values[i + 1]) for i in (0, 2, 4))
