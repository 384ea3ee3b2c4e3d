"""Makes tests/golden/peft_*: adapters of the tiny models of tests/golden/hf_*, and what PEFT says of them.

    python3 -m venv /tmp/hfvenv
    /tmp/hfvenv/bin/pip install torch==2.11.0 transformers==5.23.0 peft==0.21.2 safetensors==0.8.0 numpy==2.4.6
    /tmp/hfvenv/bin/python scripts/make_peft_golden.py          # writes below tests/golden

The judge is PEFT's LoRA around the architecture's class, in float64 and without dropout, as
make_hf_golden.py has it, whose head says what is changed in transformers. Factors are random, B is not
zero. Gradients are those of all that PEFT trains, by the names of its files.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy
import peft
import torch
import transformers
from golden_json import json_text
from make_hf_golden import ARCHITECTURES, MASKED, answer_of, architecture_of, patch_transformers
from safetensors.torch import save_file

ADAPTERS = {
    # name: (base model, seed, settings). Each has at least one thing the others lack.
    "llama": ("llama_gqa", 1, dict(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj", "o_proj", "up_proj"])),
    "qwen2": ("qwen2", 2, dict(r=2, lora_alpha=7, target_modules="all-linear", use_rslora=True, bias="lora_only")),
    "gpt2": ("gpt2", 3, dict(r=4, lora_alpha=4, target_modules=["c_attn", "c_proj"], bias="all", fan_in_fan_out=True)),
    "neox": ("neox", 4, dict(r=2, lora_alpha=3, target_modules=["query_key_value", "dense_4h_to_h"])),
    "phi3": ("phi3", 5, dict(r=3, lora_alpha=6, target_modules="all-linear")),
    "bert": ("bert", 6, dict(r=2, lora_alpha=2, target_modules=["query", "dense"], bias="all")),
}


def documents_in(folder):
    lines = [json.loads(line) for line in (folder / "documents.jsonl").read_text().splitlines()]
    return [(line["tokens"], line.get("labels")) for line in lines]


def adapted(golden, base, seed, settings):
    """The base model with random adapters, whose numbers are float32 values, in float64."""
    masked = architecture_of(base) in MASKED
    config = peft.LoraConfig(**settings, task_type=None if masked else "CAUSAL_LM")
    kind = ARCHITECTURES[architecture_of(base)][1]
    model = kind.from_pretrained(golden / f"hf_{base}", attn_implementation="eager").double().eval()
    model = peft.get_peft_model(model, config, autocast_adapter_dtype=False).double().eval()
    random = numpy.random.default_rng(seed)
    for name, parameter in sorted(model.named_parameters()):
        if "lora_" in name:
            numbers = 0.4 * random.standard_normal(tuple(parameter.shape)).astype(numpy.float32)
            parameter.data.copy_(torch.from_numpy(numbers))
    return model


def stored_name(name):
    return name.replace(".default.", ".")


def judged(model, documents):
    """The loss, every gradient by the names of files, and the logits of the longest document's last token."""
    loss, _, gradients = answer_of(model, documents)
    longest = max(documents, key=lambda document: len(document[0]))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(longest[0])[None]).logits[0, -1]
    return loss, {stored_name(one): gradient for one, gradient in gradients.items()}, logits


def make(out, name, base, seed, settings):
    """Writes out/peft_NAME, adapters of out/hf_BASE."""
    model = adapted(out, base, seed, settings)
    loss, gradients, logits = judged(model, documents_in(out / f"hf_{base}"))
    folder = out / f"peft_{name}"
    shutil.rmtree(folder, ignore_errors=True)
    model.peft_config["default"].base_model_name_or_path = f"../hf_{base}"
    model.float().save_pretrained(folder)  # every number is a float32 value
    (folder / "README.md").unlink()
    save_file(gradients, folder / "expected_gradients.safetensors", metadata={"format": "pt"})
    expected = {
        "loss": loss,
        "last_logits": logits.tolist(),
        "seed": seed,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "peft": peft.__version__, "numpy": numpy.__version__},
    }
    (folder / "expected.json").write_text(json_text(expected))
    return f"{folder}: loss {loss!r}, {len(gradients)} gradients"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests" / "golden")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    patch_transformers()
    for name, (base, seed, settings) in ADAPTERS.items():
        print(make(arguments.out, name, base, seed, settings))


if __name__ == "__main__":
    main()
