#!/usr/bin/env python3
"""Seconds of forward and backward of an ST-DiT under `paradyse bench step` beside the same model in
plain PyTorch modules, in turn in one run: DistributedDataParallel over Gloo, and one process alone.

    benchmarks/stdit_peers.py --python VENV/bin/python [--repeats 5] [--json FILE]

VENV needs torch 2.11.  DDP gives each rank whole clips, so --batch is a multiple of --ranks; one process
runs all of them.  Of PyTorch attention is scaled_dot_product_attention.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import tomllib

from layouts import measured

PLACES, TIME = 48, 256


def peer(args):
    """On one rank, under torch.distributed.run or alone: the seconds of each step, as a JSON line."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if ranks > 1:
        dist.init_process_group("gloo")
    H, N = args.width, args.heads
    patch = 4 * args.patch * args.patch

    class Half(nn.Module):
        """Attention or MLP, between an adaptive norm and a gate."""
        def __init__(self, attends, temporal):
            super().__init__()
            self.attends, self.temporal = attends, temporal
            self.first, self.last = nn.Linear(H, 3 * H if attends else 4 * H), nn.Linear(H if attends else 4 * H, H)
            self.table = nn.Parameter(torch.randn(3, H) / H ** 0.5)

        def forward(self, x, condition):
            shift, scale, gate = (condition + self.table).unbind(1)
            shift, scale, gate = (t[:, None, None] for t in (shift, scale, gate))
            y = F.layer_norm(x, [H], eps=1e-6) * (1 + scale) + shift
            if self.attends:
                y = y.transpose(1, 2) if self.temporal else y
                q, k, v = self.first(y).unflatten(-1, (3, N, H // N)).unbind(-3)
                q, k, v = (t.transpose(-2, -3).flatten(0, 1) for t in (q, k, v))
                o = F.scaled_dot_product_attention(q, k, v).transpose(-2, -3).flatten(-2)
                y = self.last(o.view(y.shape))
                y = y.transpose(1, 2) if self.temporal else y
            else:
                y = self.last(F.gelu(self.first(y), approximate="tanh"))
            return x + gate * y

    class Stdit(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(patch + PLACES, H)
            self.time = nn.Sequential(nn.Linear(TIME, H), nn.SiLU(), nn.Linear(H, H), nn.SiLU(), nn.Linear(H, 8 * H))
            self.halves = nn.ModuleList(Half(attends, temporal) for _ in range(args.depth)
                                        for temporal in (False, True) for attends in (True, False))
            self.table, self.head = nn.Parameter(torch.randn(2, H) / H ** 0.5), nn.Linear(H, patch)

        def forward(self, x, t):
            x, c = self.embed(x), self.time(t).unflatten(-1, (8, H))
            for half in self.halves:
                x = half(x, c[:, :3] if half.attends else c[:, 3:6])
            shift, scale = (c[:, 6:] + self.table).unbind(1)
            return self.head(F.layer_norm(x, [H], eps=1e-6) * (1 + scale[:, None, None]) + shift[:, None, None])

    model = Stdit()
    model = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    clips = args.batch // ranks
    x = torch.randn(clips, args.frames, args.tokens, patch + PLACES)
    velocity = torch.randn(clips, args.frames, args.tokens, patch)
    t = torch.randn(clips, TIME)
    seconds = []
    for step in range(args.steps + 1):
        model.zero_grad(set_to_none=True)
        if ranks > 1:
            dist.barrier()
        begin = time.perf_counter()
        F.mse_loss(model(x, t), velocity).backward()
        if ranks > 1:
            dist.barrier()
        seconds.append(time.perf_counter() - begin)
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(seconds[1:]), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


def sizes(args):
    return ["--frames", str(args.frames), "--tokens", str(args.tokens), "--batch", str(args.batch)]


def theirs(args, ranks, threads):
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [args.python, *launcher, __file__, "--peer", "--model", args.model, *sizes(args),
               "--threads", str(threads), "--steps", str(args.steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    return min(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("["))))


def ours(args, ranks):
    row, = measured(args.paradyse, args.model, sizes(args), ranks, args.steps, ["planned"])
    return min(step - optimizer for step, optimizer in zip(row["seconds"], row["optimizer_seconds"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="of an environment with torch")
    parser.add_argument("--paradyse", default="build/release/paradyse")
    parser.add_argument("--model", default="configs/models/stdit-s-narrow.toml")
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3, help="of a run, of which the best counts")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json")
    args = parser.parse_args()
    with open(args.model, "rb") as file:
        shape = tomllib.load(file)
    args.depth, args.heads, args.patch = shape["depth"], shape["num_heads"], shape.get("patch_size", 2)
    args.width = shape["hidden_size"]
    if args.peer:
        peer(args)
        return
    cores = os.cpu_count()
    ways = {"paradyse": lambda: ours(args, args.ranks), "ddp": lambda: theirs(args, args.ranks, 1),
            "paradyse, one rank": lambda: ours(args, 1), "one process, one thread": lambda: theirs(args, 1, 1),
            f"one process, {cores} threads": lambda: theirs(args, 1, cores)}
    seconds = {name: [] for name in ways}
    for _ in range(args.repeats):
        for name, way in ways.items():
            seconds[name].append(way())
        report(args, seconds)  # what is there so far


def report(args, seconds):
    tokens = args.batch * args.frames * args.tokens
    rows = []
    print(f"{len(seconds['paradyse'])} of {args.repeats} repeats, best step of each: median (least - most)")
    for name, of in seconds.items():
        ratios = [other / own for own, other in zip(seconds["paradyse"], of)]
        rows.append({"way": name, "seconds": of, "tokens_per_s": tokens / statistics.median(of),
                     "of_paradyse": statistics.median(ratios), "least": min(ratios), "most": max(ratios)})
        print(f"{name:26} {statistics.median(of):.3f} s ({min(of):.3f} - {max(of):.3f})  {rows[-1]['tokens_per_s']:7.0f} "
              f"tokens/s  {rows[-1]['of_paradyse']:.2f} of paradyse ({rows[-1]['least']:.2f} - {rows[-1]['most']:.2f})", flush=True)
    if args.json:
        settings = ("model", "width", "frames", "tokens", "batch", "ranks")
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({key: getattr(args, key) for key in settings} | {"cores": os.cpu_count(), "rows": rows}, out, indent=1)


if __name__ == "__main__":
    main()
