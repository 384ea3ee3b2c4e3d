"""Training of Hugging Face models by plans: groups of ranks that fit each document (PyTorch 2.7 and later).

    pt.attach(model)
    planner = pt.Planner(model.config, costs=pt.measure(model, seconds=60), memory="70GiB", weights="fsdp2")
    for step in pt.Steps(lengths, tokens_per_step=1_000_000, planner=planner, seed=0):
        for mb in step.micro_batches(dataset):
            with pt.accumulate(model, mb):
                loss = pt.loss_sum(model(**mb.inputs), mb.labels)
                (loss * step.scale).backward()
        optimizer.step(); optimizer.zero_grad()

docs/guide/from_pytorch.md leads through it.
"""

from .adapters import MegatronScheduler, StepTrainer, to_megatron
from .attention import attach, own_attention
from .check import Check, check
from .exchange import Exchange
from .measure import measure
from .planner import SPACES, Costs, Planner, costs
from .report import report
from .steps import MicroBatch, Step, Steps, accumulate, loss_sum

__all__ = ["SPACES", "Check", "Costs", "Exchange", "MegatronScheduler", "MicroBatch", "Planner", "Step",
           "StepTrainer", "Steps", "accumulate", "attach", "check", "costs", "loss_sum", "measure",
           "own_attention", "report", "to_megatron"]
