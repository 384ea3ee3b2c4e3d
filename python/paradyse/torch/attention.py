"""Attention of packed documents over a group: attach() puts it into a Hugging Face model.

Such models call what ALL_ATTENTION_FUNCTIONS has under their configuration's name.  A name without an entry
among the mask functions gets no mask; each document is attended to apart instead.
"""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .exchange import Exchange, piece
from .wrappers import expect_known, inside

try:
    from torch.nn.attention.varlen import varlen_attn  # PyTorch 2.11
    PACKED = "window_size" in inspect.signature(varlen_attn).parameters
except ImportError:
    PACKED = False

NAME = "paradyse"
OWN = "sdpa"  # of the model as it came
_MASK = "an attention mask (documents are attended to apart, and there is no padding)"
_REFUSED = {"attention_mask": _MASK, "sliding_window": "a sliding window", "softcap": "a soft cap of scores",
            "s_aux": "attention sinks", "sinks": "attention sinks", "position_bias": "a bias of positions",
            "head_mask": "a mask of heads"}
_PARTIAL = {"sliding_window": "a sliding window", "attention_chunk_size": "attention in chunks"}  # of configurations
_FULL = {"full_attention", "attention", "dense", "sparse", "moe"}  # types of layers, also of what is no attention
_HOOKED = "_paradyse_hooked"


class _NoExchange(ValueError):
    """A call of attention without the documents of its tokens."""


PROBED = 64  # tokens of a document


def attach(model: torch.nn.Module) -> None:
    """Lets a Hugging Face model play plans: its attention then expects the `paradyse=` of mb.inputs.

    All ranks call it, before or after DDP, fully_shard or torch.compile.  Forwards of short documents count the calls, one a
    layer, and are compared: a document after another with it alone, and that with the model as it came.
    Raises ValueError, naming model and cause, where documents would mix, where the model is no causal language
    model or is wrapped by others (FSDP1), or where attention has windows, chunks, soft caps, sinks or dropout, or rotations that depend on
    the longest document.
    """
    model = expect_known(model)
    hugging = inside(model)
    kind = type(hugging).__name__
    if not hasattr(getattr(hugging, "config", None), "get_text_config"):
        raise ValueError(f"{kind} is not supported: it has no configuration of a Hugging Face model")
    config = hugging.config.get_text_config()
    if config._attn_implementation not in (OWN, NAME):
        raise ValueError(f"{kind} is not supported: its attention implementation is "
                         f"{config._attn_implementation!r}; if the model has it, load it with "
                         f"attn_implementation={OWN!r}")
    hook, trained = None, model.training
    try:
        expect_played(config, hugging)
        hugging.set_attn_implementation(OWN)
        model.eval()
        plain, begin = _own_logits(model, config)
        ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
        hugging.set_attn_implementation(NAME)
        if not getattr(hugging, _HOOKED, False):
            hook = hugging.register_forward_pre_hook(_expect_no_mask, with_kwargs=True)
        count = len(plain)
        packed, alone = _logits(model, config, [5, count]), _logits(model, config, [count])
        close = 1e-3 if next(hugging.parameters()).itemsize > 2 else 5e-2
        if not (apart := _apart_by(packed[-count:], alone)) < close:
            raise ValueError(
                f"the logits of a document change by {apart:.1e} when it is packed after another: "
                "tokens interact outside attention, or the model does not use position_ids")
        if not (apart := _apart_by(plain[:len(begin)], begin)) < close:
            raise ValueError(f"the logits of tokens change by {apart:.1e} with those that come after them: "
                             "plans are for causal language models")
        if not (apart := _apart_by(alone, plain)) < close:
            raise ValueError(
                f"the logits of a document of {count} tokens differ by {apart:.1e} from the model's own without "
                "position_ids: its attention is not causal over the whole document, or its positions are "
                "not 0, 1, 2 and so on")
        setattr(hugging, _HOOKED, True)
    except BaseException as error:
        hugging.set_attn_implementation(OWN)
        if hook is not None:
            hook.remove()
        if isinstance(error, _NoExchange):
            raise ValueError(f"{kind} is not supported: its layers do not hand the arguments of a call on to "
                             "attention, which so does not learn of the documents and would mix them") from error
        if isinstance(error, (ValueError, TypeError)):
            raise ValueError(f"{kind} is not supported: {error}") from error
        if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
            raise ValueError(f"{kind} is not supported: its forward fails: "
                             f"{error}{_experts(config, hugging)}") from error
        raise
    finally:
        model.train(trained)


@contextlib.contextmanager
def own_attention(model: torch.nn.Module) -> Iterator[None]:
    """In it an attached model attends as it came, with masks, padding and caches: to evaluate and generate."""
    hugging = inside(model)
    planned = hugging.config.get_text_config()._attn_implementation
    hugging.set_attn_implementation(OWN)
    try:
        yield
    finally:
        hugging.set_attn_implementation(planned)


@contextlib.contextmanager
def played_attention(model: torch.nn.Module) -> Iterator[None]:
    """In it the model attends by plans, and outside of it as it came."""
    if not is_attached(model):
        raise ValueError(
            f"{type(inside(model)).__name__} is not attached, so that documents would mix: call attach(model)")
    inside(model).set_attn_implementation(NAME)
    try:
        yield
    finally:
        inside(model).set_attn_implementation(OWN)


def is_attached(model: Any) -> bool:
    return bool(getattr(inside(model), _HOOKED, False))


def _experts(config: Any, model: Any) -> str:
    """What to do about experts that have no products in the model's type."""
    grouped = getattr(config, "_experts_implementation", None) == "grouped_mm"
    return ("; its experts have grouped products, which have no float64: call "
            "model.set_experts_implementation('eager') before attach()"
            if grouped and next(model.parameters()).dtype == torch.float64 else "")


def expect_played(config: Any, model: Any) -> None:
    """Raises ValueError for what a configuration says that short documents may not show."""
    for name in ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"):
        if rate := getattr(config, name, 0):
            raise ValueError(f"dropout {rate} of attention differs on each rank: set {name} to 0")
    for name in ("layerdrop", "decoder_layerdrop"):
        if rate := getattr(config, name, 0):
            raise ValueError(f"{name} {rate} leaves out other layers on each rank: set it to 0")
    for rope_type in _rope_types(config, model):
        if "dynamic" in rope_type or "longrope" in rope_type:
            raise ValueError(f"rope_type {rope_type!r}: its rotations depend on the longest document of a "
                             "micro-batch, so that a document would be trained as its neighbors are long")
    if getattr(config, "is_causal", True) is False:
        raise ValueError("is_causal is False: each token sees those after it, but plans are for causal "
                         "language models")
    if getattr(config, "attn_temperature_tuning", False):
        raise ValueError("attn_temperature_tuning counts positions over packed documents: set it to False")
    types = [kind for kind in getattr(config, "layer_types", None) or ()]
    if odd := sorted({str(kind) for kind in types} - _FULL):
        raise ValueError(f"layer_types has {', '.join(odd)}: plans are for attention over the whole document "
                         "(full_attention), in all layers")
    if types:
        return  # which say of each layer whether a window or chunk below is used
    for name, what in _PARTIAL.items():
        if (size := getattr(config, name, None)) and getattr(config, f"use_{name}", True):
            raise ValueError(f"{what} ({name} {size}) is not supported by paradyse.torch")


def _rope_types(config: Any, model: Any) -> set[str]:
    """Of the configuration, and of what the model has made of one."""
    said: list[Any] = [getattr(config, name, None) for name in ("rope_parameters", "rope_scaling")]
    said += [getattr(module, "rope_type", None) for module in model.modules()]
    found: set[str] = set()
    while said:
        one = said.pop()
        if isinstance(one, str):
            found.add(one)
        elif isinstance(one, dict):
            said += [one[name] for name in ("rope_type", "type") if isinstance(one.get(name), str)]
            said += [value if isinstance(value, dict) else {"type": value} for key, value in one.items()
                     if isinstance(value, dict) or str(key).endswith("attention")]  # of each type of layers
    return found


def _ids(model: Any, config: Any, count: int) -> torch.Tensor:
    numbers = torch.arange(count, device=next(model.parameters()).device)
    vocabulary: int = config.vocab_size
    return (1 + numbers * numbers % 11) % vocabulary


def _apart_by(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def _own_logits(model: Any, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """[tokens, vocabulary] of a document by the model as it came, and of the first half of it alone."""
    most = getattr(config, "max_position_embeddings", None) or PROBED
    ids = _ids(model, config, max(2, min(PROBED, most // 2)))
    table = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    sizes = {config.vocab_size, getattr(table, "num_embeddings", config.vocab_size)}
    with torch.no_grad():
        found: list[Any] = [getattr(model(input_ids=part[None], use_cache=False), "logits", None)
                            for part in (ids, ids[:len(ids) // 2])]
    whole, begin = found
    if whole is None or whole.ndim != 3 or whole.shape[1] != len(ids) or whole.shape[2] not in sizes:
        shape = "no logits" if whole is None else f"logits {list(whole.shape)}"
        raise ValueError(f"it gives {shape} for {len(ids)} tokens, but plans are for causal language models, "
                         f"with logits [1, {len(ids)}, {config.vocab_size}]")
    return whole[0].double(), begin[0].double()


def _logits(model: Any, config: Any, lengths: list[int]) -> torch.Tensor:
    """[tokens, vocabulary] of documents, of which the last is always the same."""
    device, exchange = next(model.parameters()).device, Exchange(lengths)
    ids = torch.cat([_ids(model, config, n) for n in lengths])
    positions = torch.cat([torch.arange(n, device=device) for n in lengths])
    with torch.no_grad():
        found = model(input_ids=ids[None], position_ids=positions[None], use_cache=False, paradyse=exchange)
    if exchange.calls != config.num_hidden_layers:
        raise ValueError(f"{exchange.calls} of its {config.num_hidden_layers} layers attend through "
                         "ALL_ATTENTION_FUNCTIONS; the others would mix documents")
    if not exchange.causal:
        raise ValueError("its attention is not causal: plans are for causal language models")
    logits: torch.Tensor = found.logits[0].double()
    return logits


def _expect_no_mask(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    if kwargs.get("attention_mask") is not None and kwargs.get("paradyse") is not None:
        raise ValueError(f"{_MASK} is not supported by paradyse.torch")  # models drop it unseen
    if kwargs.get("labels") is not None and kwargs.get("paradyse") is not None:
        raise ValueError("labels of a micro-batch are shifted already, and the model would shift them again and take "
                         "the mean of this rank: give loss_sum(model(**mb.inputs), mb.labels)")


def attend(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
           attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0,
           paradyse: Exchange | None = None, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """[1, heads, tokens, d] of this rank's tokens -> [1, tokens, heads, d]."""
    if paradyse is None:
        raise _NoExchange("attention got no paradyse=: call model(**mb.inputs), or, to evaluate or generate, do it "
                         "in `with own_attention(model):`")
    for name, what in _REFUSED.items():
        if {**kwargs, "attention_mask": attention_mask}.get(name) is not None:
            raise ValueError(f"{what} ({name}) is not supported by paradyse.torch")
    if dropout > 0:
        raise ValueError(f"dropout {dropout} of attention differs on each rank: set it to 0")
    own, heads = paradyse.tokens, query.shape[1]
    if query.shape[0] != 1 or not query.shape[2] == key.shape[2] == max(1, own):
        raise ValueError(
            f"queries {list(query.shape)} and keys {list(key.shape)}: expected is one row of the {own} "
            f"tokens that this rank has of {paradyse.name} (no cache, no other sequence)")
    paradyse.calls += 1
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    paradyse.causal &= bool(causal)
    share = heads // key.shape[1]  # queries that read a key
    of_query = [piece(heads, rank, paradyse.ranks) for rank in range(paradyse.ranks)]
    of_key = [range(h.start // share, (h.stop - 1) // share + 1) if h else range(0) for h in of_query]
    q, k, v = paradyse.to_heads([t[0, :, :own] for t in (query, key, value)], [of_query, of_key, of_key])
    read = [head // share - of_key[paradyse.rank].start for head in of_query[paradyse.rank]]
    if len({read.count(one) for one in read}) > 1:
        k, v = k[read], v[read]  # keys that unequally many queries read
    if read and paradyse.lengths:
        out = _apart(q, k, v, list(paradyse.lengths), scaling, causal)
    else:
        out = q.transpose(0, 1)[..., :1].expand(-1, -1, v.shape[-1])  # nothing, made of what came
    out = out.to(value.dtype)  # which all ranks have alike: autocast makes it of theirs alone that have heads
    out = paradyse.to_tokens(out, of_query)[None]
    if own == 0:  # a dummy reaches every parameter, and stays joined to what the others exchange
        out = _one(query, key, value, scaling, causal) + out.sum()
    return out, None


def _one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None,
         causal: bool) -> torch.Tensor:
    """[1, heads, tokens, d] of one document -> [1, tokens, heads, d]."""
    return scaled_dot_product_attention(q, k, v, is_causal=causal and q.shape[2] > 1, scale=scale,
                                        enable_gqa=q.shape[1] > k.shape[1]).transpose(1, 2)


def _apart(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], scale: float | None,
           causal: bool) -> torch.Tensor:
    """[heads, tokens, d] of packed documents -> [tokens, heads, d]."""
    if PACKED and q.is_cuda and len(lengths) > 1 and q.itemsize == 2 and q.shape[-1] == v.shape[-1]:
        parts = [t.repeat_interleave(len(q) // len(t), 0).transpose(0, 1).contiguous() for t in (q, k, v)]
        ends = torch.tensor([0, *lengths], device=q.device).cumsum(0, dtype=torch.int32)
        packed: Any = varlen_attn  # its types are those of its newest form
        found: torch.Tensor = packed(*parts, ends, ends, max(lengths), max(lengths), scale=scale,
                                     window_size=(-1, 0 if causal else -1))
        return found
    split = (t[None].split(lengths, 2) for t in (q, k, v))
    return torch.cat([_one(one_q, one_k, one_v, scale, causal)[0] for one_q, one_k, one_v in zip(*split)])
