"""Makes tests/golden/hf_*: tiny models of every architecture, and what Hugging Face transformers says of them.

    python3 -m venv /tmp/hfvenv
    /tmp/hfvenv/bin/pip install torch==2.11.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    /tmp/hfvenv/bin/python scripts/make_hf_golden.py            # writes below tests/golden

The judge is the architecture's class with eager attention in float64, each document run by itself,
without dropout but for the models in DROPOUT, whose zeros are this program's (`Dropouts` below), since
those of torch depend on how a batch is computed; the loss is the cross entropy of its logits, summed and divided by all predicted tokens
(its own `labels` loss would first round the logits to float32; that it is the same one but for that is
asserted). BERT's labels are those of about a third of the tokens, as are those of `llama_labels`, which
are unshifted and no next tokens; one document of its has none that counts, one brings none.

Even in a float64 model, transformers computes three things in float32: the rotary angles (frequencies,
angles, cosines), the RMSNorm, and, in most architectures, the softmax of the attention. Here the source
of these functions is taken as installed and only their float32 is made float64 (`in_float64` below);
nothing else changes.
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
from golden_json import json_text
from safetensors.torch import save_file
from transformers import (
    BertConfig, BertForMaskedLM, BertForPreTraining, DistilBertConfig, DistilBertForMaskedLM, Gemma2Config,
    Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, ModernBertConfig,
    ModernBertForMaskedLM, Olmo2Config, Olmo2ForCausalLM, OPTConfig, OPTForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
    Qwen3ForCausalLM, RobertaConfig, RobertaForMaskedLM, modeling_rope_utils)
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.modernbert import modeling_modernbert
from transformers.models.olmo2 import modeling_olmo2
from transformers.models.opt import modeling_opt
from transformers.models.phi3 import modeling_phi3
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

ARCHITECTURES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "gpt2": (GPT2Config, GPT2LMHeadModel),
    "opt": (OPTConfig, OPTForCausalLM),
    "bert": (BertConfig, BertForMaskedLM),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "neox": (GPTNeoXConfig, GPTNeoXForCausalLM),
    "roberta": (RobertaConfig, RobertaForMaskedLM),
    "distilbert": (DistilBertConfig, DistilBertForMaskedLM),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "modernbert": (ModernBertConfig, ModernBertForMaskedLM),
}
# Names of tensors in files that differ from those of parameters.
STORED = {"neox": {"lm_head.weight": "embed_out.weight"}}
MASKED = ("bert", "roberta", "distilbert", "modernbert")
# Saved as another class of the architecture, with heads for other tasks, which the loss does not see.
CLASSES = {"bert_pretraining": BertForPreTraining}

SMALL = dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=20,
             vocab_size=23, num_hidden_layers=2)
LENGTHS = [17, 1, 40, 3, 2]

MODELS = {
    # name: (seed, document lengths, config). Each has at least one thing the others lack.
    "llama_gqa": (  # 3 query heads a key/value head, head of its own
        1,
        [17, 1, 40, 3, 2],
        dict(hidden_size=24, num_attention_heads=6, num_key_value_heads=2, intermediate_size=40,
             vocab_size=37, num_hidden_layers=2, rms_norm_eps=1e-5, rope_theta=50000.0),
    ),
    "llama_mqa_tied": (  # one key/value head, tied head, N x D = 24 != H = 20
        2,
        [2, 40, 17, 1, 3],
        dict(hidden_size=20, num_attention_heads=4, num_key_value_heads=1, intermediate_size=28,
             vocab_size=31, num_hidden_layers=2, rms_norm_eps=1e-6, rope_theta=500.0, head_dim=6,
             tie_word_embeddings=True),
    ),
    "llama_mha_wide": (  # as many key/value heads as query heads, N x D = 20 > H = 16, three layers
        3,
        [3, 17, 2, 40, 1],
        dict(hidden_size=16, num_attention_heads=2, num_key_value_heads=2, intermediate_size=24,
             vocab_size=29, num_hidden_layers=3, rms_norm_eps=1e-3, rope_theta=1000000.0, head_dim=10),
    ),
    "llama_bias_llama3": (  # biases everywhere; some pairs fast, some slow, some between
        4, LENGTHS,
        dict(**SMALL, head_dim=12, attention_bias=True, mlp_bias=True, rope_theta=100.0,
             rope=dict(rope_type="llama3", factor=4.0, original_max_position_embeddings=32,
                       low_freq_factor=1.0, high_freq_factor=4.0)),
    ),
    "llama_linear": (
        5, LENGTHS,
        dict(**SMALL, pad_token_id=3, rope_theta=100.0, rope=dict(rope_type="linear", factor=3.0)),
    ),
    "llama_yarn": (
        6, LENGTHS,
        dict(**SMALL, head_dim=16, rope_theta=100.0,
             rope=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=6.0)),
    ),
    "llama_yarn_mscale": (  # its own attention factor; borders between two pairs
        7, LENGTHS,
        dict(**SMALL, head_dim=16, rope_theta=100.0,
             rope=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=6.0,
                       mscale=0.7, mscale_all_dim=0.4, truncate=False)),
    ),
    "qwen2": (8, LENGTHS, dict(**SMALL, rope_theta=500.0, tie_word_embeddings=True)),
    "qwen3": (9, LENGTHS, dict(**SMALL, rope_theta=500.0, head_dim=6, attention_bias=True)),
    "gpt2": (
        10, LENGTHS,
        dict(n_embd=15, n_head=3, n_layer=2, n_inner=22, vocab_size=23, n_positions=41,
             layer_norm_epsilon=1e-3),
    ),
    "opt": (
        11, LENGTHS,
        dict(hidden_size=15, word_embed_proj_dim=15, num_attention_heads=3, num_hidden_layers=2, ffn_dim=22,
             vocab_size=23, max_position_embeddings=41),
    ),
    "llama_labels": (13, [17, 1, 40, 3, 9, 2, 12], dict(**SMALL, rope_theta=100.0)),
    "bert": (
        12, LENGTHS,
        dict(hidden_size=15, num_attention_heads=3, num_hidden_layers=2, intermediate_size=22, vocab_size=23,
             max_position_embeddings=41, layer_norm_eps=1e-3),
    ),
    "mistral": (  # a window that no document leaves
        14, LENGTHS, dict(**SMALL, rope_theta=500.0, sliding_window=40)),
    "mistral_window": (  # a window that two documents leave
        22, LENGTHS, dict(**SMALL, rope_theta=500.0, sliding_window=5)),
    "qwen2_window": (  # one layer attends to all tokens, two have a window
        23, LENGTHS,
        dict(**SMALL | dict(num_hidden_layers=3), rope_theta=500.0, use_sliding_window=True, sliding_window=7,
             max_window_layers=1)),
    "gemma2": (  # caps that matter, heads of their own width and root, a window in the first and third layer
        24, LENGTHS,
        dict(**SMALL | dict(num_hidden_layers=3), rope_theta=500.0, head_dim=6, query_pre_attn_scalar=9,
             sliding_window=6, attn_logit_softcapping=2.0, final_logit_softcapping=1.5, rms_norm_eps=1e-3)),
    "gemma3": (  # a base of their own for layers with a window; stretched in those without
        25, LENGTHS,
        dict(**SMALL | dict(num_hidden_layers=4), head_dim=6, query_pre_attn_scalar=7, sliding_window=4,
             max_position_embeddings=64, rms_norm_eps=1e-3,
             layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
             rope_parameters=dict(
                 full_attention=dict(rope_type="linear", factor=3.0, rope_theta=500.0),
                 sliding_attention=dict(rope_type="default", rope_theta=100.0)))),
    "modernbert": (  # windows to both sides in two layers of four, with a base of their own
        26, LENGTHS,
        dict(hidden_size=18, num_attention_heads=3, intermediate_size=20, vocab_size=23, num_hidden_layers=4,
             max_position_embeddings=64, pad_token_id=3, local_attention=9, norm_eps=1e-3,
             rope_parameters=dict(
                 full_attention=dict(rope_type="default", rope_theta=500.0),
                 sliding_attention=dict(rope_type="default", rope_theta=100.0)))),
    "modernbert_biases": (  # biases everywhere; a window in the first layer and in the last; other functions
        27, LENGTHS,
        dict(hidden_size=16, num_attention_heads=4, intermediate_size=22, vocab_size=23, num_hidden_layers=3,
             max_position_embeddings=64, pad_token_id=3, local_attention=4, norm_eps=1e-3, norm_bias=True,
             attention_bias=True, mlp_bias=True, classifier_bias=True, tie_word_embeddings=False,
             hidden_activation="gelu_new", classifier_activation="relu",
             layer_types=["sliding_attention", "full_attention", "sliding_attention"],
             rope_parameters=dict(
                 full_attention=dict(rope_type="default", rope_theta=500.0),
                 sliding_attention=dict(rope_type="default", rope_theta=100.0)))),
    "olmo2": (  # norms of all queries and keys of a token, and of what is added; biases
        16, LENGTHS,
        dict(hidden_size=16, num_attention_heads=4, num_key_value_heads=2, intermediate_size=20, vocab_size=23,
             num_hidden_layers=2, pad_token_id=3, rope_theta=500.0, attention_bias=True, rms_norm_eps=1e-3)),
    "phi3": (  # fused tensors; 4 of a head's 8 columns turn
        17, LENGTHS,
        dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, intermediate_size=20, vocab_size=23,
             num_hidden_layers=2, pad_token_id=3, rope_theta=500.0,
             rope=dict(rope_type="default", partial_rotary_factor=0.5)),
    ),
    "neox": (  # side by side; 2 of a head's 6 columns turn
        18, LENGTHS,
        dict(hidden_size=18, num_attention_heads=3, intermediate_size=22, vocab_size=23, num_hidden_layers=2,
             rope_theta=500.0, rope=dict(rope_type="default", partial_rotary_factor=0.34)),
    ),
    "neox_sequential": (  # one after the other; tied, no biases of attention, all columns turn
        19, LENGTHS,
        dict(hidden_size=12, num_attention_heads=3, intermediate_size=22, vocab_size=23, num_hidden_layers=2,
             use_parallel_residual=False, tie_word_embeddings=True, attention_bias=False,
             rope_theta=500.0, rope=dict(rope_type="default", partial_rotary_factor=1.0)),
    ),
    "roberta": (  # another activation than its head's
        20, LENGTHS,
        dict(hidden_size=15, num_attention_heads=3, num_hidden_layers=2, intermediate_size=22, vocab_size=23,
             max_position_embeddings=43, pad_token_id=1, type_vocab_size=1, layer_norm_eps=1e-3,
             hidden_act="gelu_new"),
    ),
    "distilbert": (
        21, LENGTHS,
        dict(dim=15, n_heads=3, n_layers=2, hidden_dim=22, vocab_size=23, max_position_embeddings=41),
    ),
    "gpt2_dropout": (  # of the embedding, of attention's probabilities and of what parts add
        26, LENGTHS,
        dict(n_embd=15, n_head=3, n_layer=2, n_inner=22, vocab_size=23, n_positions=41,
             layer_norm_epsilon=1e-3, attn_pdrop=0.3, resid_pdrop=0.2, embd_pdrop=0.15),
    ),
    "bert_dropout": (
        27, LENGTHS,
        dict(hidden_size=15, num_attention_heads=3, num_hidden_layers=2, intermediate_size=22, vocab_size=23,
             max_position_embeddings=41, layer_norm_eps=1e-3, attention_probs_dropout_prob=0.4,
             hidden_dropout_prob=0.1),
    ),
    "mistral_dropout": (  # of attention alone; grouped heads, a window
        28, LENGTHS, dict(**SMALL, rope_theta=500.0, sliding_window=7, attention_dropout=0.25)),
    "bert_pretraining": (  # pooler and next-sentence head; a decoder of its own
        15, LENGTHS,
        dict(hidden_size=15, num_attention_heads=3, num_hidden_layers=2, intermediate_size=22, vocab_size=23,
             max_position_embeddings=41, layer_norm_eps=1e-3, tie_word_embeddings=False),
    ),
}

# name: the seed by which its masks are drawn.
DROPOUT = {"gpt2_dropout": 5, "bert_dropout": 0x7EDCBA9876543210, "mistral_dropout": 7}


class Dropouts:
    """Stands for torch.nn.functional.dropout while a model runs its documents one by one.

    An element is zero where its 32 bits of Philox4x32-10 are below 2^32 times the probability.  Those of
    a row are of the counter (column / 4, site, index of the token in the batch), four columns a draw;
    those of attention's probabilities have the key's position for the column, and the head, from 1 on,
    in the token's highest 16 bits.  Sites: 0 the embedding, 2 (layer + 1) the layer's attention, one more
    its MLP.
    """

    def __init__(self, seed):
        self.seed = seed
        self.token = 0  # the document's first
        self.begin()

    def begin(self):
        self.rows = self.probabilities = 0  # dropouts of the document so far

    def end(self, tokens):
        self.token += tokens
        self.begin()

    def words(self, site, tokens, columns):
        """[token, column] 32 bits each."""
        low = numpy.uint64(0xFFFFFFFF)
        draws = numpy.arange((columns + 3) // 4, dtype=numpy.uint64)[None]
        tokens = numpy.asarray(tokens, dtype=numpy.uint64)[:, None]
        c = [draws + 0 * tokens, numpy.uint64(site) + 0 * (draws + tokens),
             (tokens & low) + 0 * draws, (tokens >> numpy.uint64(32)) + 0 * draws]
        key = [self.seed & 0xFFFFFFFF, self.seed >> 32]
        for _ in range(10):
            a, b = c[0] * numpy.uint64(0xD2511F53), c[2] * numpy.uint64(0xCD9E8D57)
            c = [(b >> numpy.uint64(32)) ^ c[1] ^ numpy.uint64(key[0]), b & low,
                 (a >> numpy.uint64(32)) ^ c[3] ^ numpy.uint64(key[1]), a & low]
            key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
        return numpy.stack(c, axis=2).reshape(tokens.size, -1)[:, :columns]

    def __call__(self, x, p=0.5, training=True, inplace=False):
        tokens = self.token + numpy.arange(x.shape[-2])
        if x.dim() == 4:  # [1, head, query, key]
            site = 2 * (self.probabilities + 1)
            self.probabilities += 1
            words = numpy.stack([
                self.words(site, tokens + ((head + 1) << 48), x.shape[-1]) for head in range(x.shape[1])])
        else:  # [1, token, column]
            site = self.rows + 1 if self.rows > 0 else 0
            self.rows += 1
            words = self.words(site, tokens, x.shape[-1])
        kept = torch.from_numpy(words >= p * 2 ** 32).to(x.dtype)
        return x * kept / (1 - p) if training and p > 0 else x


def in_float64(module, function, times):
    """`function` of `module`, its source as installed but for float32, `times` times float64."""
    source = textwrap.dedent(inspect.getsource(function))
    source, found = re.subn(r"torch\.float(32)?\b", "torch.float64", source)
    source, also_found = re.subn(r"\.float\(\)", ".double()", source)
    if found + also_found != times:
        raise SystemExit(
            f"{function.__qualname__}: {found + also_found} uses of float32, not {times}: "
            f"transformers {transformers.__version__} differs from the one this was written for")
    scope = {}
    exec(compile(source, f"<{function.__qualname__} in float64>", "exec"), vars(module), scope)
    return scope[function.__name__]


def patch_transformers():
    for module, name in [
            (modeling_llama, "Llama"), (modeling_mistral, "Mistral"), (modeling_qwen2, "Qwen2"), (modeling_qwen3, "Qwen3"),
            (modeling_olmo2, "Olmo2"), (modeling_phi3, "Phi3"), (modeling_gpt_neox, "GPTNeoX"),
            (modeling_gemma2, "Gemma2"), (modeling_gemma3, "Gemma3"), (modeling_modernbert, "ModernBert")]:
        rotary = getattr(module, name + "RotaryEmbedding")
        rotary.compute_default_rope_parameters = in_float64(module, rotary.compute_default_rope_parameters, 1)
        rotary.forward = in_float64(module, rotary.forward, 2)
        if norm := getattr(module, name + "RMSNorm", None):  # others have torch's LayerNorm, in their own type
            norm.forward = in_float64(module, norm.forward, 2 if name.startswith("Gemma") else 1)
        module.eager_attention_forward = in_float64(module, module.eager_attention_forward, 1)
    modeling_modernbert.apply_rotary_pos_emb = in_float64(
        modeling_modernbert, modeling_modernbert.apply_rotary_pos_emb, 4)
    modeling_opt.eager_attention_forward = in_float64(
        modeling_opt, modeling_opt.eager_attention_forward, 1)
    functions = modeling_rope_utils.ROPE_INIT_FUNCTIONS
    for name, times in [("linear", 1), ("llama3", 1), ("yarn", 3)]:
        functions[name] = in_float64(modeling_rope_utils, functions[name], times)


def architecture_of(name):
    return name.split("_")[0]


def class_of(name):
    return CLASSES.get(name, ARCHITECTURES[architecture_of(name)][1])


def config_of(name, keys):
    keys = dict(keys)
    if "rope_theta" in keys:
        rope = {"rope_type": "default", **keys.pop("rope", {}), "rope_theta": keys.pop("rope_theta")}
        keys |= dict(rope_parameters=rope, max_position_embeddings=64)
    return ARCHITECTURES[architecture_of(name)][0](**keys, attn_implementation="eager")


def weights_of(name, config, seed):
    """Random weights, float32 values: large enough that attention and gates are far from uniform."""
    random = numpy.random.default_rng(seed)
    weights = {}
    for parameter_name, parameter in sorted(class_of(name)(config).named_parameters()):
        normal = random.standard_normal(tuple(parameter.shape))
        if parameter_name.endswith("bias"):
            value = 0.3 * normal
        elif parameter.dim() == 1:  # of a norm
            value = (0.0 if name.startswith("gemma") else 1.0) + 0.3 * normal
        elif re.search("embed|wte|wpe", parameter_name):
            value = (0.4 if config.tie_word_embeddings else 1.0) * normal
        else:
            inputs = parameter.shape[0 if architecture_of(name) == "gpt2" else 1]
            value = 1.2 / inputs ** 0.5 * normal
        weights[parameter_name] = torch.from_numpy(value.astype(numpy.float32))
    return weights


def model_of(name, config, weights):
    model = class_of(name)(config).double().eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = ["lm_head.weight", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias",
            "lm_head.decoder.weight", "lm_head.decoder.bias", "vocab_projector.weight", "decoder.weight"]
    assert all(one in tied for one in missing), missing
    assert bool(missing) == config.tie_word_embeddings or name == "bert_pretraining", missing
    assert not unexpected, unexpected
    model.tie_weights()
    return model


def answer_of(model, documents, dropouts=None):
    """The loss, [(sum, count)] by document, and every gradient of the loss."""
    if dropouts is not None:
        own = torch.nn.functional.dropout
        torch.nn.functional.dropout = dropouts
        try:
            return answer_of(model.train(), documents)
        finally:
            torch.nn.functional.dropout = own
            model.eval()
    targets = [targets_of(model, tokens, labels) for tokens, labels in documents]
    count = sum(sum(target >= 0 for target in of_document) for of_document in targets)
    sums = []
    for (tokens, labels), of_document in zip(documents, targets):
        answer = model(
            input_ids=torch.tensor(tokens)[None],
            labels=torch.tensor(tokens if labels is None else labels)[None])
        logits = (answer.prediction_logits if "prediction_logits" in answer else answer.logits)[0]
        assert logits.dtype == torch.float64
        token_losses = torch.nn.functional.cross_entropy(
            logits, torch.tensor(of_document), reduction="sum")
        (token_losses / count).backward()
        sums.append((token_losses.item(), sum(target >= 0 for target in of_document)))
        if isinstance(torch.nn.functional.dropout, Dropouts):
            torch.nn.functional.dropout.end(len(tokens))
        if sums[-1][1] > 0 and answer.loss is not None:  # else its own is 0 / 0, or asks for sentences, too
            assert abs(answer.loss.item() - sums[-1][0] / sums[-1][1]) < 1e-5
    gradients = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    return sum(total for total, _ in sums) / count, sums, gradients


def targets_of(model, tokens, labels):
    """What the logits of each token are scored against."""
    if model.config.model_type in MASKED:
        return labels
    return (tokens if labels is None else labels)[1:] + [-100]


def documents_of(name, config, seed, lengths):
    """[(tokens, labels)]; where a model has labels, one for about every third token, else None."""
    random = numpy.random.default_rng(1000 + seed)
    documents = []
    for n in lengths:
        tokens = random.integers(0, config.vocab_size, size=n).tolist()
        labels = None
        if name == "roberta":  # its padding has no position; documents here have none
            tokens = [2 if token == 1 else token for token in tokens]
        if architecture_of(name) in MASKED or name == "llama_labels":
            labels = numpy.where(
                random.random(n) < 0.35, random.integers(0, config.vocab_size, size=n), -100).tolist()
        documents.append((tokens, labels))
    if name == "llama_labels":
        documents[0] = (documents[0][0], None)
        documents[3] = (documents[3][0], [5, -100, -100])  # the first is not used
    return documents


def line_of(tokens, labels):
    return json.dumps({"tokens": tokens} if labels is None else {"tokens": tokens, "labels": labels})


def worst_error(actual, expected):
    """The measure of include/paradyse/run/gradients.h."""
    whole = sum(g.norm() ** 2 for g in expected.values()) ** 0.5
    return max(
        ((actual[name] - g).norm() / max(g.norm(), 1e-3 * whole)).item() for name, g in expected.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests" / "golden")
    parser.add_argument("names", nargs="*", help="of the models (default: all)")
    arguments = parser.parse_args()
    out = arguments.out
    torch.set_num_threads(1)

    problems = {}
    for name, (seed, lengths, keys) in MODELS.items():
        if arguments.names and name not in arguments.names:
            continue
        config = config_of(name, keys)
        problems[name] = (
            seed, config, weights_of(name, config, seed), documents_of(name, config, seed, lengths))

    def dropouts_of(name):
        return Dropouts(DROPOUT[name]) if name in DROPOUT else None

    unpatched = {
        name: answer_of(model_of(name, config, weights), documents, dropouts_of(name))
        for name, (_, config, weights, documents) in problems.items()
    }
    patch_transformers()

    for name, (seed, config, weights, documents) in problems.items():
        model = model_of(name, config, weights)
        loss, sums, gradients = answer_of(model, documents, dropouts_of(name))
        unpatched_loss, _, unpatched_gradients = unpatched[name]

        folder = out / f"hf_{name}"
        folder.mkdir(parents=True, exist_ok=True)
        model.float().save_pretrained(folder)  # every weight is a float32 value
        (folder / "generation_config.json").unlink(missing_ok=True)
        stored = STORED.get(architecture_of(name), {})
        save_file({stored.get(one, one): gradient for one, gradient in gradients.items()},
                  folder / "expected_gradients.safetensors", metadata={"format": "pt"})
        (folder / "documents.jsonl").write_text(
            "".join(line_of(tokens, labels) + "\n" for tokens, labels in documents))
        expected = {
            "loss": loss,
            "documents": [{"sum": total, "count": count} for total, count in sums],
            "expected_unpatched_loss": unpatched_loss,
            "unpatched_worst_gradient_error": worst_error(unpatched_gradients, gradients),
            "seed": seed,
            **({"dropout_seed": DROPOUT[name]} if name in DROPOUT else {}),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "safetensors": safetensors.__version__,
                "numpy": numpy.__version__,
            },
        }
        (folder / "expected.json").write_text(json_text(expected))
        print(f"{folder}: loss {loss!r}, unpatched {unpatched_loss - loss:+.1e}, "
              f"worst gradient {expected['unpatched_worst_gradient_error']:.1e}")


if __name__ == "__main__":
    main()
