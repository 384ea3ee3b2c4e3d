"""Trains a small Hugging Face LLaMA by plans, on CPU:

    torchrun --nproc-per-node 4 examples/torch/llama.py --weights ddp     # or fsdp2

Checks the gradients first, measures the model, plans each step for it, and reports what steps took.
"""

import argparse
import datetime
import random

import paradyse.torch as pt
import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def documents(count: int) -> list[list[int]]:
    """Of very different lengths: counting in steps that the model can learn."""
    draw = random.Random(1)
    found = []
    for _ in range(count):
        n = min(512, 2 + int(draw.lognormvariate(4, 1.2)))
        first, by = draw.randrange(256), draw.randrange(1, 4)
        found.append([(first + by * i) % 256 for i in range(n)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10, help="of measuring")
    options = parser.parse_args()
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    torch.set_num_threads(1)

    torch.manual_seed(1)  # the same weights on all ranks
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=128,
        vocab_size=256, max_position_embeddings=512, attn_implementation="sdpa"))
    pt.attach(model)
    data = documents(200)
    pt.check(model, data[:8])
    costs = pt.measure(model, seconds=options.seconds, longest=512)
    planner = pt.Planner(model.config, costs=costs, memory="1GiB", weights=options.weights)
    if options.weights == "ddp":
        trained = torch.nn.parallel.DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        trained = fully_shard(model, mesh=mesh)
    trained.train()
    optimizer = torch.optim.AdamW(trained.parameters(), lr=3e-3)

    played = []
    for step in pt.Steps([len(d) for d in data], tokens_per_step=2000, planner=planner, epochs=10):
        total = 0.0
        for mb in step.micro_batches(data):
            with pt.accumulate(trained, mb):
                loss = pt.loss_sum(trained(**mb.inputs), mb.labels)
                (loss * step.scale).backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        played.append(step)
        mean = step.mean(total)  # or mean = step.play(trained, data), which is these lines
        if dist.get_rank() == 0:
            sizes = [len(group.ranks) for mb in step.plan.micro_batches for group in mb.groups if group.documents]
            print(f"step {len(played)}: loss {mean:.4f}, {len(step.documents)} documents in groups of {sizes} ranks")
        if len(played) == options.steps:
            break
    pt.report(played)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
