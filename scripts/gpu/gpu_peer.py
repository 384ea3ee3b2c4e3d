#!/usr/bin/env python3
"""The peer of a training step on one GPU: the same LLaMA in plain PyTorch, a JSON line a turn.

    gpu_peer.py [--modes eager,compile] [--turns 2] [--between COMMAND...]    --between comes last
    gpu_peer.py --packs FILE                documents of these lengths, new ones each step

Modes take turns in one process, which stays warm: eager, compile, the command between, eager,
compile.  The command is ours: a `bench step --json`, whose answer becomes a line, too.

What is like ours: bfloat16 weights beside float32 masters, activations and their gradients in
bfloat16, gradients of weights and both moments of AdamW (fused) in float32, sums of losses in float32,
clipping to 1.0, the same tokens each step.  The bfloat16 weights are made from the masters in each
step, as autocast does it and at the same cost, but where it is seen; ours makes them in the optimizer.
Attention is torch's own choice of the faster of cuDNN and flash, measured first.

--packs FILE: JSON, a list of the lengths of each step's documents, which run through varlen_attn.  A
pack of more than --tokens is cut there, so that shapes stay the same; where one has less, the rest is
one more document, whose tokens are not counted.

`--small --device cpu` tries the script without a GPU.  Exit code: 0; 3 where no GPU is seen.
"""
import argparse
import gc
import json
import statistics
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional

EPS = 1e-5
THETA = 10000.0
WARM_UP = 3  # steps that are not counted


class Sizes:
    def __init__(self, small, vocab):
        self.hidden, self.layers, self.heads, self.key_heads, self.ffn = (
            (64, 2, 4, 2, 96) if small else (2048, 16, 16, 8, 5632))
        self.vocab = min(vocab, 300) if small else vocab
        self.width = self.hidden // self.heads


def weight(*sizes):
    return nn.Parameter(torch.randn(*sizes) * 0.02)


def narrow(master):
    return master.to(torch.bfloat16)


def norm(x, scale):
    return functional.rms_norm(x, (x.size(-1),), narrow(scale), EPS)


def turned(x, cosines, sines):
    """Rotary positions, x [tokens, heads, width]; computed in float32."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cosines - b * sines, b * cosines + a * sines), -1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        columns = (sizes.heads + 2 * sizes.key_heads) * sizes.width
        self.attention_norm = nn.Parameter(torch.ones(sizes.hidden))
        self.qkv = weight(columns, sizes.hidden)
        self.out = weight(sizes.hidden, sizes.heads * sizes.width)
        self.mlp_norm = nn.Parameter(torch.ones(sizes.hidden))
        self.gate_up = weight(2 * sizes.ffn, sizes.hidden)
        self.down = weight(sizes.hidden, sizes.ffn)

    def forward(self, x, batch):
        sizes = self.sizes
        qkv = functional.linear(norm(x, self.attention_norm), narrow(self.qkv))
        qkv = qkv.view(x.size(0), -1, sizes.width)
        q, k, v = qkv.split([sizes.heads, sizes.key_heads, sizes.key_heads], 1)
        q, k = turned(q, batch.cosines, batch.sines), turned(k, batch.cosines, batch.sines)
        mixed = batch.attend(q, k, v).reshape(x.size(0), -1)
        x = x + functional.linear(mixed, narrow(self.out))
        gate, up = functional.linear(norm(x, self.mlp_norm), narrow(self.gate_up)).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, narrow(self.down))


class Model(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.embedding = weight(sizes.vocab, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.Parameter(torch.ones(sizes.hidden))
        self.head = weight(sizes.vocab, sizes.hidden)

    def forward(self, batch):
        x = narrow(functional.embedding(batch.ids, self.embedding))
        for layer in self.layers:
            x = layer(x, batch)
        logits = functional.linear(norm(x, self.norm), narrow(self.head))
        return functional.cross_entropy(logits.float(), batch.labels)


class Batch:
    """One pack of documents: ids, the ids to predict (-100: none) and positions' angles."""

    def __init__(self, lengths, rows, longest, sizes, device):
        self.tokens = sum(lengths)
        filled = [*lengths, *([rows - self.tokens] if rows > self.tokens else [])]
        ids = torch.randint(0, sizes.vocab, (rows,))
        labels = torch.cat((ids[1:], torch.tensor([-100])))
        ends = torch.tensor([0, *filled]).cumsum(0)
        labels[ends[1:] - 1] = -100
        labels[self.tokens:] = -100
        positions = torch.arange(rows) - ends[:-1].repeat_interleave(torch.tensor(filled))
        steps = THETA ** (-torch.arange(0, sizes.width, 2).double() / sizes.width)
        angles = positions[:, None, None].double() * steps
        self.documents = len(filled)
        self.longest = longest
        self.ids, self.labels = ids.to(device), labels.to(device)
        self.cosines, self.sines = angles.cos().float().to(device), angles.sin().float().to(device)
        self.ends = ends.int().to(device)
        torch._dynamo.mark_dynamic(self.ends, 0)

    def attend(self, q, k, v):
        """Causal, inside each document; q, k, v [tokens, heads, width]."""
        if self.documents > 1:
            from torch.nn.attention.varlen import varlen_attn
            return varlen_attn(
                q, k, v, self.ends, self.ends, self.longest, self.longest, window_size=(-1, 0))
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return o.squeeze(0).transpose(0, 1)


def cut(lengths, tokens):
    """The first documents, of so many tokens together; the last of them may end early."""
    kept = []
    for length in lengths:
        kept.append(min(length, tokens - sum(kept)))
        if sum(kept) == tokens:
            break
    return kept


class Peer:
    def __init__(self, options):
        self.device = options.device
        self.end = time.monotonic() + options.seconds
        self.steps = options.steps
        self.sizes = Sizes(options.small, options.vocab)
        torch.manual_seed(0)
        with torch.device(self.device):
            self.model = Model(self.sizes)
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() == 1]
        self.adam = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
            lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)
        self.modes = {"eager": self.model}
        if "compile" in options.modes:
            self.modes["compile"] = torch.compile(self.model)

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def step(self, mode, batch):
        loss = self.modes[mode](batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return loss

    def turn(self, mode, batches):
        """Seconds of each step, and tokens."""
        times = []
        for i in range(WARM_UP + self.steps):
            batch = batches[i % len(batches)]
            self.synchronize()
            begin = time.perf_counter()
            loss = self.step(mode, batch)
            self.synchronize()
            times.append((time.perf_counter() - begin, batch.tokens))
            if time.monotonic() > self.end and len(times) > WARM_UP:
                break
        late = times[WARM_UP:]
        return {
            "what": mode, "step_s": statistics.median(seconds for seconds, _ in late),
            "best_s": min(seconds for seconds, _ in late), "first_s": times[0][0],
            "tokens_per_s": statistics.median(tokens / seconds for seconds, tokens in late),
            "steps": len(late), "loss": loss.item(),
            "peak_bytes": torch.cuda.max_memory_allocated() if self.device == "cuda" else None}

    def give_memory_back(self):
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def choose_attention(sizes, tokens):
    """The faster of cuDNN and flash on one document; what was found."""
    from torch.backends import cuda as backends
    found = {}
    shape = (1, sizes.heads, tokens, sizes.width)
    for name in ("cudnn", "flash"):
        for each in ("cudnn", "flash", "mem_efficient", "math"):
            getattr(backends, f"enable_{each}_sdp")(each == name)
        try:
            q = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            k = torch.randn_like(q[:, :sizes.key_heads]).requires_grad_()

            def both():
                o = functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
                o.backward(o)

            both()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(5):
                both()
            torch.cuda.synchronize()
            found[name] = (time.perf_counter() - begin) / 5
        except RuntimeError as error:
            found[name + "_error"] = str(error)[:200]
    timed = {name: seconds for name, seconds in found.items() if name in ("cudnn", "flash")}
    chosen = min(timed, key=timed.get) if timed else None
    for each in ("cudnn", "flash", "mem_efficient", "math"):
        getattr(backends, f"enable_{each}_sdp")(chosen is None or each in (chosen, "math"))
    return {"what": "attention", "chosen": chosen, **found}


def run_between(command, seconds):
    """Ours, with what it printed."""
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        code, output, errors = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, output, errors = 124, "", "it ran past its limit"
    try:
        printed = json.loads(output)
    except ValueError:
        printed = None
    return {"what": "ours", "code": code, "seconds": round(time.monotonic() - begin, 1),
            "printed": printed, "errors": errors[-300:]}


def say(facts):
    print(json.dumps(facts), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--modes", default="eager,compile", type=lambda text: text.split(","))
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--packs")
    parser.add_argument("--steps", type=int, default=8, help="counted, of a turn")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600, help="no turn begins after that")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--between", nargs=argparse.REMAINDER, default=[])
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu_peer.py: no GPU is seen", file=sys.stderr)
        return 3
    torch.set_float32_matmul_precision("high")
    peer = Peer(options)
    if options.packs:
        with open(options.packs) as file:
            packs = json.load(file)
    else:
        packs = [[options.tokens]]
    rows = options.tokens
    packs = [cut(pack, rows) for pack in packs]
    if options.device == "cuda":
        say(choose_attention(peer.sizes, rows))
    # One number for all packs, and any number of documents: compiled once.
    longest = max(max(pack) for pack in packs)
    longest = max(longest, *(rows - sum(pack) for pack in packs), 0)
    batches = [Batch(pack, rows, longest, peer.sizes, options.device) for pack in packs]
    say({"what": "model", "parameters": sum(p.numel() for p in peer.model.parameters()),
         "rows": rows, "packs": len(packs), "torch": torch.__version__, "device": options.device})
    for turn in range(options.turns):
        for mode in options.modes:
            if time.monotonic() < peer.end:
                say({**peer.turn(mode, batches), "turn": turn})
        left = peer.end - time.monotonic()
        if options.between and turn + 1 < options.turns and left > 0:
            peer.give_memory_back()
            say(run_between(options.between, left))
    return 0


if __name__ == "__main__":
    sys.exit(main())
