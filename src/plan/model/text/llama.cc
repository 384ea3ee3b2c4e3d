// LLaMA (Touvron et al. 2023) and its relatives: Mistral, with a window of attention; Qwen 2, with
// biases of queries, keys and values; Qwen 3, with norms of queries and keys; OLMo 2, with norms of
// all queries and all keys of a token, and of what attention and MLP add; and Phi-3, which stores
// q, k and v, and gate and up, as one tensor each.
//
// Layers of a Mistral or a Phi-3 all have the window, of a Qwen those that are listed, or the last.
#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "src/plan/model/text/text_families.h"

namespace paradyse {
namespace {

using nlohmann::json;

bool is_qwen(const std::string& architecture) { return architecture.starts_with("qwen"); }
bool has_windows(const std::string& architecture) {
  return architecture == "mistral" || architecture == "phi3" || is_qwen(architecture);
}
bool has_attention_bias(const std::string& architecture) {
  return architecture == "llama" || architecture == "qwen3" || architecture == "olmo2";
}

// Which layers have a window of attention, and which.
void read_windows(const Keys& keys, TextShape& shape) {
  const std::optional<std::vector<bool>> listed = read_windowed_layers(keys, shape.layers);
  const bool slides = listed && std::ranges::count(*listed, true) > 0;
  // Qwen writes a window that is switched off; of the others it is on where there is one.
  const bool qwen = is_qwen(shape.architecture);
  const json* said = keys.find("sliding_window");
  std::int64_t window = 0;
  if (said != nullptr && !is_off("sliding_window", *said)) {
    window = keys.size("sliding_window");
  } else if (!keys.says("sliding_window") && (qwen || shape.architecture == "mistral")) {
    window = 4096;
  }
  const bool switched_off =
      keys.find("use_sliding_window") == nullptr ? qwen : !keys.flag("use_sliding_window", false);
  if (switched_off && window > 0 && !qwen && has_windows(shape.architecture)) {
    keys.refuse(
        "use_sliding_window",
        "a \"" + shape.architecture +
            "\" of transformers does not read this key and keeps its window: say "
            "sliding_window = null for none");
  }
  if (switched_off) {
    window = 0;
  } else if (said != nullptr && window == 0 && has_windows(shape.architecture)) {
    keys.refuse("sliding_window", "for no window say null: 0 tokens attend to nothing");
  }
  if (window > 0 && !qwen && listed && !slides) {
    keys.refuse(
        "layer_types", "but there is a window in all layers: say sliding_window = null for none");
  }
  if (slides && window == 0) {
    keys.refuse("layer_types", "but there is no window: say sliding_window, or full_attention");
  }
  if (window > 0 && !has_windows(shape.architecture)) {
    keys.refuse(
        "sliding_window",
        "a \"" + shape.architecture +
            "\" of transformers has no windows: remove the key, or say another model_type");
  }
  std::vector<bool> windowed;
  if (qwen && listed) {
    windowed = *listed;
  } else if (qwen) {  // its first layers attend to all tokens
    const json* first = keys.find("max_window_layers");
    const std::int64_t full = !keys.says("max_window_layers") ? 28
                              : first == nullptr || is_off("max_window_layers", *first)
                                  ? 0
                                  : keys.size("max_window_layers");
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      windowed.push_back(layer >= full);
    }
  } else if (slides && std::ranges::count(*listed, false) > 0) {
    keys.refuse(
        "layer_types",
        "a \"" + shape.architecture + "\" of transformers has its window in all layers");
  }
  set_windows(shape, window, std::move(windowed));
  if (!shape.causal && shape.window > 0) {
    keys.refuse(
        "sliding_window",
        "windows of attention in both directions are not implemented for this model_type: set "
        "is_causal to true, or sliding_window to null");
  }
}

// Key and value heads: those published where the file does not say them and they fit; null is as
// many as heads.
std::int64_t kv_heads_of(const Keys& keys, const TextShape& shape) {
  const char* const key = "num_key_value_heads";
  const std::int64_t published = keys.published(key);
  const bool takes = !keys.says(key) && published > 0 && shape.heads % published == 0;
  return takes ? keys.size(key) : keys.size_or_absent(key).value_or(shape.heads);
}

// What transformers takes for a pad_token_id that is left out; -1: none.
std::int64_t absent_padding(const std::string& architecture) {
  return architecture == "olmo2" ? 1 : architecture == "phi3" ? 32000 : -1;
}

TextShape read_llama(const Keys& keys, const std::string& architecture) {
  TextShape shape;
  shape.architecture = architecture;
  shape.layers = keys.size("num_hidden_layers");
  // Qwen 3 has a width of its own, whatever the hidden one is.
  const auto head_dim = keys.published("head_dim") > 0 ? std::optional(keys.size("head_dim"))
                                                       : keys.size_or_absent("head_dim");
  read_heads(keys, "hidden_size", "num_attention_heads", head_dim, shape);
  if (shape.head_dim % 2 != 0) {
    throw std::invalid_argument(
        keys.where() + ": head_dim is " + std::to_string(shape.head_dim) +
        (head_dim ? "" : " (hidden_size / num_attention_heads)") +
        "; rotary embeddings rotate pairs: accepted is an even number");
  }
  shape.ffn = keys.size("intermediate_size");
  shape.vocab = keys.size("vocab_size");
  shape.kv_heads = kv_heads_of(keys, shape);
  if (shape.heads % shape.kv_heads != 0) {
    keys.refuse(
        "num_key_value_heads",
        "accepted is a divisor of num_attention_heads = " + std::to_string(shape.heads));
  }
  const json* positions = keys.find("max_position_embeddings");
  if (positions != nullptr && *positions != 0) {  // 0 is how a TextShape says "no limit"
    shape.max_positions = keys.size("max_position_embeddings");
  }
  const bool olmo2 = architecture == "olmo2";
  const bool phi3 = architecture == "phi3";
  shape.norm_eps = keys.positive("rms_norm_eps", olmo2 || phi3 ? 1e-5 : shape.norm_eps);
  read_rope(
      keys,
      shape,
      phi3 ? RopeKeys{.part = "partial_rotary_factor", .stretched = false} : RopeKeys{});
  static_cast<void>(keys.name("hidden_act", "silu", {"silu", "swish"}));  // one function
  const bool bias = has_attention_bias(architecture) && keys.flag("attention_bias", false);
  shape.qkv_bias = bias || architecture == "qwen2";
  shape.out_bias = bias;
  shape.mlp_bias = architecture == "llama" && keys.flag("mlp_bias", false);
  shape.qk_norm = architecture == "qwen3" || olmo2;
  shape.qk_norm_wide = shape.added_norm = olmo2;
  shape.tied = keys.flag("tie_word_embeddings", shape.tied);
  shape.causal = keys.flag("is_causal", shape.causal);
  shape.initializer_range = keys.positive("initializer_range", shape.initializer_range);
  shape.padding_id = keys.padding_id(absent_padding(architecture), shape.vocab);
  shape.attention_dropout = keys.probability("attention_dropout", 0.0);
  shape.residual_dropout = phi3 ? keys.probability("resid_pdrop", 0.0) : 0.0;
  read_windows(keys, shape);
  return shape;
}

json write_llama(const TextShape& shape) {
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
  if (has_attention_bias(shape.architecture)) {
    config["attention_bias"] = shape.out_bias;
  }
  if (shape.architecture == "phi3") {
    config["resid_pdrop"] = shape.residual_dropout;
    config["partial_rotary_factor"] = turned_part(shape);
  }
  if (shape.architecture == "llama") {
    config["mlp_bias"] = shape.mlp_bias;
    config["pretraining_tp"] = 1;
  }
  if (is_qwen(shape.architecture)) {
    config["use_sliding_window"] = shape.window > 0;
  }
  if (shape.window > 0) {
    config["sliding_window"] = shape.window;
    std::int64_t full = 0;  // layers before the first with the window
    for (; shape.window_of(full) == 0; ++full) {
    }
    config["max_window_layers"] = full;
    if (!shape.windowed.empty()) {
      config["layer_types"] = layer_types_of(shape);
    }
  } else if (shape.architecture == "mistral") {
    config["sliding_window"] = nullptr;
  }
  write_rope(shape, config);
  // Of some families leaving it out would say another.
  if (shape.padding_id >= 0 || absent_padding(shape.architecture) >= 0) {
    config["pad_token_id"] = padding_of(shape);
  }
  if (shape.max_positions != 0) {
    config["max_position_embeddings"] = shape.max_positions;
  }
  if (!shape.causal) {  // transformers 5 reads it and writes it only then
    config["is_causal"] = false;
  }
  return config;
}

}  // namespace

WeightNames llama_names() {
  WeightNames names;
  names.layers = "model.layers.";
  names.attention_norm = "input_layernorm";
  names.q = "self_attn.q_proj";
  names.k = "self_attn.k_proj";
  names.v = "self_attn.v_proj";
  names.o = "self_attn.o_proj";
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  names.mlp_norm = "post_attention_layernorm";
  names.gate = "mlp.gate_proj";
  names.up = "mlp.up_proj";
  names.down = "mlp.down_proj";
  names.tokens = "model.embed_tokens";
  names.last_norm = "model.norm";
  names.head = "lm_head";
  return names;
}

namespace {

WeightNames olmo2_names() {
  WeightNames names = llama_names();
  names.attention_norm = "post_attention_layernorm";
  names.mlp_norm = "post_feedforward_layernorm";
  return names;
}

WeightNames phi3_names() {
  WeightNames names = llama_names();
  names.q = names.k = names.v = "self_attn.qkv_proj";
  names.gate = names.up = "mlp.gate_up_proj";
  names.fused = true;
  return names;
}

TextFamily family(
    const std::string& model_type,
    const std::string& architecture,
    TextShape (*reader)(const Keys& keys),
    json sizes,
    WeightNames names = llama_names()) {
  TextFamily family{
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
                    "use_sliding_window",
                    "max_window_layers"},  // those before have none
      .fixed_keys =
          {{"rope_interleaved", "false", "interleaved rotary embeddings are not implemented"},
           {"attn_pdrop", "0.0", "these models have no such dropout; train with 0"},
           {"embd_pdrop", "0.0", "these models have no such dropout; train with 0"},
           {"hidden_dropout", "0.0", "these models have no such dropout; train with 0"}},
      .sizes = std::move(sizes),
      .read = reader,
      .write = write_llama,
      .names = std::move(names)};
  if (has_attention_bias(model_type)) {
    family.read_keys.emplace_back("attention_bias");
  }
  if (model_type == "phi3") {
    // Where a stretched rotation, which is refused, would begin.
    family.read_keys.emplace_back("original_max_position_embeddings");
    family.read_keys.insert(family.read_keys.end(), {"partial_rotary_factor", "resid_pdrop"});
  } else {
    family.fixed_keys.push_back(
        {"partial_rotary_factor", "1.0", "rotating a part of a head is not implemented"});
    family.fixed_keys.push_back(
        {"resid_pdrop", "0.0", "these models have no such dropout; train with 0"});
  }
  if (model_type == "llama") {
    family.read_keys.emplace_back("mlp_bias");
  }
  return family;
}

}  // namespace

std::vector<TextFamily> llama_families() {
  const auto sizes =
      [](std::int64_t ffn, std::int64_t vocab, std::int64_t positions, const json& others) {
        json all = {
            {"num_hidden_layers", 32},
            {"hidden_size", 4096},
            {"num_attention_heads", 32},
            {"intermediate_size", ffn},
            {"vocab_size", vocab},
            {"max_position_embeddings", positions}};  // for rotations that are stretched over them
        all.update(others);
        return all;
      };
  return {
      family(
          "llama",
          "LlamaForCausalLM",
          [](const Keys& keys) { return read_llama(keys, "llama"); },
          sizes(11008, 32000, 2048, json::object())),
      family(
          "mistral",
          "MistralForCausalLM",
          [](const Keys& keys) { return read_llama(keys, "mistral"); },
          sizes(14336, 32000, 131072, {{"num_key_value_heads", 8}})),
      family(
          "qwen2",
          "Qwen2ForCausalLM",
          [](const Keys& keys) { return read_llama(keys, "qwen2"); },
          sizes(22016, 151936, 32768, {{"num_key_value_heads", 32}})),
      family(
          "qwen3",
          "Qwen3ForCausalLM",
          [](const Keys& keys) { return read_llama(keys, "qwen3"); },
          sizes(22016, 151936, 32768, {{"num_key_value_heads", 32}, {"head_dim", 128}})),
      family(
          "olmo2",
          "Olmo2ForCausalLM",
          [](const Keys& keys) { return read_llama(keys, "olmo2"); },
          sizes(11008, 50304, 2048, json::object()),
          olmo2_names()),
      family(
          "phi3",
          "Phi3ForCausalLM",
          [](const Keys& keys) { return read_llama(keys, "phi3"); },
          sizes(8192, 32064, 4096, {{"hidden_size", 3072}}),
          phi3_names())};
}

}  // namespace paradyse
