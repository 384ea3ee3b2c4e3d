// ModernBERT (Warner et al. 2024) with the head of its masked language model: LayerNorms before
// each part, without biases, and none before the first layer's attention, since the embedding has
// one; a GeGLU; rotation; and windows of attention to both sides in all layers but every third,
// which turn by another base.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/plan/model/text/text_families.h"

namespace paradyse {
namespace {

using nlohmann::json;

constexpr double kTheta = 160000;
constexpr double kWindowTheta = 10000;
constexpr std::int64_t kFullEvery = 3;

// The first layer of every `period` attends to all tokens.
std::vector<bool> all_but_first_of(std::int64_t period) {
  std::vector<bool> windowed(static_cast<std::size_t>(period), true);
  windowed.front() = false;
  return windowed;
}

bool repeats(const std::vector<bool>& layers, const std::vector<bool>& period) {
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer] != period[layer % period.size()]) {
      return false;
    }
  }
  return true;
}

// The layers as a period of them where one layer of each has no window, else as they are.
std::vector<bool> as_period(std::vector<bool> layers) {
  const auto count = static_cast<std::int64_t>(layers.size());
  if (std::vector<bool> usual = all_but_first_of(kFullEvery); repeats(layers, usual)) {
    return usual;
  }
  for (std::int64_t period = 1; period <= count; ++period) {
    if (std::vector<bool> fits = all_but_first_of(period); repeats(layers, fits)) {
      return fits;
    }
  }
  return layers;
}

// transformers 4 says global_attn_every_n_layers, 5 layer_types, perhaps beside it.
void read_both_sided_windows(const Keys& keys, TextShape& shape) {
  const char* const every = "global_attn_every_n_layers";
  const auto said = keys.size_or_absent(every);
  std::vector<bool> windowed =
      all_but_first_of(std::min(said.value_or(kFullEvery), std::max(shape.layers, kFullEvery)));
  if (auto listed = read_windowed_layers(keys, shape.layers)) {
    if (said && !repeats(*listed, windowed)) {
      keys.refuse(every, "but layer_types differs: remove the one that is wrong");
    }
    windowed = said ? std::move(windowed) : as_period(std::move(*listed));
  }
  // So many tokens are seen to both sides together; the middle one is the query's own.
  set_windows(shape, keys.size("local_attention") / 2 + 1, std::move(windowed));
}

// Of layers of one kind: transformers 4 says it at the top, 5 in rope_parameters.
double theta_of(const Keys& keys, const char* kind, const std::string& top, double absent) {
  const double theta = keys.positive(top, absent);
  const json* parameters = keys.find("rope_parameters");
  if (parameters == nullptr) {
    return theta;
  }
  const auto found = parameters->find(kind);
  const bool said_here = found != parameters->end() && !found->is_null();
  if (!parameters->is_object() || (said_here && !found->is_object())) {
    keys.refuse(
        "rope_parameters",
        "accepted is an object with full_attention and sliding_attention, each with rope_theta");
  }
  Keys(*parameters, keys.where() + ": rope_parameters")
      .refuse_unknown({"full_attention", "sliding_attention"});
  if (!said_here) {
    return theta;
  }
  const Keys inner(*found, keys.where() + ": rope_parameters." + kind);
  inner.refuse_unknown({"rope_type", "rope_theta"});
  static_cast<void>(inner.name(
      "rope_type", "default", {"default"}, ": stretched RoPE of these models is not implemented"));
  const double said = inner.positive("rope_theta", theta);
  if (keys.find(top) != nullptr && said != theta) {
    keys.refuse(
        top, "but rope_parameters says " + json(said).dump() + ": remove the one that is wrong");
  }
  return said;
}

Activation gated_of(const Keys& keys) {
  switch (read_activation(keys, "hidden_activation", "gelu")) {
    case Activation::gelu:
      return Activation::geglu_exact;
    case Activation::gelu_tanh:
      return Activation::geglu;
    case Activation::silu:
      return Activation::swiglu;
    default:
      keys.refuse("hidden_activation", "accepted is a GELU or \"silu\": the MLP has a gate");
  }
}

TextShape read_modernbert(const Keys& keys) {
  TextShape shape;
  shape.architecture = "modernbert";
  shape.layers = keys.size("num_hidden_layers");
  read_heads(keys, "hidden_size", "num_attention_heads", std::nullopt, shape);
  if (shape.head_dim % 2 != 0) {
    keys.refuse(
        "num_attention_heads",
        "which makes heads of " + std::to_string(shape.head_dim) +
            " columns: rotary embeddings turn pairs, accepted is a number that makes them even");
  }
  shape.ffn = keys.size("intermediate_size");
  shape.vocab = keys.size("vocab_size");
  shape.causal = false;
  shape.masked_lm = true;
  shape.max_positions = keys.size("max_position_embeddings");
  shape.norm_eps = keys.positive("norm_eps", 1e-5);
  if (keys.positive("layer_norm_eps", shape.norm_eps) != shape.norm_eps) {  // of published models
    keys.refuse(
        "layer_norm_eps",
        "but transformers reads norm_eps, which is " + json(shape.norm_eps).dump() +
            ": remove the one that is wrong");
  }
  shape.layer_norm = shape.normed_embedding = true;
  shape.norm_bias = keys.flag("norm_bias", false);
  shape.activation = gated_of(keys);
  shape.transform_activation = read_activation(keys, "classifier_activation", "gelu");
  shape.qkv_bias = shape.out_bias = keys.flag("attention_bias", false);
  shape.mlp_bias = keys.flag("mlp_bias", false);
  shape.transform_bias = keys.flag("classifier_bias", false);
  shape.head_bias = keys.flag("decoder_bias", true);
  shape.tied = keys.flag("tie_word_embeddings", true);
  shape.initializer_range = keys.positive("initializer_range", shape.initializer_range);
  shape.scaled_outputs = shape.truncated_start = true;
  if (keys.says("initializer_cutoff_factor") &&
      keys.positive("initializer_cutoff_factor", 3) != 2) {
    keys.refuse("initializer_cutoff_factor", "accepted is 2; to transformers null is 3");
  }
  shape.padding_id = keys.padding_id(50283, shape.vocab);
  shape.embedding_dropout = keys.probability("embedding_dropout", 0.0);
  shape.attention_dropout = keys.probability("attention_dropout", 0.0);
  if (shape.attention_dropout > 0) {
    shape.attention_output_dropout = shape.attention_dropout;
  }
  shape.rope_theta = theta_of(keys, "full_attention", "global_rope_theta", kTheta);
  read_both_sided_windows(keys, shape);
  const double theta = theta_of(keys, "sliding_attention", "local_rope_theta", kWindowTheta);
  shape.window_rope_theta = shape.window > 0 ? theta : 0;
  return shape;
}

json write_modernbert(const TextShape& shape) {
  const Activation activation = shape.activation;
  json config = {
      {"num_hidden_layers", shape.layers},
      {"hidden_size", shape.hidden},
      {"num_attention_heads", shape.heads},
      {"intermediate_size", shape.ffn},
      {"vocab_size", shape.vocab},
      {"max_position_embeddings", shape.max_positions},
      {"norm_eps", shape.norm_eps},
      {"norm_bias", shape.norm_bias},
      {"hidden_activation", activation_name(activation)},
      {"classifier_activation",
       activation_name(shape.transform_activation.value_or(Activation::gelu))},
      {"attention_bias", shape.out_bias},
      {"mlp_bias", shape.mlp_bias},
      {"classifier_bias", shape.transform_bias},
      {"decoder_bias", shape.head_bias},
      {"tie_word_embeddings", shape.tied},
      {"initializer_range", shape.initializer_range},
      {"initializer_cutoff_factor", 2.0},
      {"pad_token_id", padding_of(shape)},
      {"embedding_dropout", shape.embedding_dropout},
      {"attention_dropout", shape.attention_dropout},
      {"mlp_dropout", 0.0},
      {"global_rope_theta", shape.rope_theta},
  };
  const std::vector<bool>& windowed = shape.windowed;
  if (shape.window == 0) {
    config["global_attn_every_n_layers"] = 1;
    return config;
  }
  config["local_attention"] = shape.window == 1 ? 1 : 2 * (shape.window - 1);
  config["local_rope_theta"] = shape.window_rope_theta;
  if (!windowed.empty() &&
      windowed == all_but_first_of(static_cast<std::int64_t>(windowed.size()))) {
    config["global_attn_every_n_layers"] = windowed.size();
  } else {
    config["layer_types"] = layer_types_of(shape);
  }
  return config;
}

WeightNames modernbert_names() {
  WeightNames names;
  names.layers = "model.layers.";
  names.attention_norm = "attn_norm";
  names.q = names.k = names.v = "attn.Wqkv";
  names.o = "attn.Wo";
  names.mlp_norm = "mlp_norm";
  names.gate = names.up = "mlp.Wi";
  names.down = "mlp.Wo";
  names.tokens = "model.embeddings.tok_embeddings";
  names.embedding_norm = "model.embeddings.norm";
  names.last_norm = "model.final_norm";
  names.transform = "head.dense";
  names.transform_norm = "head.norm";
  names.head = "decoder";
  names.head_bias = "decoder.bias";
  names.fused = true;
  names.first_norm = false;
  return names;
}

}  // namespace

TextFamily modernbert_family() {
  return {
      .model_type = "modernbert",
      .architecture = "ModernBertForMaskedLM",
      .read_keys =
          {"num_hidden_layers",
           "hidden_size",
           "num_attention_heads",
           "intermediate_size",
           "vocab_size",
           "max_position_embeddings",
           "norm_eps",
           "layer_norm_eps",
           "norm_bias",
           "hidden_activation",
           "classifier_activation",
           "attention_bias",
           "mlp_bias",
           "classifier_bias",
           "decoder_bias",
           "tie_word_embeddings",
           "initializer_range",
           "initializer_cutoff_factor",
           "pad_token_id",
           "embedding_dropout",
           "attention_dropout",
           "local_attention",
           "global_attn_every_n_layers",
           "layer_types",
           "global_rope_theta",
           "local_rope_theta",
           "rope_parameters",
           // These change neither the loss nor its gradients.
           "sparse_prediction",
           "deterministic_flash_attn",
           "reference_compile",
           "repad_logits_with_grad"},
      .fixed_keys =
          {{"mlp_dropout", "0.0", "dropout inside an MLP is not implemented"},
           {"rope_scaling", "null", "stretched RoPE of these models is not implemented"},
           {"sparse_pred_ignore_index", "-100", "labels that do not count are -100"},
           {"position_embedding_type", "\"absolute\"", "transformers does not read this key"}},
      .sizes =
          {{"num_hidden_layers", 22},
           {"hidden_size", 768},
           {"num_attention_heads", 12},
           {"intermediate_size", 1152},
           {"vocab_size", 50368},
           {"max_position_embeddings", 8192},
           {"local_attention", 128}},
      .read = read_modernbert,
      .write = write_modernbert,
      .names = modernbert_names()};
}

}  // namespace paradyse
