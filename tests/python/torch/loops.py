"""Loops of others on planned steps, run by torchrun: loops.py trainer|accelerate OUTPUT.  Rank 0 prints JSON."""

import json
import random
import sys

import paradyse.torch as pt
import torch
import transformers

DRAW = random.Random(2)
ITEMS = [{"input_ids": [(first + i) % 128 for i in range(DRAW.randrange(2, 120))]}
         for first in (DRAW.randrange(128) for _ in range(40))]
LENGTHS = [len(item["input_ids"]) for item in ITEMS]


class PlannedTrainer(pt.StepTrainer, transformers.Trainer):
    """transformers.Trainer whose batches are planned steps."""


def made():
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=64,
        vocab_size=128, max_position_embeddings=256, attn_implementation="sdpa"))
    pt.attach(model)
    return model


def steps_of(model):
    costs = pt.Costs(token=1e-3, document=1e-3, token_bytes=1000, parameters=1000)
    return pt.Steps(LENGTHS, tokens_per_step=600, epochs=10, planner=pt.Planner(
        model.config, costs=costs, memory="1GiB", weights="ddp", deadline=60))


def padded(items):
    """A batch of several rows, with a mask, as others evaluate."""
    longest = max(len(item["input_ids"]) for item in items)
    row = lambda ids, value: ids + [value] * (longest - len(ids))
    return {"input_ids": torch.tensor([row(item["input_ids"], 0) for item in items]),
            "attention_mask": torch.tensor([row([1] * len(item["input_ids"]), 0) for item in items]),
            "labels": torch.tensor([row(item["input_ids"], -100) for item in items])}


class Generates(transformers.TrainerCallback):
    """What runs the model between two steps."""

    def __init__(self):
        self.ids = []

    def on_step_end(self, args, state, control, model=None, **more):
        kept = model.training
        ids = model.eval().generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False, pad_token_id=0)
        self.ids.append(ids[0].tolist())
        model.train(kept)


def trainer(folder):
    arguments = transformers.TrainingArguments(
        output_dir=folder, max_steps=4, use_cpu=True, report_to=[], logging_steps=1, learning_rate=3e-3,
        lr_scheduler_type="constant", save_strategy="no", per_device_eval_batch_size=2, eval_strategy="steps",
        eval_steps=2, ddp_backend="gloo", disable_tqdm=True, remove_unused_columns=False)
    model, generates = made(), Generates()
    run = PlannedTrainer(model=model, args=arguments, train_dataset=ITEMS, eval_dataset=ITEMS[:8],
                         data_collator=padded, callbacks=[generates], steps=steps_of(model), items=ITEMS)
    run.train()
    predicted = run.predict(ITEMS[:4])
    model.set_attn_implementation("sdpa")  # by hand, the batches of one rank's evaluation
    with torch.no_grad():
        alone = [float(model.eval()(**padded(ITEMS[i:i + 2])).loss) for i in range(0, 8, 2)]
    log = run.state.log_history
    return {"losses": [entry["loss"] for entry in log if "loss" in entry],
            "evaluated": [entry["eval_loss"] for entry in log if "eval_loss" in entry],
            "predicted": predicted.metrics["test_loss"], "shape": list(predicted.predictions.shape),
            "alone": sum(alone) / len(alone), "generated": generates.ids, "rank": run.args.process_index}


def accelerated(folder):
    """The guide's table: a loader of steps that is not prepared; evaluation in between."""
    import accelerate
    run = accelerate.Accelerator(cpu=True)
    model = made()
    steps = steps_of(model)
    trained, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    losses, evaluated = [], []
    for _, step in zip(range(4), torch.utils.data.DataLoader(steps, batch_size=None, collate_fn=lambda step: step)):
        losses.append(step.play(trained.train(), ITEMS))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad(), pt.own_attention(trained):
            evaluated.append(float(trained.eval()(**padded(ITEMS[:4])).loss))
    return {"losses": losses, "evaluated": evaluated, "rank": run.process_index}


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {"trainer": trainer, "accelerate": accelerated}[sys.argv[1]](sys.argv[2])
    if found["rank"] == 0:
        print(json.dumps(found))
    torch.distributed.destroy_process_group()
