"""Makes tests/golden/hf_llama_*: tiny LLaMA models, and what Hugging Face transformers says of them.

    python3 -m venv /tmp/hfvenv
    /tmp/hfvenv/bin/pip install torch==2.11.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    /tmp/hfvenv/bin/python scripts/make_hf_golden.py            # writes below tests/golden

The judge is LlamaForCausalLM with eager attention in float64, each document run by itself; the loss
is the cross entropy of its logits, summed and divided by all predicted tokens (its own `labels` loss
would first round the logits to float32).

Even in a float64 model, transformers computes three things in float32: the rotary angles (frequencies,
angles, cosines), the RMSNorm, and the softmax of the attention. Here the source of these functions is
taken as installed and only their float32 is made float64 (`in_float64` below); nothing else changes.
What the unpatched functions give is stored too, in expected.json, so that the difference is on record.
"""

import argparse
import inspect
import json
import platform
import re
import textwrap
from pathlib import Path

import numpy
import safetensors
import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

MODELS = {
    # name: (seed, document lengths, config). Each has at least one thing the others lack.
    "gqa": (  # 3 query heads a key/value head, head of its own
        1,
        [17, 1, 40, 3, 2],
        dict(hidden_size=24, num_attention_heads=6, num_key_value_heads=2, intermediate_size=40,
             vocab_size=37, num_hidden_layers=2, rms_norm_eps=1e-5, rope_theta=50000.0),
    ),
    "mqa_tied": (  # one key/value head, tied head, N x D = 24 != H = 20
        2,
        [2, 40, 17, 1, 3],
        dict(hidden_size=20, num_attention_heads=4, num_key_value_heads=1, intermediate_size=28,
             vocab_size=31, num_hidden_layers=2, rms_norm_eps=1e-6, rope_theta=500.0, head_dim=6,
             tie_word_embeddings=True),
    ),
    "mha_wide": (  # as many key/value heads as query heads, N x D = 20 > H = 16, three layers
        3,
        [3, 17, 2, 40, 1],
        dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, intermediate_size=24,
             vocab_size=29, num_hidden_layers=3, rms_norm_eps=1e-3, rope_theta=1000000.0, head_dim=10),
    ),
}


def in_float64(function, times):
    """`function` of modeling_llama, its source as installed but for float32, `times` times float64."""
    source = textwrap.dedent(inspect.getsource(function))
    source, found = re.subn(r"torch\.float(32)?\b", "torch.float64", source)
    source, also_found = re.subn(r"\.float\(\)", ".double()", source)
    if found + also_found != times:
        raise SystemExit(
            f"{function.__qualname__}: {found + also_found} uses of float32, not {times}: "
            f"transformers {transformers.__version__} differs from the one this was written for")
    scope = {}
    exec(compile(source, f"<{function.__qualname__} in float64>", "exec"), vars(modeling_llama), scope)
    return scope[function.__name__]


def patch_transformers():
    rotary = modeling_llama.LlamaRotaryEmbedding
    rotary.compute_default_rope_parameters = in_float64(rotary.compute_default_rope_parameters, 1)
    rotary.forward = in_float64(rotary.forward, 2)
    modeling_llama.LlamaRMSNorm.forward = in_float64(modeling_llama.LlamaRMSNorm.forward, 1)
    modeling_llama.eager_attention_forward = in_float64(modeling_llama.eager_attention_forward, 1)


def config_of(keys):
    keys = dict(keys)
    rope = {"rope_type": "default", "rope_theta": keys.pop("rope_theta")}
    return LlamaConfig(**keys, rope_parameters=rope, max_position_embeddings=64,
                       attn_implementation="eager")


def weights_of(config, seed):
    """Random weights, float32 values: large enough that attention and gates are far from uniform."""
    random = numpy.random.default_rng(seed)
    weights = {}
    for name, parameter in sorted(LlamaForCausalLM(config).named_parameters()):
        normal = random.standard_normal(tuple(parameter.shape))
        if parameter.dim() == 1:
            value = 1.0 + 0.3 * normal  # of a norm
        elif "embed_tokens" in name:
            value = (0.4 if config.tie_word_embeddings else 1.0) * normal
        else:
            value = 1.2 / parameter.shape[1] ** 0.5 * normal
        weights[name] = torch.from_numpy(value.astype(numpy.float32))
    return weights


def model_of(config, weights):
    model = LlamaForCausalLM(config).double()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert missing == (["lm_head.weight"] if config.tie_word_embeddings else []), missing
    assert not unexpected, unexpected
    model.tie_weights()
    return model


def answer_of(model, documents):
    """The loss, [(sum, count)] by document, and every gradient of the loss."""
    count = sum(len(tokens) - 1 for tokens in documents)
    sums = []
    for tokens in documents:
        ids = torch.tensor(tokens)
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        assert logits.dtype == torch.float64
        token_losses = torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="sum")
        (token_losses / count).backward()
        sums.append((token_losses.item(), len(tokens) - 1))
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return sum(total for total, _ in sums) / count, sums, gradients


def worst_error(actual, expected):
    """The measure of include/paradyse/gradient_error.h."""
    whole = sum(g.norm() ** 2 for g in expected.values()) ** 0.5
    return max(
        ((actual[name] - g).norm() / max(g.norm(), 1e-3 * whole)).item() for name, g in expected.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests" / "golden")
    out = parser.parse_args().out
    torch.set_num_threads(1)

    problems = {}
    for name, (seed, lengths, keys) in MODELS.items():
        config = config_of(keys)
        random = numpy.random.default_rng(1000 + seed)
        documents = [random.integers(0, config.vocab_size, size=n).tolist() for n in lengths]
        problems[name] = (seed, config, weights_of(config, seed), documents)

    unpatched = {
        name: answer_of(model_of(config, weights), documents)
        for name, (_, config, weights, documents) in problems.items()
    }
    patch_transformers()

    for name, (seed, config, weights, documents) in problems.items():
        model = model_of(config, weights)
        assert model.model.rotary_emb.inv_freq.dtype == torch.float64
        loss, sums, gradients = answer_of(model, documents)
        unpatched_loss, _, unpatched_gradients = unpatched[name]

        folder = out / f"hf_llama_{name}"
        folder.mkdir(parents=True, exist_ok=True)
        model.float().save_pretrained(folder)  # every weight is a float32 value
        (folder / "generation_config.json").unlink(missing_ok=True)
        save_file(gradients, folder / "expected_gradients.safetensors", metadata={"format": "pt"})
        (folder / "documents.jsonl").write_text(
            "".join(json.dumps({"tokens": tokens}) + "\n" for tokens in documents))
        expected = {
            "loss": loss,
            "documents": [{"sum": total, "count": count} for total, count in sums],
            "expected_unpatched_loss": unpatched_loss,
            "unpatched_worst_gradient_error": worst_error(unpatched_gradients, gradients),
            "seed": seed,
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "safetensors": safetensors.__version__,
                "numpy": numpy.__version__,
            },
        }
        (folder / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")
        print(f"{folder}: loss {loss!r}, unpatched {unpatched_loss - loss:+.1e}, "
              f"worst gradient {expected['unpatched_worst_gradient_error']:.1e}")


if __name__ == "__main__":
    main()
