"""Attention of packed documents over a group, around the model's own function: attach() puts it in.

Hugging Face models call what ALL_ATTENTION_FUNCTIONS has under their configuration's name.  A name
without an entry among the mask functions gets no mask; each document is attended to apart instead.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .exchange import Exchange, piece

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # PyTorch 2.7 to 2.9
    varlen_attn = None  # type: ignore[assignment]

NAME = "paradyse"
_MASK = "an attention mask: leave it out; documents are attended to apart, and there is no padding"
_REFUSED = {"sliding_window": "a sliding window", "softcap": "a soft cap of scores", "s_aux": "attention sinks",
            "sinks": "attention sinks", "position_bias": "a bias of positions", "head_mask": "a mask of heads"}


def attach(model: torch.nn.Module) -> None:
    """Lets a Hugging Face model play plans: its attention then expects the `paradyse=` of mb.inputs.

    All ranks call it, before or after DDP or fully_shard.  One forward of two short documents counts the calls, one
    a layer, and compares the second document with the same alone.  Raises ValueError, naming the model and the cause,
    for models whose attention would mix documents or lose what it does beside: windows, soft caps, sinks, dropout.
    """
    hugging = _unwrapped(model)
    config = hugging.config.get_text_config()
    kind = type(hugging).__name__
    if config._attn_implementation != NAME:
        if config._attn_implementation != "sdpa":
            raise ValueError(f"{kind} runs attention by {config._attn_implementation!r}: load it with "
                             "attn_implementation='sdpa', around which paradyse.torch puts its exchange")
        ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
        hugging.set_attn_implementation(NAME)
        hugging.register_forward_pre_hook(_expect_no_mask, with_kwargs=True)
    trained, calls = model.training, 0
    device = next(hugging.parameters()).device
    try:
        for parameter in ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"):
            if getattr(config, parameter, 0):
                raise ValueError(f"dropout {getattr(config, parameter)} of attention's weights ({parameter}) differs "
                                 "on each rank: set it to 0")
        model.eval()
        logits = []
        for lengths in ([5, 4], [4]):
            exchange = Exchange(lengths)
            ids = torch.arange(1, 10, device=device)[-sum(lengths):] % config.vocab_size
            positions = torch.cat([torch.arange(n, device=device) for n in lengths])
            with torch.no_grad():
                found = model(input_ids=ids[None], position_ids=positions[None], use_cache=False, paradyse=exchange)
            logits.append(found.logits[0, -4:].double())
            calls = exchange.calls
        if calls != config.num_hidden_layers:
            raise ValueError(f"{calls} of its {config.num_hidden_layers} layers attend through "
                             "ALL_ATTENTION_FUNCTIONS; the others would mix documents")
        apart = (logits[0] - logits[1]).norm() / logits[1].norm()
        if not apart < (1e-3 if found.logits.element_size() > 2 else 5e-2):
            raise ValueError(f"a document packed behind another gives other logits than alone (by {apart:.1e}): "
                             "tokens meet outside attention, or positions are not those of position_ids")
    except (ValueError, TypeError) as error:
        hugging.set_attn_implementation("sdpa")
        raise ValueError(f"{kind} cannot play plans: {error}") from error
    finally:
        model.train(trained)


def _expect_no_mask(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    if kwargs.get("attention_mask") is not None and kwargs.get("paradyse") is not None:
        raise ValueError(_MASK)


def _unwrapped(model: torch.nn.Module) -> Any:
    return model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model


def _attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0,
               paradyse: Exchange | None = None, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """[1, heads, tokens, d] of this rank's tokens -> [1, tokens, heads, d]."""
    if paradyse is None:
        raise ValueError("attention got no paradyse=: call model(**mb.inputs), or, to evaluate or generate, "
                         "model.set_attn_implementation('sdpa') first")
    for name, what in _REFUSED.items():
        if kwargs.get(name) is not None:
            raise ValueError(f"{what} ({name}) is not supported by paradyse.torch")
    if attention_mask is not None:
        raise ValueError(_MASK)
    if dropout > 0:
        raise ValueError(f"dropout {dropout} of attention's weights differs on each rank: set it to 0")
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise ValueError(f"queries {list(query.shape)} and keys {list(key.shape)}: expected are one row and as many "
                         "queries as keys (no cache, no other sequence)")
    if query.shape[2] != max(1, paradyse.tokens):
        raise ValueError(f"{query.shape[2]} tokens, but this rank has {paradyse.tokens} of {paradyse.name}: inputs "
                         "must be those of the same micro-batch")
    paradyse.calls += 1
    p, own = paradyse.ranks, paradyse.tokens
    dummy = None if own else _one(module, query, key, value, scaling, kwargs)
    of_query = [piece(query.shape[1], rank, p) for rank in range(p)]
    share = query.shape[1] // key.shape[1]  # queries that read a key
    of_key = [range(h.start // share, (h.stop - 1) // share + 1) if h else range(0) for h in of_query]
    tensors = [tensor[0, :, :own] for tensor in (query, key, value)]
    q, k, v = paradyse.to_heads(tensors, [of_query, of_key, of_key])
    mine = of_query[paradyse.rank]
    read = [head // share - of_key[paradyse.rank].start for head in mine]
    if read != [i * k.shape[0] // max(1, len(mine)) for i in range(len(mine))] or len(mine) % max(1, k.shape[0]):
        k, v = k[read], v[read]  # keys that unequally many queries read
    if mine and paradyse.lengths:
        out = _apart(module, q, k, v, paradyse.lengths, scaling, kwargs)
    else:
        out = q.transpose(0, 1)[..., :1].expand(-1, -1, v.shape[-1])  # nothing, of what came
    out = paradyse.to_tokens(out, of_query)
    return (out[None] if dummy is None else dummy + out.sum()), None


def _one(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float | None, kwargs: Any) -> Any:
    """[1, heads, n, d] of one document -> [1, n, heads, d], by the model's own function."""
    sized = _Sized(module, q.shape[1] // k.shape[1])
    return ALL_ATTENTION_FUNCTIONS["sdpa"](sized, q, k, v, None, scaling=scaling, dropout=0.0, **kwargs)[0]


class _Sized:
    """A module as its attention function sees it, with as many queries a key as this rank has."""

    def __init__(self, module: torch.nn.Module, share: int) -> None:
        self._module, self.num_key_value_groups = module, share

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _apart(module: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Any, scaling: float | None,
           kwargs: Any) -> torch.Tensor:
    """[heads, tokens, d] of packed documents -> [tokens, heads, d]."""
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if (q.is_cuda and len(lengths) > 1 and q.dtype in (torch.float16, torch.bfloat16) and varlen_attn is not None
            and "window_size" in inspect.signature(varlen_attn).parameters and q.shape[-1] == v.shape[-1]):
        k, v = (t.repeat_interleave(q.shape[0] // t.shape[0], 0) for t in (k, v))
        ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=q.device)
        parts = [t.transpose(0, 1).contiguous() for t in (q, k, v)]
        return varlen_attn(*parts, ends, ends, max(lengths), max(lengths), scale=scaling,
                           window_size=(-1, 0) if causal else (-1, -1))
    split = [t[None].split(list(lengths), 2) for t in (q, k, v)]
    return torch.cat([_one(module, *parts, scaling, kwargs)[0] for parts in zip(*split)])
