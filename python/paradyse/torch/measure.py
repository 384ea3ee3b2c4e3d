"""What a model takes on this machine, fitted from its own forward and backward passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .exchange import Exchange, wait
from .planner import Costs
from .steps import loss_sum, recompute_layers

DEADLINE = 600.0  # seconds of a message while measuring


def measure(model: Any, *, seconds: float = 60.0, longest: int = 4096, node: int | None = None,
            recompute: bool = True) -> Costs:
    """Costs of an attached model (before DDP or fully_shard), from about so many seconds of forward and backward.

    longest: tokens of the longest document that is tried.  Fits micro_batch + the sum over documents of n tokens of
    token n + square n^2 + document; Costs.error is the median error of the third of the runs that the fit did not
    see.  On several ranks all measure at once, as they share cores and links, and the slowest rank counts; messages
    inside a node (of `node` ranks) and over all ranks are measured, too.  Gradients of the model are cleared.
    """
    model.train()
    config = model.config.get_text_config()
    a, b, c, d, e = (max(1, min(longest, getattr(config, "max_position_embeddings", longest)) >> 2 * i)
                     for i in range(5))
    mixes = [[a], [b], [b, b], [c], [d], [d, d], [e], [e] * 4, [e] * 9, [e] * 16, [d] * 6, [c, e], [b, d, e]]
    taken: list[list[float]] = [[] for _ in mixes]
    end = time.perf_counter() + seconds
    while _slowest([float(len(taken[0]) < 3 or time.perf_counter() < end)])[0]:  # all ranks stop together
        for mix, times in zip(mixes, taken):
            times.append(_run(model, mix))
    found = _slowest([float(np.median(times[1:])) for times in taken])
    table = np.array([[1, sum(mix), sum(n * n for n in mix), len(mix)] for mix in mixes], dtype=float)
    unseen = np.arange(len(mixes)) % 3 == 2
    guessed = table[unseen] @ fit(table[~unseen], found[~unseen])
    once, token, square, document = fit(table, found)
    costs = Costs(token, square, document, once, error=float(np.median(np.abs(guessed / found[unseen] - 1))),
                  parameters=sum(p.numel() for p in model.parameters()), itemsize=next(model.parameters()).itemsize,
                  token_bytes=_token_bytes(model, b, a))
    if recompute and any(hasattr(module, "gradient_checkpointing") for module in model.modules()):
        plain = _slowest([min(_run(model, [a]) for _ in range(3))])
        recompute_layers(model, True)
        costs.recompute = max(1.0, float((_slowest([min(_run(model, [a]) for _ in range(3))]) / plain)[0]))
        costs.token_bytes_again = _token_bytes(model, b, a)
        if not torch.cuda.is_available():  # what is counted there is saved outside layers: add inputs, and one layer
            layers = config.num_hidden_layers
            costs.token_bytes_again += layers * config.hidden_size * costs.itemsize + costs.token_bytes / layers
        recompute_layers(model, False)
    if dist.is_initialized() and dist.get_world_size() > 1:
        _measure_messages(costs, node or dist.get_world_size(), next(model.parameters()).device)
    model.zero_grad(set_to_none=True)
    return costs


def fit(table: Any, seconds: Any) -> Any:
    """[term] of seconds [run] = table [run, term] @ terms: least squares of relative errors, no term below 0."""
    scaled, kept, found = table / seconds[:, None], list(range(table.shape[1])), np.zeros(table.shape[1])
    while True:
        some = np.linalg.lstsq(scaled[:, kept], np.ones(len(seconds)), rcond=None)[0]
        if (some >= 0).all() or len(kept) == 1:
            found[kept] = np.maximum(some, 0)
            return found
        kept.pop(int(np.argmin(some * np.linalg.norm(scaled[:, kept], axis=0))))


def _timed(call: Callable[[], Any]) -> float:
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    begin = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - begin


def _run(model: Any, lengths: Sequence[int]) -> float:
    """Seconds of forward and backward of documents of these lengths on this rank alone."""
    device = next(model.parameters()).device
    ids = torch.arange(sum(lengths), device=device)[None] % model.config.get_text_config().vocab_size
    inputs = {"input_ids": ids, "position_ids": torch.cat([torch.arange(n, device=device) for n in lengths])[None],
              "use_cache": False, "paradyse": Exchange(lengths)}
    return _timed(lambda: loss_sum(model(**inputs), ids).backward())


def _token_bytes(model: Any, few: int, many: int) -> float:
    """Of memory from forward to backward: on CUDA at the peak, else what autograd saves, each storage once."""
    at = []
    for tokens in (few, many):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            _run(model, [tokens])
            at.append(torch.cuda.max_memory_allocated() - before)
        else:
            seen: dict[int, tuple[int, torch.Tensor]] = {p.untyped_storage().data_ptr(): (0, p) for p in model.parameters()}
            with torch.autograd.graph.saved_tensors_hooks(
                    lambda t: seen.setdefault(t.untyped_storage().data_ptr(), (t.untyped_storage().nbytes(), t)) and t,
                    lambda t: t):
                _run(model, [tokens])
            logits = 2 * 4 * model.config.get_text_config().vocab_size * tokens  # their gradient, while it is made
            at.append(sum(n for n, _ in seen.values()) + logits)
    return (at[1] - at[0]) / max(1, many - few)


def _slowest(seconds: Sequence[float]) -> Any:
    """[i] the largest of all ranks."""
    found = torch.tensor(seconds, dtype=torch.float64)
    if dist.is_initialized() and dist.get_world_size() > 1:
        found = found.cuda() if dist.get_backend() == "nccl" else found
        wait(dist.all_reduce(found, dist.ReduceOp.MAX, async_op=True), DEADLINE, "the slowest rank's seconds")
    return found.cpu().numpy()


def _measure_messages(costs: Costs, node: int, device: torch.device) -> None:
    """A small and a large all-to-all, and an all-reduce, inside nodes (all at once) and over all ranks."""
    world, rank = dist.get_world_size(), dist.get_rank()
    inside = [dist.new_group(range(first, first + node)) for first in range(0, world, node)][rank // node]
    found = []
    for ranks, group in ((node, inside), (world, None)):
        small, large = (torch.zeros(n // ranks * ranks, device=device) for n in (16 * ranks, 2**19))
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_to_all_single(torch.empty_like(small), small, group=group, async_op=True),
            lambda: dist.all_to_all_single(torch.empty_like(large), large, group=group, async_op=True),
            lambda: dist.all_reduce(large, group=group, async_op=True)]
        what = f"a message over {ranks} ranks while measuring"
        short, long, reduced = (_slowest([min(_timed(lambda: wait(call(), DEADLINE, what)) for _ in range(4))])[0]
                                for call in calls)
        sent = large.nbytes * (ranks - 1) / ranks
        found.append((short, max(0.0, long - short) / sent, reduced / large.nbytes) if ranks > 1 else (0.0, 0.0, 0.0))
    costs.message, costs.byte, costs.reduce = ((float(a), float(b)) for a, b in zip(*found))
