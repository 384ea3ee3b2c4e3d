# mypy: disable-error-code="import-untyped, import-not-found, misc"
"""torchtitan: its models attend by plans, and its trainer's data loader yields their micro-batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.protocols.module import Module

from .attention import attend
from .exchange import Exchange
from .items import IGNORED
from .steps import Steps


class PlannedAttention(Module):
    """In the place of a model's inner attention: the exchange travels as `attention_masks`."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, attention_masks: Exchange,
                scale: float | None = None, is_causal: bool = True, **kwargs: Any) -> torch.Tensor:
        """[1, tokens, heads, d] each, as the result."""
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return attend(self, q, k, v, None, scale, paradyse=attention_masks, is_causal=is_causal)[0]


def attach(config: Any) -> None:
    """Lets the model that a Decoder.Config describes play plans.  Raises ValueError where a layer cannot."""
    for number, layer in enumerate(config.layers):
        attention = layer.attention
        if getattr(attention, "sliding_window", None) or not hasattr(attention, "inner_attention"):
            raise ValueError(f"{type(config).__qualname__} is not supported: layer {number} has a sliding "
                             "window, or no inner_attention")
        attention.inner_attention = PlannedAttention.Config()


class PlannedLoader(BaseDataLoader):
    """Trainer.Config(dataloader=PlannedLoader.Config(steps=..., items=..., micro_batches=...)).

    items: what Step.micro_batches reads.  micro_batches: the trainer's gradient accumulation steps; steps of
    fewer get idle ones, steps of more raise ValueError (give more, or fewer tokens a step).  Planner counts the
    ranks of torch.distributed, so join before it is made; the trainer then takes that group.  Raises ValueError
    where the trainer has other data-parallel ranks, or a seq_len below the longest document.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        steps: Steps | None = None
        items: Any = None
        micro_batches: int = 1

        def to_dict(self) -> dict[str, Any]:
            """For the trainer's logs: without the documents."""
            return {"documents": len(self.steps.lengths) if self.steps else 0,
                    "micro_batches": self.micro_batches}

    def __init__(self, config: Config, *, dp_world_size: int | None = None, seq_len: int | None = None,
                 **kwargs: Any) -> None:
        self.config = config
        if config.steps is None:
            return
        ranks, longest = config.steps.planner.ranks, max(config.steps.lengths)
        if dp_world_size not in (None, ranks):
            raise ValueError(
                f"plans are for {ranks} ranks, but the trainer has {dp_world_size} data-parallel ranks: plans "
                "take the place of tensor, context and pipeline parallelism; set their degrees to 1")
        if seq_len is not None and seq_len < longest:
            raise ValueError(f"training.seq_len is {seq_len}, but a document has {longest} tokens, for which "
                             "the model would have no positions: raise it, or cut the documents")

    def __iter__(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
        for step in self.config.steps or ():
            played, most = step.micro_batches(self.config.items), self.config.micro_batches
            if len(played) > most:
                raise ValueError(
                    f"a step of {len(played)} micro-batches, but the trainer accumulates {most}: raise "
                    "micro_batches with its gradient accumulation steps, or plan fewer tokens a step")
            for mb in played:
                yield {"input": mb.inputs["input_ids"], "positions": mb.inputs["position_ids"],
                       "attention_masks": mb.inputs["paradyse"]}, mb.labels
            dummy = torch.zeros(1, 1, dtype=torch.long, device=step.device)
            for _ in range(most - len(played)):
                yield {"input": dummy, "positions": dummy, "attention_masks": Exchange([])}, dummy + IGNORED

    def state_dict(self) -> dict[str, Any]:
        return dict(self.config.steps.state_dict()) if self.config.steps else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.config.steps and state_dict:
            self.config.steps.load_state_dict(state_dict)
