"""Models of every text family, of random sizes, judged by Hugging Face transformers in float64.

    python families.py make FOLDER SEED    # one folder a family, in the form of tests/golden/hf_*
    python families.py loss FOLDER DATA    # of a model folder, as transformers reads it back
    python families.py adapt FOLDER SEED   # beside each folder that `make` made one of PEFT: peft_*
    python families.py adapted FOLDER DATA # loss of a PEFT folder, and of its merged model: last logits

For families_test.py, in a Python that has torch and transformers, and for adapters peft;
scripts/make_hf_golden.py and make_peft_golden.py do the work.
"""

import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import make_hf_golden as golden  # noqa: E402

LENGTHS = [7, 1, 19, 2, 11]


def sizes(draw):
    """Of a model whose heads, width and vocabulary few numbers of ranks divide."""
    kv_heads = draw.choice([1, 2, 3])
    heads = kv_heads * draw.choice([1, 2, 3])
    return dict(num_attention_heads=heads, num_key_value_heads=kv_heads, num_hidden_layers=draw.choice([1, 2, 3]),
                intermediate_size=draw.randrange(9, 30), vocab_size=draw.randrange(17, 40),
                tie_word_embeddings=draw.random() < 0.5)


def rotated(draw, part=None):
    rope = {"rope_type": "default"} | ({} if part is None else {"partial_rotary_factor": part})
    return dict(rope_theta=draw.choice([100.0, 10000.0]), rope=rope)


def models(seed):
    draw = random.Random(seed)
    all_of = {}

    def add(name, keys):
        all_of[name] = (draw.randrange(1 << 20), LENGTHS, keys)

    for name in ("llama", "mistral", "olmo2", "phi3"):
        keys = sizes(draw)
        width = draw.choice([4, 8])
        keys |= dict(hidden_size=keys["num_attention_heads"] * width, pad_token_id=draw.choice([3, None]))
        keys |= rotated(draw, draw.choice([0.5, 1.0]) if name == "phi3" else None)
        if name == "mistral":
            keys["sliding_window"] = draw.choice([None, 6])
        if name in ("llama", "olmo2"):
            keys["attention_bias"] = draw.random() < 0.5
        add(name, keys)
    for name, parallel in (("neox", True), ("neox_sequential", False)):
        keys = sizes(draw)
        del keys["num_key_value_heads"]
        keys |= dict(hidden_size=keys["num_attention_heads"] * 8, use_parallel_residual=parallel)
        add(name, keys | rotated(draw, draw.choice([0.25, 0.5, 0.75])))
    for name in ("bert", "roberta"):
        keys = sizes(draw)
        del keys["num_key_value_heads"]
        padding = 1 if name == "roberta" else 0
        keys |= dict(hidden_size=keys["num_attention_heads"] * draw.choice([3, 5]), pad_token_id=padding,
                     max_position_embeddings=max(LENGTHS) + 2 + draw.randrange(5),
                     hidden_act=draw.choice(["gelu", "relu", "gelu_new"]))
        add(name, keys)
    keys = sizes(draw)
    add("distilbert", dict(
        dim=keys["num_attention_heads"] * 5, n_heads=keys["num_attention_heads"], n_layers=keys["num_hidden_layers"],
        hidden_dim=keys["intermediate_size"], vocab_size=keys["vocab_size"], activation=draw.choice(["gelu", "relu"]),
        max_position_embeddings=max(LENGTHS), tie_word_embeddings=keys["tie_word_embeddings"]))
    for name in ("gemma2", "gemma3"):
        keys = sizes(draw) | dict(hidden_size=16, head_dim=draw.choice([4, 6]), query_pre_attn_scalar=draw.choice([4, 7]),
                                  sliding_window=draw.randrange(1, max(LENGTHS)), max_position_embeddings=64,
                                  attention_bias=draw.random() < 0.5, num_hidden_layers=draw.choice([2, 3]))
        keys["num_attention_heads"] = keys["num_key_value_heads"] = draw.choice([1, 2, 4])  # divisors of the width
        if name == "gemma2":
            keys |= dict(attn_logit_softcapping=draw.choice([None, 1.0]), final_logit_softcapping=draw.choice([None, 1.0]))
            keys |= rotated(draw)
        else:
            keys["layer_types"] = [draw.choice(["sliding_attention", "full_attention"])
                                   for _ in range(keys["num_hidden_layers"])]
            keys["rope_parameters"] = {kind: dict(rope_type="default", rope_theta=draw.choice([100.0, 10000.0]))
                                       for kind in ("full_attention", "sliding_attention")}
        add(name, keys)
    keys = sizes(draw)
    del keys["num_key_value_heads"]
    keys |= dict(hidden_size=keys["num_attention_heads"] * draw.choice([4, 6]), pad_token_id=draw.choice([3, None]),
                 max_position_embeddings=64, local_attention=draw.randrange(1, max(LENGTHS)),
                 hidden_activation=draw.choice(["gelu", "silu"]), classifier_activation=draw.choice(["gelu", "relu"]))
    keys |= {key: draw.random() < 0.5 for key in
             ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias")}
    keys["layer_types"] = [draw.choice(["sliding_attention", "full_attention"])
                           for _ in range(keys["num_hidden_layers"])]
    keys["rope_parameters"] = {kind: dict(rope_type="default", rope_theta=draw.choice([100.0, 10000.0]))
                               for kind in ("full_attention", "sliding_attention")}
    add("modernbert", keys)
    return all_of


def make(folder, seed):
    golden.MODELS = models(seed)
    sys.argv = ["make_hf_golden.py", "--out", folder]
    golden.main()


def loss(folder, data):
    golden.patch_transformers()
    config = golden.transformers.AutoConfig.from_pretrained(folder)
    masked = config.model_type in golden.MASKED
    kind = golden.transformers.AutoModelForMaskedLM if masked else golden.transformers.AutoModelForCausalLM
    model, said = kind.from_pretrained(
        folder, dtype=golden.torch.float64, attn_implementation="eager", output_loading_info=True)
    # Every tensor is known, and none is missing but a bias that an untied head does not use.
    said["missing_keys"] = set(said["missing_keys"]) - {"lm_head.bias", "cls.predictions.bias"}
    assert not any(said.values()), said
    documents = [json.loads(line) for line in pathlib.Path(data).read_text().splitlines()]
    print(json.dumps(golden.answer_of(model.eval(), [(one["tokens"], one.get("labels")) for one in documents])[0]))


def adapt(folder, seed):
    import make_peft_golden as golden_peft
    golden.patch_transformers()
    draw = random.Random(seed)
    names = {"neox": ["query_key_value", "dense_4h_to_h"], "phi3": ["qkv_proj", "down_proj"],
             "bert": ["query", "output.dense"], "distilbert": ["q_lin", "lin2"], "modernbert": ["Wqkv", "mlp.Wo"]}
    names["roberta"] = names["bert"]
    for base in models(seed):
        family = golden.architecture_of(base)
        targets = draw.choice(["all-linear", names.get(family, ["q_proj", "down_proj"])])
        settings = dict(r=draw.choice([1, 2, 5]), lora_alpha=draw.choice([1, 3, 16]), target_modules=targets,
                        use_rslora=draw.random() < 0.5, bias=draw.choice(["none", "all", "lora_only"]))
        print(golden_peft.make(pathlib.Path(folder), base, base, draw.randrange(1 << 20), settings))


def adapted(folder, data):
    import make_peft_golden as golden_peft
    golden.patch_transformers()
    config = golden_peft.peft.PeftConfig.from_pretrained(folder)
    place = config.base_model_name_or_path
    masked = golden.transformers.AutoConfig.from_pretrained(place).model_type in golden.MASKED
    kind = golden.transformers.AutoModelForMaskedLM if masked else golden.transformers.AutoModelForCausalLM
    base = kind.from_pretrained(place, dtype=golden.torch.float64, attn_implementation="eager")
    model = golden_peft.peft.PeftModel.from_pretrained(base, folder, autocast_adapter_dtype=False, is_trainable=True)
    loss, gradients, logits = golden_peft.judged(model.double().eval(), golden_peft.documents_in(pathlib.Path(data).parent))
    print(json.dumps({"loss": loss, "trained": sorted(gradients), "last_logits": logits.tolist()}))


if __name__ == "__main__":
    {"adapt": lambda folder, seed: adapt(folder, int(seed)), "adapted": adapted, "make": lambda folder, seed: make(folder, int(seed)), "loss": loss}[sys.argv[1]](*sys.argv[2:])
