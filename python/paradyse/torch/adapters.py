"""Plans in other loops: Hugging Face's Trainer and TRL's trainers, and Megatron's packing scheduler."""

from collections.abc import Sequence
from typing import Any

import paradyse
import torch
from torch.utils.data import DataLoader

from .attention import OWN, is_attached, played_attention
from .planner import Planner
from .steps import Step, Steps
from .wrappers import inside


_OWN_LOSS = {("transformers", "Trainer"), ("trl", "SFTTrainer")}  # whose compute_loss is the model's own loss


class StepTrainer:
    """Before a Trainer: class Mine(pt.StepTrainer, trl.SFTTrainer); Mine(..., steps=steps, items=dataset).

    A batch is a whole step, so gradient_accumulation_steps is 1, and max_steps is needed.  items: what
    Step.micro_batches reads.  Outside training_step the model attends as it came, so that evaluate(), predict() and
    callbacks run as in that trainer.  To resume: steps.load_state_dict(), TrainingArguments(ignore_data_skip=True).
    """

    def __init__(self, *args: Any, steps: Steps, items: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        arguments = getattr(self, "args")
        if arguments.gradient_accumulation_steps != 1 or arguments.max_steps < 1:
            raise ValueError("StepTrainer: a batch is a whole step; set gradient_accumulation_steps=1 and "
                             "max_steps")
        ignored = [name for name, value in (
            ("label_smoothing_factor", getattr(arguments, "label_smoothing_factor", 0)),
            ("fp16", getattr(arguments, "fp16", False)),  # its loss scale is not Step's
            ("compute_loss_func", getattr(self, "compute_loss_func", None)),
            ("loss_type", getattr(arguments, "loss_type", "nll") not in (None, "nll")),
            ("model.config.output_router_logits",
             getattr(getattr(getattr(self, "model", None), "config", None), "output_router_logits", False)))
            if value]
        owner = next((one for one in type(self).__mro__ if "compute_loss" in vars(one)), None)
        if owner is not None and (owner.__module__.split(".")[0], owner.__name__) not in _OWN_LOSS:
            ignored.append(f"{owner.__name__}.compute_loss")
        if ignored:
            raise ValueError(f"StepTrainer: the loss of a step is the mean over its labels of the models' own "
                             f"cross-entropy, so {', '.join(ignored)} would do nothing; leave out what is set there")
        self._steps, self._items = steps, items
        model: Any = getattr(self, "model", None)
        if is_attached(model):
            inside(model).set_attn_implementation(OWN)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint and not getattr(self, "args").ignore_data_skip:
            raise ValueError("StepTrainer: steps.load_state_dict() says which documents are next, and the Trainer would "
                             "skip as many steps once more: set TrainingArguments(ignore_data_skip=True)")
        if resume_from_checkpoint and not self._steps.documents:
            raise ValueError("StepTrainer: steps would begin with the first document again: call "
                             "steps.load_state_dict() with what steps.state_dict() gave when the checkpoint was saved")
        return getattr(super(), "train")(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Not prepared by accelerate, which would deal steps out to the ranks."""
        return DataLoader(self._steps, batch_size=None, collate_fn=lambda step: {"step": step})

    def training_step(self, model: Any, inputs: dict[str, Step],
                      num_items_in_batch: Any = None) -> torch.Tensor:
        """The mean loss of the step's labels, over all ranks."""
        with played_attention(model):
            return torch.tensor(inputs["step"].play(model.train(), self._items), device=inputs["step"].device)


def to_megatron(plan: paradyse.Plan, ids: Sequence[int] | None = None) -> tuple[Any, Any]:
    """(groups, sample_id_groups) as Megatron's get_groups_and_subsamples() returns them.

    groups[micro-batch][rank]: tokens of each sample that the rank works on; sample_id_groups the same with
    ids.  A sample stands with every rank of its group.  ids: of the plan's documents; else their places.
    """
    names = range(len(plan.lengths)) if ids is None else ids
    if len(names) != len(plan.lengths):
        raise ValueError(f"{len(names)} ids for the {len(plan.lengths)} documents of the plan")
    of_ranks = [[m.group_of(rank).documents for rank in range(plan.ranks)] for m in plan.micro_batches]
    return ([[[int(plan.lengths[d]) for d in of_rank] for of_rank in ranks] for ranks in of_ranks],
            [[[names[d] for d in of_rank] for of_rank in ranks] for ranks in of_ranks])


class MegatronScheduler:
    """In the place of Megatron's BalancedCPScheduler, whose groups are powers of two."""

    def __init__(self, planner: Planner) -> None:
        self.planner, planner.sizes = planner, [p for p in planner.sizes if p & (p - 1) == 0]

    def get_groups_and_subsamples(self, sample_id_seqlens: Sequence[tuple[int, int]],
                                  config: Any = None) -> Any:
        plan = self.planner.plan([tokens for _, tokens in sample_id_seqlens])
        return to_megatron(plan, [sample for sample, _ in sample_id_seqlens])
