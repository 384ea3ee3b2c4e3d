"""What a loop has around its model: nothing, DDP or FSDP2, and torch.compile around or inside of these."""

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

_KNOWN = "plans are for a plain model, DDP and FSDP2 (fully_shard)"


def without_compile(model: Any) -> Any:
    """The model that torch.compile was given, which has the same parameters."""
    while isinstance(getattr(model, "_orig_mod", None), torch.nn.Module):
        model = model._orig_mod
    return model


def expect_known(model: Any) -> Any:
    """Without torch.compile around it.  Raises ValueError for what would average gradients otherwise."""
    model = without_compile(model)
    if not isinstance(model, torch.nn.Module):
        return model
    for module in model.modules():
        if isinstance(module, FullyShardedDataParallel):
            raise ValueError(f"{type(model).__name__} is not supported: it is wrapped by FSDP1 "
                             f"(FullyShardedDataParallel), and {_KNOWN}: call fully_shard(model) in its place")
    if isinstance(model, DistributedDataParallel):
        return model
    if isinstance(getattr(model, "module", None), torch.nn.Module):
        raise ValueError(f"{type(model).__module__}.{type(model).__name__} is not supported: it wraps a model, and "
                         f"{_KNOWN}")
    if not isinstance(model, FSDPModule) and any(isinstance(p, DTensor) for p in model.parameters()):
        raise ValueError(f"{type(model).__name__} is not supported: parameters inside of it are sharded (DTensor), "
                         f"but itself it is not, and {_KNOWN}: call fully_shard on the whole model, too, and leave "
                         "tensor parallelism out")
    return model


def inside(model: Any) -> Any:
    """The Hugging Face model in a known one."""
    model = without_compile(model)
    return without_compile(model.module) if isinstance(model, DistributedDataParallel) else model
