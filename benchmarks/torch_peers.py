#!/usr/bin/env python3
"""Seconds of a training step by PyTorch's own parallelism, on CPU ranks over Gloo.

    OMP_NUM_THREADS=1 VENV/bin/torchrun --nproc-per-node 4 benchmarks/torch_peers.py fsdp --lengths 256,1024

fsdp: FSDP2, a document of so many tokens on each rank.  tp_sp: tensor and sequence parallelism by DTensor, all ranks on
one document.  The model is that of configs/models/bench.toml: a LLaMA of 4 layers, hidden 256, 8 heads, FFN 704,
vocabulary 512.  A line of JSON for each length; torch 2.11.
"""
import argparse
import json
import math
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module)

HIDDEN, HEADS, LAYERS, FFN, VOCAB = 256, 8, 4, 704, 512
HEAD = HIDDEN // HEADS


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x, turns):
        def heads(y):  # [1, heads, tokens, HEAD]; with tensor parallelism a rank has some of them
            return y.unflatten(-1, (-1, HEAD)).transpose(1, 2)

        def turned(y):
            pairs = torch.view_as_complex(y.unflatten(-1, (2, HEAD // 2)).transpose(-1, -2).contiguous())
            return torch.view_as_real(pairs * turns).transpose(-1, -2).flatten(-2)

        seen = nn.functional.scaled_dot_product_attention(
            turned(heads(self.q(x))), turned(heads(self.k(x))), heads(self.v(x)), is_causal=True)
        return self.o(seen.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = linear(HIDDEN, FFN), linear(HIDDEN, FFN), linear(FFN, HIDDEN)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
        self.attention, self.mlp = Attention(), Mlp()

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = linear(HIDDEN, VOCAB)

    def forward(self, ids):
        frequency = torch.exp(-math.log(10000) * torch.arange(HEAD // 2) / (HEAD // 2))
        angle = torch.outer(torch.arange(ids.shape[1]), frequency)
        turns = torch.polar(torch.ones_like(angle), angle)
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, turns)
        return self.head(self.norm(x))


def sharded(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def tensor_parallel(model, mesh):
    """Streams between parts are cut by tokens, parts by heads or columns."""
    def whole_tokens(others):
        return PrepareModuleInput(input_layouts=(Shard(1), *others), desired_input_layouts=(Replicate(), *others))

    to_tokens = RowwiseParallel(output_layouts=Shard(1))
    parallelize_module(model, mesh, {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())})
    for layer in model.layers:
        parallelize_module(layer, mesh, {
            "attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel(),
            "attention": whole_tokens((None,)), "mlp": whole_tokens(()),
            **{f"attention.{name}": ColwiseParallel() for name in "qkv"}, "attention.o": to_tokens,
            "mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": to_tokens})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["fsdp", "tp_sp"])
    parser.add_argument("--lengths", default="256,1024,4096")
    parser.add_argument("--iters", type=int, default=3, help="steps of a length, after one that is not counted")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Llama()
    (sharded if options.mode == "fsdp" else tensor_parallel)(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    documents = dist.get_world_size() if options.mode == "fsdp" else 1
    draw = torch.Generator().manual_seed(dist.get_rank() if options.mode == "fsdp" else 0)
    for length in map(int, options.lengths.split(",")):
        seconds = []
        for _ in range(1 + options.iters):
            ids = torch.randint(VOCAB, (1, length), generator=draw)
            dist.barrier()
            begin = time.perf_counter()
            logits = model(ids)
            logits = logits.full_tensor() if isinstance(logits, DTensor) else logits
            nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.barrier()
            seconds.append(time.perf_counter() - begin)
        if dist.get_rank() == 0:
            best = min(seconds[1:])
            print(json.dumps({"length": length, "step_s": best, "tokens_per_s": documents * length / best}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
