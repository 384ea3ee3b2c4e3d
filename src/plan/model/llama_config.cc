// LLaMA (Touvron et al. 2023) and its relatives: Qwen 2, with biases of queries, keys and values,
// and Qwen 3, with norms of queries and keys.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "src/plan/model/families.h"

namespace paradyse {
namespace {

using nlohmann::json;

// Throws unless every layer attends to all tokens of a document.
void expect_full_attention(const Keys& keys, std::int64_t layers) {
  // A window that is switched off says nothing (Qwen2 writes both).
  if (keys.find("sliding_window") != nullptr && keys.flag("use_sliding_window", true)) {
    keys.refuse(
        "sliding_window",
        "sliding windows are not implemented: accepted is null, or use_sliding_window = false");
  }
  keys.expect("use_sliding_window", false, "sliding windows are not implemented");
  const json* types = keys.find("layer_types");
  const auto full = [](const json& type) { return type == "full_attention"; };
  if (types != nullptr && !(types->is_array() && std::cmp_equal(types->size(), layers) &&
                            std::all_of(types->begin(), types->end(), full))) {
    keys.refuse(
        "layer_types",
        "accepted is \"full_attention\" for each of the " + std::to_string(layers) + " layers");
  }
}

ModelShape read(const Keys& keys, const std::string& architecture) {
  ModelShape shape;
  shape.architecture = architecture;
  shape.layers = keys.size("num_hidden_layers");
  auto head_dim = keys.size_or_absent("head_dim");
  if (!head_dim && architecture == "qwen3") {
    head_dim = 128;  // its own default, whatever the hidden width
  }
  read_heads(keys, "hidden_size", "num_attention_heads", head_dim, shape);
  if (shape.head_dim % 2 != 0) {
    throw std::invalid_argument(
        keys.where() + ": head_dim is " + std::to_string(shape.head_dim) +
        (head_dim ? "" : " (hidden_size / num_attention_heads)") +
        "; rotary embeddings turn pairs: accepted is an even number");
  }
  shape.ffn = keys.size("intermediate_size");
  shape.vocab = keys.size("vocab_size");
  shape.kv_heads = keys.size_or_absent("num_key_value_heads").value_or(shape.heads);
  if (shape.heads % shape.kv_heads != 0) {
    keys.refuse(
        "num_key_value_heads",
        "accepted is a divisor of num_attention_heads = " + std::to_string(shape.heads));
  }
  const json* positions = keys.find("max_position_embeddings");
  if (positions != nullptr && *positions != 0) {  // 0 is how a ModelShape says "no limit"
    shape.max_positions = keys.size("max_position_embeddings");
  }
  shape.norm_eps = keys.positive("rms_norm_eps", shape.norm_eps);
  read_rope(keys, shape);
  static_cast<void>(keys.name("hidden_act", "silu", {"silu", "swish"}));  // one function
  const bool bias = architecture != "qwen2" && keys.flag("attention_bias", false);
  shape.qkv_bias = bias || architecture == "qwen2";
  shape.out_bias = bias;
  shape.mlp_bias = architecture == "llama" && keys.flag("mlp_bias", false);
  shape.qk_norm = architecture == "qwen3";
  shape.tied = keys.flag("tie_word_embeddings", shape.tied);
  shape.causal = keys.flag("is_causal", shape.causal);
  shape.initializer_range = keys.positive("initializer_range", shape.initializer_range);
  shape.padding_id = keys.padding_id(-1, shape.vocab);
  shape.attention_dropout = keys.probability("attention_dropout", 0.0);
  expect_full_attention(keys, shape.layers);
  return shape;
}

json write(const ModelShape& shape) {
  json config = {
      {"num_hidden_layers", shape.layers},
      {"hidden_size", shape.hidden},
      {"num_attention_heads", shape.heads},
      {"num_key_value_heads", shape.kv_heads},
      {"head_dim", shape.head_dim},
      {"intermediate_size", shape.ffn},
      {"vocab_size", shape.vocab},
      {"rms_norm_eps", shape.norm_eps},
      {"tie_word_embeddings", shape.tied},
      {"initializer_range", shape.initializer_range},
      {"hidden_act", "silu"},
      {"attention_dropout", shape.attention_dropout},
  };
  if (shape.architecture != "qwen2") {
    config["attention_bias"] = shape.out_bias;
  }
  if (shape.architecture == "llama") {
    config["mlp_bias"] = shape.mlp_bias;
    config["pretraining_tp"] = 1;
  } else {
    config["use_sliding_window"] = false;
  }
  write_rope(shape, config);
  if (shape.padding_id >= 0) {
    config["pad_token_id"] = shape.padding_id;
  }
  if (shape.max_positions != 0) {
    config["max_position_embeddings"] = shape.max_positions;
  }
  if (!shape.causal) {  // transformers 5 reads it and writes it only then
    config["is_causal"] = false;
  }
  return config;
}

Family family(
    const std::string& model_type,
    const std::string& architecture,
    ModelShape (*reader)(const Keys& keys)) {
  Family family{
      .model_type = model_type,
      .architecture = architecture,
      .read_keys = {"num_hidden_layers",
                    "hidden_size",
                    "num_attention_heads",
                    "num_key_value_heads",
                    "head_dim",
                    "intermediate_size",
                    "vocab_size",
                    "max_position_embeddings",
                    "rms_norm_eps",
                    "rope_theta",
                    "rope_scaling",
                    "rope_parameters",
                    "hidden_act",
                    "tie_word_embeddings",
                    "is_causal",
                    "initializer_range",
                    "pad_token_id",
                    "attention_dropout",
                    "layer_types",
                    "sliding_window",
                    "use_sliding_window"},
      .fixed_keys =
          {{"partial_rotary_factor", "1.0", "rotating a part of a head is not implemented"},
           {"rope_interleaved", "false", "interleaved rotary embeddings are not implemented"},
           {"attn_pdrop", "0.0", "these models have no such dropout; train with 0"},
           {"embd_pdrop", "0.0", "these models have no such dropout; train with 0"},
           {"resid_pdrop", "0.0", "these models have no such dropout; train with 0"},
           {"hidden_dropout", "0.0", "these models have no such dropout; train with 0"},
           {"pretraining_tp", "1", "the degrees of parallelism are the planner's to choose"}},
      .read = reader,
      .write = write};
  if (model_type != "qwen2") {
    family.read_keys.emplace_back("attention_bias");
  }
  if (model_type == "llama") {
    family.read_keys.emplace_back("mlp_bias");
  } else {
    family.read_keys.emplace_back("max_window_layers");  // of windows, which must be off
  }
  return family;
}

}  // namespace

std::vector<Family> llama_families() {
  return {
      family("llama", "LlamaForCausalLM", [](const Keys& keys) { return read(keys, "llama"); }),
      family("qwen2", "Qwen2ForCausalLM", [](const Keys& keys) { return read(keys, "qwen2"); }),
      family("qwen3", "Qwen3ForCausalLM", [](const Keys& keys) { return read(keys, "qwen3"); })};
}

}  // namespace paradyse
