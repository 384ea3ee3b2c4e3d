#!/usr/bin/env python3
"""Trains a Hugging Face LLaMA by paradyse.torch on two nodes that a slow link joins: planned groups and rivals.

The nodes are those of two_nodes.py: network namespaces of this machine with two ranks that share a core each (Linux, as
root).  One run plays the same steps by every way to divide them, in turn, each from the same weights: planned groups,
every document over all ranks, over a node, packed longest first onto single ranks, one document a rank in turn.
Where documents do not fit a way under the cap of tokens a rank, that way runs without the cap, and the file says so.

usage: benchmarks/torch_two_nodes.py OUT.json [--mbit 100] [--repeats 3] [--steps 6]
       with a Python that has PyTorch and transformers, and PYTHONPATH=build/release/python
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

import two_nodes

NODE = 2  # ranks


def lengths_of(steps, tokens, context):
    """CC-like as in two_nodes.py: lognormal, median 1,200, at most 96,000, scaled to the context; and for every two
    steps one of the whole context."""
    rng = random.Random(1)
    found = []
    for step in range(steps):
        room = tokens - (context if step % 2 == 0 else 0)
        mine = [context] if step % 2 == 0 else []
        while room > 0:
            drawn = rng.lognormvariate(7.09, 1.66)
            if drawn <= 96000:
                mine.append(min(room, max(8, round(drawn * context / 96000))))
                room -= mine[-1]
        found.append(mine)
    return found


def worker(options):
    import datetime

    import paradyse
    import paradyse.torch as pt
    import torch
    import torch.distributed as dist
    import transformers

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=8, num_key_value_heads=4, num_hidden_layers=4, intermediate_size=688,
        vocab_size=256, max_position_embeddings=options.context, attn_implementation="sdpa"))
    pt.attach(model)
    costs = pt.measure(model, seconds=options.measure, longest=options.context, node=NODE, recompute=False)
    free = pt.Planner(model.config, costs=costs, memory="1TiB", node=NODE, deadline=600)
    memory = int(free.static_bytes(8) + options.cap * costs.token_bytes) + 1
    capped = pt.Planner(model.config, costs=costs, memory=memory, node=NODE, reserve=0.0, deadline=600)
    batches = lengths_of(options.steps, options.tokens, options.context)
    plans = {}
    for space in pt.SPACES:
        try:
            plans[space] = capped, [capped.plan(lengths, space) for lengths in batches]
        except paradyse.NoPlan:
            plans[space] = free, [free.plan(lengths, space) for lengths in batches]
    plans["torch without cap"] = free, [free.plan(lengths) for lengths in batches]
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    ddp.train()
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
    rng = random.Random(2)
    items = [[[rng.randrange(256) for _ in range(n)] for n in lengths] for lengths in batches]
    runs = {space: [] for space in plans}

    def play(space, s):
        planner, made = plans[space]
        dist.barrier()
        begin = time.perf_counter()
        step = pt.Step(made[s], range(len(batches[s])), planner)
        for mb in step.micro_batches(items[s]):
            with pt.accumulate(ddp, mb):
                (pt.loss_sum(ddp(**mb.inputs), mb.labels) * step.scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        return time.perf_counter() - begin

    spaces = list(plans)
    for space in spaces:
        play(space, 0)  # warm: groups are made, buckets rebuilt
    for repeat in range(options.repeats):
        for space in spaces[repeat % len(spaces):] + spaces[:repeat % len(spaces)]:
            runs[space].append([play(space, s) for s in range(len(batches))])
            if dist.get_rank() == 0:
                print(f"{space:17} {sum(runs[space][-1]):8.2f} s, predicted "
                      f"{sum(plan.predicted_seconds for plan in plans[space][1]):8.2f} s", flush=True)
    if dist.get_rank() == 0:
        measured = {space: statistics.median(map(sum, runs[space])) for space in spaces}
        predicted = {space: sum(plan.predicted_seconds for plan in plans[space][1]) for space in spaces}
        pathlib.Path(options.out).write_text(json.dumps({
            "options": {key: value for key, value in vars(options).items() if key not in ("out", "worker")},
            "versions": {"paradyse": paradyse.__version__, "torch": torch.__version__,
                         "transformers": transformers.__version__},
            "parameters": costs.parameters, "costs": vars(costs),
            "under_cap": {space: plans[space][0] is capped for space in spaces},
            "groups": {space: [[[len(g.ranks) for g in m.groups if g.documents] for m in plan.micro_batches]
                               for plan in plans[space][1]] for space in spaces},
            "predicted_seconds": predicted, "measured_seconds": measured,
            "seconds": runs,  # of each step, of each repeat
            "torch_over": {space: {"predicted": predicted[space] / predicted["torch"],
                                   "measured": measured[space] / measured["torch"]} for space in spaces},
        }, indent=1) + "\n")
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--mbit", type=float, default=100, help="megabits a second of the link; 0: as fast as it is")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="of each repeat")
    parser.add_argument("--tokens", type=int, default=16384, help="of a step")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--cap", type=int, default=1100, help="tokens a rank")
    parser.add_argument("--measure", type=float, default=60, help="seconds of measuring costs")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    two_nodes.set_up(options.mbit)
    nodes = []
    try:
        for i, space in enumerate(two_nodes.SPACES):
            nodes.append(subprocess.Popen(
                ["ip", "netns", "exec", space, "taskset", "-c", str(i % os.cpu_count()), sys.executable, "-m",
                 "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", str(NODE), "--node-rank", str(i),
                 "--master-addr", "10.77.0.1", "--master-port", "29600", __file__, "--worker",
                 os.path.abspath(options.out), *sys.argv[2:]],
                env={**os.environ, "GLOO_SOCKET_IFNAME": f"pds{i}", "OMP_NUM_THREADS": "1"}))
        end = time.monotonic() + 4 * two_nodes.DEADLINE
        while any(node.poll() is None for node in nodes):
            if any(node.poll() for node in nodes) or time.monotonic() > end:
                sys.exit("a node failed, or the run is not done after "
                         f"{4 * two_nodes.DEADLINE} s: see what it said above")
            time.sleep(0.5)
        if any(node.returncode for node in nodes):
            sys.exit("a node failed: see what it said above")
    finally:
        for node in nodes:
            if node.poll() is None:
                node.terminate()
                try:
                    node.wait(20)
                except subprocess.TimeoutExpired:
                    node.kill()
        two_nodes.take_down()


if __name__ == "__main__":
    main()
