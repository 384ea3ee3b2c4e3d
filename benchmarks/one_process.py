#!/usr/bin/env python3
"""Tokens/s of training steps of `paradyse bench step` with a rank a core beside the same model in one process of
PyTorch with as many threads, in turn in one run.

    benchmarks/one_process.py --python VENV/bin/python [--repeats 5] [--json FILE]

VENV needs torch 2.11; torch.compile takes a C++ compiler.  The model is that of configs/models/bench.toml, a
document a core; a step is forward, backward, clipping and AdamW (fused).  One process has all weights, so ours keeps
what it gathers, too.  In bfloat16 PyTorch runs under autocast, with float32 weights, and again with bfloat16 weights
and moments; ours has float32 masters and moments.  PyTorch's processes stay, warm, while they take turns with ours,
which starts anew: these machines change their speed from one minute to the next.  Of the steps of a turn the median
counts, and of PyTorch's ways the fastest of each repeat.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import tomllib

MODEL = "configs/models/bench.toml"


def peer(args):
    """One way of PyTorch: for each number on standard input so many steps, and a line of their seconds."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    H, N, V = args.hidden, args.heads, args.vocab

    def turned(x, cos, sin):
        left, right = x.chunk(2, -1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.RMSNorm(H, eps=1e-5) for _ in range(2))
            self.qkv, self.o = nn.Linear(H, 3 * H, bias=False), nn.Linear(H, H, bias=False)
            self.gate_up, self.down = nn.Linear(H, 2 * args.ffn, bias=False), nn.Linear(args.ffn, H, bias=False)

        def forward(self, x, cos, sin):
            q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, N, H // N)).permute(2, 0, 3, 1, 4)
            o = F.scaled_dot_product_attention(turned(q, cos, sin), turned(k, cos, sin), v, is_causal=True)
            x = x + self.o(o.transpose(1, 2).flatten(2))
            gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
            return x + self.down(F.silu(gate) * up)

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(V, H), nn.Linear(H, V, bias=False)
            self.layers, self.norm = nn.ModuleList(Layer() for _ in range(args.layers)), nn.RMSNorm(H, eps=1e-5)

        def forward(self, tokens, cos, sin):
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x, cos, sin)
            logits = self.head(self.norm(x))[:, :-1]
            return F.cross_entropy(logits.reshape(-1, V).float(), tokens[:, 1:].reshape(-1))

    narrow = args.dtype == "bfloat16"
    pure = narrow and args.way.endswith("pure")
    model = Llama()
    model = model.to(torch.bfloat16) if pure else model
    run = torch.compile(model, dynamic=False) if args.way.startswith("compile") else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    length = int(args.lengths)
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, H // N, 2) / (H // N))
    cos, sin = angles.cos(), angles.sin()
    if pure:
        cos, sin = cos.bfloat16(), sin.bfloat16()
    tokens = torch.randint(0, V, (args.threads, length))

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow and not pure):
            loss = run(tokens, cos, sin)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(2 if length <= 4096 else 1):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        step()  # after standing idle; ours makes one that does not count, too
        seconds = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begin)
        print(json.dumps(seconds), flush=True)


def steps_of(args, length):
    return max(1, min(args.steps, 3 * 4096 // length))


class Theirs:
    """A process of PyTorch that has made its first steps."""

    def __init__(self, args, way, dtype, length):
        self.process = subprocess.Popen(
            [args.python, __file__, "--peer", "--way", way, "--dtype", dtype, "--lengths", str(length),
             "--threads", str(args.cores)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(args.cores)})
        self.line("ready")

    def line(self, begin):
        for found in self.process.stdout:
            if found.startswith(begin):
                return found
        raise SystemExit(f"one_process.py: {' '.join(self.process.args)} ended: {self.process.wait()}")

    def seconds(self, steps):
        with contextlib.suppress(BrokenPipeError):  # then there is no line
            print(steps, file=self.process.stdin, flush=True)
        return statistics.median(json.loads(self.line("[")))

    def end(self):
        self.process.kill()
        self.process.wait()


def ours(args, dtype, length):
    command = [args.paradyse, "bench", "step", "--model", MODEL, "--ranks", str(args.cores), "--attention", "DataZ",
               "--no-reshard-after-forward", "--max-grad-norm", "1", "--lengths", str(length), "--dtype", dtype,
               "--repeats", str(steps_of(args, length)), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["rows"][0]["step_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="of an environment with torch")
    parser.add_argument("--paradyse", default="build/release/paradyse")
    parser.add_argument("--lengths", default="256,1024,4096,16384")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=20, help="of a turn, whose median counts; fewer of long documents")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="float32", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        with open(MODEL, "rb") as file:
            shape = tomllib.load(file)
        args.hidden, args.heads, args.layers = (shape[k] for k in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
        args.ffn, args.vocab = shape["intermediate_size"], shape["vocab_size"]
        peer(args)
        return
    rows = []
    print("tokens/s, median; ours / the fastest of theirs, median (least - most)", flush=True)
    for dtype in args.dtypes.split(","):
        kinds = ["", " pure"] if dtype == "bfloat16" else [""]
        for length in map(int, args.lengths.split(",")):
            with contextlib.ExitStack() as ended:
                turns = {"paradyse": lambda: ours(args, dtype, length)}
                for way in (how + kind for how in ("eager", "compile") for kind in kinds):
                    process = Theirs(args, way, dtype, length)
                    ended.callback(process.end)
                    turns[way] = lambda process=process: process.seconds(steps_of(args, length))
                seconds = {way: [] for way in turns}
                for repeat in range(args.repeats):
                    for way in list(turns)[::-1 if repeat % 2 else 1]:
                        seconds[way].append(turns[way]())
            rows.append(row_of(args, dtype, length, seconds))
            if args.json:  # what is there so far
                with open(args.json, "w", encoding="utf-8") as out:
                    json.dump({"model": MODEL, "cores": args.cores, "steps": args.steps, "rows": rows}, out, indent=1)


def row_of(args, dtype, length, seconds):
    best = [min(s[i] for way, s in seconds.items() if way != "paradyse") for i in range(args.repeats)]
    ratios = [other / own for own, other in zip(seconds["paradyse"], best)]
    print(f"{dtype:9} {length:6}  " +
          "  ".join(f"{way} {args.cores * length / statistics.median(s):.0f}" for way, s in seconds.items()) +
          f"  {statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})", flush=True)
    return {"dtype": dtype, "length": length, "seconds": seconds, "ratio": statistics.median(ratios),
            "least": min(ratios), "most": max(ratios)}


if __name__ == "__main__":
    main()
