"""What a model takes on this machine, fitted from its own forward and backward passes."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from .attention import NAME
from .exchange import Exchange, gathered, message_device, wait
from .items import expect_whole, finite
from .planner import Costs, ranks_of_node
from .steps import loss_sum, now, recompute_layers

DEADLINE = 600.0  # seconds of a message while measuring


def measure(model: Any, *, seconds: float = 60.0, longest: int = 4096, node: int | None = None,
            recompute: bool = True) -> Costs:
    """Costs of an attached model, before DDP or fully_shard, by so many seconds of forward and backward.

    longest: tokens of the longest document that is tried.  All ranks measure at once, as they share cores and
    links, and the slowest counts; messages inside a node (of `node` ranks) and over all ranks, too.  All get the
    same costs, so call it after init_process_group.  Clears the model's gradients.
    """
    config, ranks = model.config.get_text_config(), dist.get_world_size() if dist.is_initialized() else 1
    if config._attn_implementation != NAME:
        raise ValueError(f"{type(model).__name__} is not attached, so that its attention would not be that of "
                         "plans: call attach(model) first")
    if not (finite(seconds) and seconds >= 0):
        raise ValueError(f"seconds {seconds!r}: accepted is a number from 0 on")
    expect_whole("longest", longest, 2)  # memory is of two lengths
    if node is not None:
        expect_whole("node", node, 1)
    node = ranks_of_node(node, ranks)
    if ranks % node:
        raise ValueError(f"node {node}: nodes of so many ranks must divide the {ranks} ranks")
    model.train()
    most = min(longest, getattr(config, "max_position_embeddings", longest))
    a, b, c, d, e = (max(1, most >> 2 * i) for i in range(5))
    mixes = [[a], [b], [b, b], [c], [d], [d, d], [e], [e] * 4, [e] * 9, [e] * 16, [d] * 6, [c, e], [b, d, e]]
    taken: list[list[float]] = [[] for _ in mixes]
    end = time.perf_counter() + seconds
    while _slowest(float(len(taken[0]) < 3 or time.perf_counter() < end))[0]:  # all ranks stop together
        for mix, times in zip(mixes, taken):
            times.append(_run(model, mix))
    found = _slowest(*(float(np.median(times[1:])) for times in taken))
    table = np.array([[1, sum(mix), sum(n * n for n in mix), len(mix)] for mix in mixes], dtype=float)
    unseen = np.arange(len(mixes)) % 3 == 2
    guessed = table[unseen] @ fit(table[~unseen], found[~unseen])
    once, token, square, document = map(float, fit(table, found))
    costs = Costs(token, square, document, once, error=float(np.median(np.abs(guessed / found[unseen] - 1))),
                  parameters=sum(p.numel() for p in model.parameters()),
                  itemsize=next(model.parameters()).itemsize, token_bytes=_token_bytes(model, b, a),
                  ranks=ranks)
    if recompute and any(hasattr(module, "gradient_checkpointing") for module in model.modules()):
        plain = _slowest(min(_run(model, [a]) for _ in range(3)))
        recompute_layers(model, True)
        costs.recompute = max(1.0, float((_slowest(min(_run(model, [a]) for _ in range(3))) / plain)[0]))
        costs.token_bytes_again = _token_bytes(model, b, a)
        if not torch.cuda.is_available():  # counted: outside layers. Add inputs, and a layer
            inputs = config.num_hidden_layers * config.hidden_size * costs.itemsize
            costs.token_bytes_again += inputs + costs.token_bytes / config.num_hidden_layers
        recompute_layers(model, False)
    if ranks > 1:
        pairs = zip(*(_messages(size, next(model.parameters()).device) for size in (node, ranks)))
        costs.message, costs.byte, costs.reduce = pairs
        # also in the last bit: machines may fit otherwise
        costs = gathered(costs, "the costs of rank 0", DEADLINE)[0]
    model.zero_grad(set_to_none=True)
    return costs


def fit(table: Any, seconds: Any) -> Any:
    """[term], none below 0, of seconds [run] = table [run, term] @ terms by least relative squares."""
    scaled, kept, found = table / seconds[:, None], list(range(table.shape[1])), np.zeros(table.shape[1])
    while True:
        some = np.linalg.lstsq(scaled[:, kept], np.ones(len(seconds)), rcond=None)[0]
        if (some >= 0).all() or len(kept) == 1:
            found[kept] = np.maximum(some, 0)
            return found
        kept.pop(int(np.argmin(some * np.linalg.norm(scaled[:, kept], axis=0))))


def _timed(call: Callable[[], Any]) -> float:
    begin = now()
    call()
    return now() - begin


def _run(model: Any, lengths: Sequence[int]) -> float:
    """Seconds of forward and backward of documents of these lengths on this rank alone."""
    device = next(model.parameters()).device
    ids = torch.arange(sum(lengths), device=device)[None] % model.config.get_text_config().vocab_size
    positions = torch.cat([torch.arange(n, device=device) for n in lengths])[None]
    return _timed(lambda: loss_sum(model(input_ids=ids, position_ids=positions, use_cache=False,
                                         paradyse=Exchange(lengths)), ids).backward())


def _token_bytes(model: Any, few: int, many: int) -> float:
    """From forward to backward: on CUDA of the peak, else of what autograd saves, each storage once."""
    def taken(tokens: int) -> int:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            _run(model, [tokens])
            return int(torch.cuda.max_memory_allocated() - before)
        seen: dict[int, tuple[int, torch.Tensor]] = {}  # tensors are kept, so that no address comes again

        def see(t: torch.Tensor) -> torch.Tensor:
            seen.setdefault(t.untyped_storage().data_ptr(), (t.untyped_storage().nbytes(), t))
            return t

        with torch.autograd.graph.saved_tensors_hooks(see, lambda t: t):
            _run(model, [tokens])
        for parameter in model.parameters():
            seen.pop(parameter.untyped_storage().data_ptr(), None)
        logits: int = 2 * 4 * model.config.get_text_config().vocab_size * tokens  # and their gradient
        return sum(n for n, _ in seen.values()) + logits
    return float(_slowest((taken(many) - taken(few)) / max(1, many - few))[0])  # the rank that needs most


def _slowest(*seconds: float) -> Any:
    """[i] the largest of all ranks."""
    found = torch.tensor(seconds, dtype=torch.float64)
    if dist.is_initialized() and dist.get_world_size() > 1:
        found = found.to(message_device())
        wait(dist.all_reduce(found, dist.ReduceOp.MAX, async_op=True), DEADLINE, "the slowest rank's seconds")
    return found.cpu().numpy()


def _messages(ranks: int, device: torch.device) -> tuple[float, float, float]:
    """Seconds of an all-to-all, of a byte in one and in an all-reduce, in all groups of `ranks` at once."""
    if ranks == 1:
        return 0.0, 0.0, 0.0
    deadline = timedelta(seconds=DEADLINE)
    groups = [dist.new_group(range(r, r + ranks), timeout=deadline) for r in range(0, dist.get_world_size(), ranks)]
    group = groups[dist.get_rank() // ranks]

    def seconds(call: Callable[..., Any], *tensors: torch.Tensor) -> float:
        what = f"a message over {ranks} ranks while measuring"
        once = lambda: wait(call(*tensors, group=group, async_op=True), DEADLINE, what)
        return float(_slowest(min(_timed(once) for _ in range(4)))[0])

    small, large = (torch.zeros(n // ranks * ranks, device=device) for n in (16 * ranks, 2**19))
    short, long, reduced = (seconds(dist.all_to_all_single, torch.empty_like(small), small),
                            seconds(dist.all_to_all_single, torch.empty_like(large), large),
                            seconds(dist.all_reduce, large))
    return short, max(0.0, long - short) / (large.nbytes * (ranks - 1) / ranks), reduced / large.nbytes
