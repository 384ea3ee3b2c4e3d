// Gemma 2 (Gemma Team 2024) and Gemma 3 (2025), which reads text alone: RMSNorms whose weights
// stand around 0, of a part's input and of what it adds; an embedding scaled by sqrt(H); GeGLU;
// heads of a width of their own, whose products are divided by a root of its own; and layers with a
// window of attention between those without.  Gemma 2 caps scores and logits.  Gemma 3 norms
// queries and keys, and its layers with a window turn by another base.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/plan/model/text/text_families.h"

namespace paradyse {
namespace {

using nlohmann::json;

constexpr double kGemma3Theta = 1e6;
constexpr double kGemma3WindowTheta = 1e4;

// Null says none, other than leaving the key out.
double cap_of(const Keys& keys, const std::string& key, double absent) {
  return !keys.says(key) ? absent : keys.find(key) == nullptr ? 0 : keys.positive(key, absent);
}

// All layers but every `period`-th.
std::vector<bool> all_but_every(std::int64_t period, std::int64_t layers) {
  std::vector<bool> windowed;
  for (std::int64_t layer = 1; layer <= layers; ++layer) {
    windowed.push_back(layer % period != 0);
  }
  return windowed;
}

void read_gemma_windows(const Keys& keys, std::int64_t period, TextShape& shape) {
  std::vector<bool> windowed =
      read_windowed_layers(keys, shape.layers).value_or(all_but_every(period, shape.layers));
  if (keys.says("sliding_window") && keys.find("sliding_window") == nullptr) {
    keys.refuse("sliding_window", "accepted is a number of tokens: layer_types says who has none");
  }
  set_windows(shape, keys.size("sliding_window"), std::move(windowed));
}

// What both have in common.
TextShape read_gemma(const Keys& keys, const std::string& architecture) {
  TextShape shape;
  shape.architecture = architecture;
  shape.layers = keys.size("num_hidden_layers");
  read_heads(keys, "hidden_size", "num_attention_heads", keys.size("head_dim"), shape);
  if (shape.head_dim % 2 != 0) {
    keys.refuse("head_dim", "rotary embeddings turn pairs: accepted is an even number");
  }
  shape.kv_heads = keys.size("num_key_value_heads");
  if (shape.heads % shape.kv_heads != 0) {
    keys.refuse(
        "num_key_value_heads",
        "accepted is a divisor of num_attention_heads = " + std::to_string(shape.heads));
  }
  shape.ffn = keys.size("intermediate_size");
  shape.vocab = keys.size("vocab_size");
  shape.max_positions = keys.size("max_position_embeddings");
  shape.norm_eps = keys.positive("rms_norm_eps", shape.norm_eps);
  static_cast<void>(keys.name(
      "hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh", "gelu_new", "gelu_fast"}));
  shape.activation = Activation::geglu;
  shape.qkv_bias = shape.out_bias = keys.flag("attention_bias", false);
  shape.sandwich_norm = true;
  shape.norm_offset = 1;
  shape.scaled_embedding = true;
  const double root = keys.positive("query_pre_attn_scalar", 256);
  shape.score_root = root == static_cast<double>(shape.head_dim) ? 0 : root;
  shape.tied = keys.flag("tie_word_embeddings", true);
  shape.initializer_range = keys.positive("initializer_range", shape.initializer_range);
  shape.padding_id = keys.padding_id(0, shape.vocab);
  shape.attention_dropout = keys.probability("attention_dropout", 0.0);
  return shape;
}

TextShape read_gemma2(const Keys& keys) {
  TextShape shape = read_gemma(keys, "gemma2");
  read_rope(keys, shape);
  shape.score_cap = cap_of(keys, "attn_logit_softcapping", 50);
  shape.logit_cap = cap_of(keys, "final_logit_softcapping", 30);
  read_gemma_windows(keys, 2, shape);
  return shape;
}

// transformers 4 says the base and the stretching of layers without a window at the top, and the
// base of the others as rope_local_base_freq; 5 has rope_parameters for either kind.
void read_gemma3_rope(const Keys& keys, TextShape& shape) {
  const char* const local = "rope_local_base_freq";
  const json* parameters = keys.find("rope_parameters");
  json flat = json::object();
  for (const char* key : {"rope_theta", "rope_scaling", "max_position_embeddings"}) {
    if (const json* value = keys.find(key)) {
      flat[key] = *value;
    }
  }
  if (const json* scaling = keys.find("rope_scaling"); scaling != nullptr && scaling->is_object()) {
    const Keys inner(*scaling, keys.where() + ": rope_scaling");
    const json* type = inner.find("type");
    if (type != nullptr && *type != "default" && inner.find("rope_type") == nullptr) {
      inner.refuse(
          "type",
          "transformers 4 reads this key, 5 reads rope_type alone for this model and would not "
          "stretch: write it as rope_type");
    }
  }
  double theta = keys.positive(local, kGemma3WindowTheta);
  if (parameters != nullptr) {
    const auto is_kind = [&](const char* kind) {
      return parameters->contains(kind) && parameters->at(kind).is_object();
    };
    if (!parameters->is_object() || parameters->size() != 2 || !is_kind("full_attention") ||
        !is_kind("sliding_attention")) {
      keys.refuse(
          "rope_parameters",
          "accepted is an object with full_attention and sliding_attention, each with rope_theta, "
          "rope_type and what that type needs");
    }
    flat["rope_parameters"] = parameters->at("full_attention");
    const Keys inner(
        parameters->at("sliding_attention"), keys.where() + ": rope_parameters.sliding_attention");
    inner.refuse_unknown({"rope_type", "rope_theta"});
    static_cast<void>(inner.name("rope_type", "default", {"default"}));
    const double said = inner.positive("rope_theta", theta);
    if (keys.find(local) != nullptr && said != theta) {
      keys.refuse(local, "but rope_parameters says " + json(said).dump() + ": remove one of them");
    }
    theta = said;
  }
  shape.rope_theta = kGemma3Theta;
  read_rope(
      Keys(
          flat,
          keys.where(),
          {{"max_position_embeddings", keys.published("max_position_embeddings")}}),
      shape);
  shape.window_rope_theta = shape.window > 0 ? theta : 0;
}

// Of layers that layer_types does not list.
std::int64_t gemma3_period(const Keys& keys) {
  const char* const copy = "_sliding_window_pattern";  // that transformers writes and does not read
  const auto said = keys.size_or_absent("sliding_window_pattern");
  if (keys.find("layer_types") != nullptr) {
    return said.value_or(1);
  }
  const std::int64_t period = said ? *said : keys.size("sliding_window_pattern");
  if (keys.size_or_absent(copy).value_or(period) != period) {
    keys.refuse(
        copy,
        "but transformers reads sliding_window_pattern, which makes it " + std::to_string(period) +
            ": say that key, or layer_types");
  }
  return period;
}

TextShape read_gemma3(const Keys& keys) {
  TextShape shape = read_gemma(keys, "gemma3_text");
  shape.qk_norm = true;
  shape.logit_cap = cap_of(keys, "final_logit_softcapping", 0);
  read_gemma_windows(keys, gemma3_period(keys), shape);
  read_gemma3_rope(keys, shape);
  return shape;
}

json number_or_null(double number) { return number == 0 ? json(nullptr) : json(number); }

json write_gemma(const TextShape& shape) {
  // A whole number, as transformers 5 wants it, where it is one.
  const double root =
      shape.score_root == 0 ? static_cast<double>(shape.head_dim) : shape.score_root;
  const auto whole = static_cast<std::int64_t>(root);
  json config = {
      {"num_hidden_layers", shape.layers},
      {"hidden_size", shape.hidden},
      {"num_attention_heads", shape.heads},
      {"num_key_value_heads", shape.kv_heads},
      {"head_dim", shape.head_dim},
      {"intermediate_size", shape.ffn},
      {"vocab_size", shape.vocab},
      {"max_position_embeddings", shape.max_positions},
      {"rms_norm_eps", shape.norm_eps},
      {"hidden_activation", "gelu_pytorch_tanh"},
      {"attention_bias", shape.out_bias},
      {"attention_dropout", shape.attention_dropout},
      {"query_pre_attn_scalar", static_cast<double>(whole) == root ? json(whole) : json(root)},
      {"tie_word_embeddings", shape.tied},
      {"initializer_range", shape.initializer_range},
      {"pad_token_id", padding_of(shape)},
      {"attn_logit_softcapping", number_or_null(shape.score_cap)},
      {"final_logit_softcapping", number_or_null(shape.logit_cap)},
      {"layer_types", layer_types_of(shape)},
  };
  if (shape.window > 0) {  // without, layer_types says that nobody has one
    config["sliding_window"] = shape.window;
  }
  write_rope(shape, config);
  if (shape.architecture == "gemma3_text" && shape.window > 0) {
    config["rope_local_base_freq"] = shape.window_rope_theta;
  }
  return config;
}

WeightNames gemma_names() {
  WeightNames names = llama_names();
  names.attention_added_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_added_norm = "post_feedforward_layernorm";
  return names;
}

TextFamily gemma_family(
    const char* model_type,
    const char* architecture,
    std::vector<std::string> own_keys,
    const json& own_sizes,
    TextShape (*reader)(const Keys& keys)) {
  json sizes = {
      {"num_hidden_layers", 26},
      {"hidden_size", 2304},
      {"num_attention_heads", 8},
      {"num_key_value_heads", 4},
      {"head_dim", 256},
      {"intermediate_size", 9216},
      {"sliding_window", 4096}};
  sizes.update(own_sizes);
  TextFamily family{
      .model_type = model_type,
      .architecture = architecture,
      .read_keys =
          {"num_hidden_layers",
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
           "hidden_activation",
           "attention_bias",
           "attention_dropout",
           "query_pre_attn_scalar",
           "tie_word_embeddings",
           "initializer_range",
           "pad_token_id",
           "final_logit_softcapping",
           "layer_types",
           "sliding_window"},
      .fixed_keys =
          {{"is_causal", "true", "attention in both directions is not implemented"},
           {"use_bidirectional_attention",
            "false",
            "attention in both directions is not implemented"},
           {"hidden_act", "\"gelu_pytorch_tanh\"", "the key of these models is hidden_activation"}},
      .sizes = std::move(sizes),
      .read = reader,
      .write = write_gemma,
      .names = gemma_names()};
  family.read_keys.insert(family.read_keys.end(), own_keys.begin(), own_keys.end());
  return family;
}

}  // namespace

TextFamily gemma2_family() {
  return gemma_family(
      "gemma2",
      "Gemma2ForCausalLM",
      {"attn_logit_softcapping"},
      {{"vocab_size", 256000}, {"max_position_embeddings", 8192}},
      read_gemma2);
}

TextFamily gemma3_family() {
  TextFamily family = gemma_family(
      "gemma3_text",
      "Gemma3ForCausalLM",
      {"rope_local_base_freq", "sliding_window_pattern"},
      {{"vocab_size", 262208}, {"max_position_embeddings", 131072}, {"sliding_window_pattern", 6}},
      read_gemma3);
  family.class_begins = "gemma3";
  family.fixed_keys.push_back(
      {"attn_logit_softcapping",
       "null",
       "attention of these models in transformers caps no scores"});
  return family;
}

}  // namespace paradyse
