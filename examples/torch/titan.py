"""Trains a model of torchtitan by its own Trainer, with a plan for each step, on CPU:

    torchrun --nproc-per-node 2 examples/torch/titan.py OUTPUT

On GPUs, leave Cpu and force_sum out (torchtitan takes a GPU for granted, and Gloo can sum alone), join by NCCL, put
`twin` on the GPU before pt.attach and give pt.Steps that device.  It was not tried there.
"""

import os
import random
import sys
from types import SimpleNamespace
from typing import Any

import paradyse.torch as pt
import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import distribute_tensor
from torchtitan.tools import utils


class Cpu:
    """What torchtitan's Trainer asks of torch.cuda."""

    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    get_device_name = staticmethod(lambda device: "CPU")
    get_device_properties = staticmethod(lambda device: SimpleNamespace(
        total_memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    memory_stats = staticmethod(lambda device: {})
    set_device = reset_peak_memory_stats = empty_cache = synchronize = staticmethod(lambda *device: None)


utils.device_type, utils.device_module = "cpu", Cpu  # before the other modules take them

from paradyse.torch import titan
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry, parallelize_llama
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

VOCABULARY, WIDTH, LAYERS, LONGEST, MICRO_BATCHES = 2048, 256, 2, 128, 8  # the first two of torchtitan's debugmodel


class Trained(Trainer):
    """Begins with the same weights on any number of ranks, which torchtitan does on GPUs alone."""

    def __init__(self, config: Trainer.Config) -> None:
        super().__init__(config)
        torch.manual_seed(1)
        for parameter in self.model_parts[0].parameters():
            if parameter.ndim > 1:
                whole = torch.randn(parameter.shape) * 0.05
                with torch.no_grad():
                    parameter.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements))


def force_sum(model: Any, **how: Any) -> Any:
    """torchtitan's parallelize_fn, whose gradients are then summed as Gloo can."""
    for module in parallelize_llama(model, **how).modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def planned(items: Any) -> pt.Steps:
    """By the measured costs of a Hugging Face model of the same sizes, without the recomputation of plans."""
    twin = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=WIDTH, num_attention_heads=16, num_hidden_layers=LAYERS, intermediate_size=768,
        vocab_size=VOCABULARY, attn_implementation="sdpa"))
    pt.attach(twin)
    costs = pt.measure(twin, seconds=2, longest=LONGEST, recompute=False)
    planner = pt.Planner(twin.config, costs=costs, memory="1GiB", weights="fsdp2", recompute=False)
    return pt.Steps([len(item["input_ids"]) for item in items], tokens_per_step=600, epochs=10, planner=planner)


def config(output: str, items: Any, steps: pt.Steps, **training: Any) -> Trainer.Config:
    spec = model_registry("debugmodel", attn_backend="varlen")
    spec.model.layers, spec.parallelize_fn = spec.model.layers[:LAYERS], force_sum
    titan.attach(spec.model)
    return Trainer.Config(
        model_spec=spec, dump_folder=output, loss=CrossEntropyLoss.Config(),
        tokenizer=SimpleNamespace(build=lambda **named: None),  # documents are ids already
        dataloader=titan.PlannedLoader.Config(steps=steps, items=items, micro_batches=MICRO_BATCHES),
        optimizer=default_adamw(lr=3e-3), lr_scheduler=LRSchedulersContainer.Config(warmup_steps=0),
        training=TrainingConfig(**{
            "local_batch_size": 1, "global_batch_size": MICRO_BATCHES * dist.get_world_size(), "seq_len": LONGEST,
            "steps": 6, "mixed_precision_param": "float32", "disable_cuda_graphs": True, **training}),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"), activation_checkpoint=None,
        metrics=MetricsProcessor.Config(log_freq=1, disable_color_printing=True))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")  # torchtitan takes a group that is there
    init_logger()
    draw = random.Random(2)
    items = [{"input_ids": [(first + i) % 128 for i in range(draw.randrange(2, LONGEST))]}
             for first in (draw.randrange(128) for _ in range(80))]
    trainer = Trained(config(sys.argv[1], items, planned(items)))
    trainer.train()
    trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
