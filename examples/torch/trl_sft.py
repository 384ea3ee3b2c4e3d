"""Trains by TRL's SFTTrainer, with a plan for each step, on CPU:

    torchrun --nproc-per-node 2 examples/torch/trl_sft.py OUTPUT

transformers.Trainer takes the same two lines: StepTrainer in front of it, and steps= and items=.
"""

import random
import sys

import datasets
import paradyse.torch as pt
import torch
import transformers
import trl


class PlannedTrainer(pt.StepTrainer, trl.SFTTrainer):
    """SFTTrainer whose batches are planned steps."""


def main() -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    arguments = trl.SFTConfig(output_dir=sys.argv[1], max_steps=6, use_cpu=True, report_to=[], logging_steps=1,
                              learning_rate=3e-3, lr_scheduler_type="constant", save_strategy="no", bf16=False,
                              gradient_checkpointing=False, dataset_kwargs={"skip_prepare_dataset": True},
                              ddp_backend="gloo", disable_tqdm=True)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=64,
        vocab_size=128, max_position_embeddings=256, attn_implementation="sdpa"))
    pt.attach(model)
    draw = random.Random(2)
    items = [{"input_ids": [(first + i) % 128 for i in range(draw.randrange(2, 120))]}
             for first in (draw.randrange(128) for _ in range(80))]
    costs = pt.measure(model, seconds=2, longest=128)
    steps = pt.Steps([len(item["input_ids"]) for item in items], tokens_per_step=600, epochs=10,
                     planner=pt.Planner(model.config, costs=costs, memory="1GiB", weights="ddp"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=_bytes(), pad_token="<0>", eos_token="<1>")
    trainer = PlannedTrainer(model=model, args=arguments, train_dataset=datasets.Dataset.from_list(items),
                             processing_class=tokenizer, steps=steps, items=items)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    if trainer.is_world_process_zero():
        print("losses " + " ".join(f"{float(loss):.4f}" for loss in losses))


def _bytes():  # type: ignore[no-untyped-def]
    """A tokenizer of 128 words, which SFTTrainer wants; documents are ids already."""
    import tokenizers
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({f"<{i}>": i for i in range(128)}, unk_token="<0>"))


if __name__ == "__main__":
    main()
