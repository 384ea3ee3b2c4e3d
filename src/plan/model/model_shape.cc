#include "paradyse/model_shape.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/sha256.h"
#include "paradyse/text_match.h"

namespace paradyse {

namespace {

using nlohmann::json;

// Widest size: token ids and ranks' indices are 32 bits.
constexpr std::int64_t kLargestSize = std::numeric_limits<std::int32_t>::max();
// Most parameters: what a double counts exactly, and 8 bytes each still fit an int64.
constexpr double kMostParameters = 9007199254740992.0;  // 2^53

// Keys that become a field of ModelShape.
constexpr std::array kReadKeys = {
    "architectures",     "model_type",          "hidden_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim",          "intermediate_size",   "vocab_size",
    "rms_norm_eps",      "rope_theta",          "max_position_embeddings",
    "rope_parameters",   "is_causal",           "tie_word_embeddings",
    "initializer_range", "hidden_act",          "layer_types",
    "sliding_window",    "use_sliding_window",
};

// A key that may only say what this program does anyway; null says nothing and is always accepted.
struct FixedKey {
  const char* key;
  const char* accepted;  // JSON
  const char* instead;   // what another value asks for
};
constexpr std::array kFixedKeys = {
    FixedKey{"rope_scaling", "null", "scaled rotary embeddings are not implemented"},
    FixedKey{"partial_rotary_factor", "1.0", "rotating a part of a head is not implemented"},
    FixedKey{"rope_interleaved", "false", "interleaved rotary embeddings are not implemented"},
    FixedKey{"attention_bias", "false", "biases are not implemented"},
    FixedKey{"mlp_bias", "false", "biases are not implemented"},
    FixedKey{"attention_dropout", "0.0", "dropout is not implemented; train with 0"},
    FixedKey{"attn_pdrop", "0.0", "dropout is not implemented; train with 0"},
    FixedKey{"embd_pdrop", "0.0", "dropout is not implemented; train with 0"},
    FixedKey{"resid_pdrop", "0.0", "dropout is not implemented; train with 0"},
    FixedKey{"hidden_dropout", "0.0", "dropout is not implemented; train with 0"},
    FixedKey{"pretraining_tp", "1", "the degrees of parallelism are the planner's to choose"},
    FixedKey{"is_encoder_decoder", "false", "only decoders are implemented"},
    FixedKey{"add_cross_attention", "false", "cross-attention is not implemented"},
    FixedKey{"cross_attention_hidden_size", "null", "cross-attention is not implemented"},
    FixedKey{"pruned_heads", "{}", "pruned heads are not implemented"},
    FixedKey{"per_layer_config", "{}", "layers that differ are not implemented"},
    FixedKey{
        "quantization_config", "null", "quantized weights are not implemented; dequantize them"},
    FixedKey{"auto_map", "null", "a model's own Python code is not run"},
};

// Keys that leave the loss and its gradients as they are: names, tokens of the tokenizer, how
// weights are stored, what a call returns, how text is sampled, heads for other tasks.  Collected
// from LlamaConfig().to_dict() and GenerationConfig().to_dict() of transformers 4.57.6 and 5.23.0,
// and from published LLaMA-like models.
constexpr std::array kHarmlessKeys = {
    // who wrote it, what for
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "transformers_version",
    "finetuning_task",
    "task_specific_params",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "is_llama_config",
    "transformers.js_config",
    "unsloth_version",
    "unsloth_fixed",
    // the tokenizer
    "tokenizer_class",
    "prefix",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "max_sequence_length",
    // how it is stored and computed
    "dtype",
    "torch_dtype",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "use_cache",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "experts_implementation",
    "gradient_checkpointing",
    "chunk_size_feed_forward",
    // what a call returns
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "use_return_dict",
    "tie_last_hidden_states",
    // read by encoder-decoders only
    "is_decoder",
    "tie_encoder_decoder",
    // sampling
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_config",
    "cache_implementation",
    "constraints",
    "diversity_penalty",
    "do_sample",
    "dola_layers",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "force_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "length_penalty",
    "low_memory",
    "max_length",
    "max_matching_ngram_size",
    "max_new_tokens",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_logits",
    "output_scores",
    "penalty_alpha",
    "prompt_lookup_num_tokens",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "return_dict_in_generate",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "target_lookbehind",
    "temperature",
    "token_healing",
    "top_h",
    "top_k",
    "top_p",
    "typical_p",
    "watermarking_config",
};

// One object of a config file, read key by key.
class Keys {
 public:
  Keys(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // The key's value, or nullptr when it is absent or null (transformers writes "default" so).
  [[nodiscard]] const json* find(const std::string& key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void refuse(const std::string& key, const std::string& accepted) const {
    const json* value = find(key);
    throw std::invalid_argument(
        where_ + ": " + key + " is " + (value == nullptr ? "missing" : excerpt(*value)) + "; " +
        accepted);
  }

  [[nodiscard]] std::int64_t size(const std::string& key) const {
    const auto size = size_or_absent(key);
    if (!size) {
      refuse(key, kPositive);
    }
    return *size;
  }

  [[nodiscard]] std::optional<std::int64_t> size_or_absent(const std::string& key) const {
    const json* value = find(key);
    if (value == nullptr) {
      return std::nullopt;
    }
    // Compared as unsigned: a number over 2^63 would wrap to a negative one.
    if (!value->is_number_unsigned() && !(value->is_number_integer() && *value > 0)) {
      refuse(key, kPositive);
    }
    const auto size = value->get<std::uint64_t>();
    if (size == 0 || size > static_cast<std::uint64_t>(kLargestSize)) {
      refuse(key, kPositive);
    }
    return static_cast<std::int64_t>(size);
  }

  [[nodiscard]] double positive(const std::string& key, double absent) const {
    const json* value = find(key);
    if (value == nullptr) {
      return absent;
    }
    if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() <= 0) {
      refuse(key, "accepted is a positive number; leave it out for " + json(absent).dump());
    }
    return value->get<double>();
  }

  [[nodiscard]] bool flag(const std::string& key, bool absent) const {
    const json* value = find(key);
    if (value == nullptr) {
      return absent;
    }
    if (!value->is_boolean()) {
      refuse(key, "accepted is true or false");
    }
    return value->get<bool>();
  }

  // Throws unless the key is absent, null or one of `accepted`.
  void expect(const std::string& key, const json& accepted, const std::string& instead) const {
    const json* value = find(key);
    if (value != nullptr && *value != accepted) {
      refuse(key, "accepted is " + accepted.dump() + ": " + instead);
    }
  }

 private:
  static constexpr const char* kPositive = "accepted is a whole number from 1 to 2147483647";

  const json& object_;
  std::string where_;
};

void refuse_unknown(
    const json& object, const std::string& where, const std::vector<std::string>& known) {
  for (const auto& [key, unused] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw std::invalid_argument(
          where + ": key " + excerpt(key) + " is not known" + did_you_mean(key, known) +
          "; it might change the mathematics of the model: correct it, or remove it if it does "
          "not");
    }
  }
}

std::vector<std::string> known_keys() {
  std::vector<std::string> known(kReadKeys.begin(), kReadKeys.end());
  for (const FixedKey& fixed : kFixedKeys) {
    known.emplace_back(fixed.key);
  }
  known.insert(known.end(), kHarmlessKeys.begin(), kHarmlessKeys.end());
  return known;
}

// transformers 4 says rope_theta at the top, 5 in rope_parameters; a file that says both must
// agree.
double rope_theta_of(const Keys& keys, const std::string& source) {
  constexpr double kDefault = 10000.0;
  const double theta = keys.positive("rope_theta", kDefault);
  const json* parameters = keys.find("rope_parameters");
  if (parameters == nullptr) {
    return theta;
  }
  if (!parameters->is_object()) {
    keys.refuse("rope_parameters", "accepted is an object with rope_theta");
  }
  const std::string where = source + ": rope_parameters";
  refuse_unknown(*parameters, where, {"rope_theta", "rope_type", "type", "partial_rotary_factor"});
  const Keys inner(*parameters, where);
  const char* const scaled = "scaled rotary embeddings are not implemented";
  inner.expect("rope_type", "default", scaled);
  inner.expect("type", "default", scaled);
  inner.expect("partial_rotary_factor", 1.0, "rotating a part of a head is not implemented");
  const double inner_theta = inner.positive("rope_theta", theta);
  if (keys.find("rope_theta") != nullptr && inner_theta != theta) {
    keys.refuse(
        "rope_theta",
        "but rope_parameters says " + json(inner_theta).dump() + ": remove the one that is wrong");
  }
  return inner_theta;
}

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

// Parameters, counted in `Number`: std::int64_t for the count, double where it may be too large.
template <class Number>
Number parameters_in(const ModelShape& shape) {
  const auto h = static_cast<Number>(shape.hidden);
  const auto d = static_cast<Number>(shape.head_dim);
  const Number q_rows = static_cast<Number>(shape.heads) * d;
  const Number kv_rows = static_cast<Number>(shape.kv_heads) * d;
  const Number attention = 2 * q_rows * h + 2 * kv_rows * h;  // q, o; k, v
  const Number mlp = 3 * static_cast<Number>(shape.ffn) * h;  // gate, up, down
  const Number norms = 2 * h;
  const Number embedding = static_cast<Number>(shape.vocab) * h;
  return static_cast<Number>(shape.layers) * (attention + mlp + norms) +
         (shape.tied ? 1 : 2) * embedding + h;  // h: the last norm
}

}  // namespace

std::int64_t ModelShape::parameters() const { return parameters_in<std::int64_t>(*this); }

ModelShape model_shape_from_config(const json& config, const std::string& source) {
  if (!config.is_object()) {
    throw std::invalid_argument(
        source + ": is " + excerpt(config) +
        "; accepted is an object with the keys of a config.json");
  }
  refuse_unknown(config, source, known_keys());
  const Keys keys(config, source);
  const char* const only_llama = "only LLaMA is implemented";
  keys.expect("model_type", "llama", only_llama);
  keys.expect("architectures", json::array({"LlamaForCausalLM"}), only_llama);
  for (const FixedKey& fixed : kFixedKeys) {
    keys.expect(fixed.key, json::parse(fixed.accepted), fixed.instead);
  }
  const json* activation = keys.find("hidden_act");
  if (activation != nullptr && *activation != "silu" && *activation != "swish") {
    keys.refuse("hidden_act", "accepted is \"silu\", or its other name \"swish\"");
  }

  ModelShape shape;
  shape.layers = keys.size("num_hidden_layers");
  shape.hidden = keys.size("hidden_size");
  shape.heads = keys.size("num_attention_heads");
  shape.ffn = keys.size("intermediate_size");
  shape.vocab = keys.size("vocab_size");
  shape.kv_heads = keys.size_or_absent("num_key_value_heads").value_or(shape.heads);
  if (shape.heads % shape.kv_heads != 0) {
    keys.refuse(
        "num_key_value_heads",
        "accepted is a divisor of num_attention_heads = " + std::to_string(shape.heads));
  }
  const auto head_dim = keys.size_or_absent("head_dim");
  if (!head_dim && shape.hidden % shape.heads != 0) {
    keys.refuse(
        "head_dim",
        "hidden_size = " + std::to_string(shape.hidden) + " is not divisible by " +
            "num_attention_heads = " + std::to_string(shape.heads) + ": say head_dim");
  }
  shape.head_dim = head_dim.value_or(shape.hidden / shape.heads);
  if (shape.head_dim % 2 != 0) {
    throw std::invalid_argument(
        source + ": head_dim is " + std::to_string(shape.head_dim) +
        (head_dim ? "" : " (hidden_size / num_attention_heads)") +
        "; rotary embeddings turn pairs: accepted is an even number");
  }
  const json* positions = keys.find("max_position_embeddings");
  if (positions != nullptr && *positions != 0) {  // 0 is how a ModelShape says "no limit"
    shape.max_positions = keys.size("max_position_embeddings");
  }
  shape.norm_eps = keys.positive("rms_norm_eps", shape.norm_eps);
  shape.rope_theta = rope_theta_of(keys, source);
  shape.tied = keys.flag("tie_word_embeddings", shape.tied);
  shape.causal = keys.flag("is_causal", shape.causal);
  shape.initializer_range = keys.positive("initializer_range", shape.initializer_range);
  expect_full_attention(keys, shape.layers);

  const auto parameters = parameters_in<double>(shape);
  if (parameters > kMostParameters) {
    throw std::invalid_argument(
        source + ": the sizes make a model of " + json(parameters).dump() +
        " parameters; accepted are at most 2^53: one of the sizes has digits too many");
  }
  return shape;
}

json config_of(const ModelShape& shape) {
  // rope_theta stands at the top, as transformers 4 writes it: version 5 reads it there too, but
  // version 4 would silently ignore rope_parameters.
  json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", shape.architecture},
      {"num_hidden_layers", shape.layers},
      {"hidden_size", shape.hidden},
      {"num_attention_heads", shape.heads},
      {"num_key_value_heads", shape.kv_heads},
      {"head_dim", shape.head_dim},
      {"intermediate_size", shape.ffn},
      {"vocab_size", shape.vocab},
      {"rms_norm_eps", shape.norm_eps},
      {"rope_theta", shape.rope_theta},
      {"rope_scaling", nullptr},
      {"tie_word_embeddings", shape.tied},
      {"initializer_range", shape.initializer_range},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"mlp_bias", false},
      {"pretraining_tp", 1},
  };
  if (shape.max_positions != 0) {
    config["max_position_embeddings"] = shape.max_positions;
  }
  if (!shape.causal) {  // transformers 5 reads it and writes it only then
    config["is_causal"] = false;
  }
  return config;
}

std::string fingerprint(const ModelShape& shape) {
  std::string text;
  const auto add = [&text](std::string_view name, std::string_view value) {
    text.append(name).append("=").append(value).append("\n");
  };
  const auto add_real = [&add](std::string_view name, double value) {
    std::array<char, 32> digits{};
    // hexadecimal: exact, and the same whatever the locale
    const auto end =
        std::to_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::hex);
    add(name, {digits.data(), end.ptr});
  };
  add("architecture", shape.architecture);
  add("layers", std::to_string(shape.layers));
  add("hidden", std::to_string(shape.hidden));
  add("heads", std::to_string(shape.heads));
  add("kv_heads", std::to_string(shape.kv_heads));
  add("head_dim", std::to_string(shape.head_dim));
  add("ffn", std::to_string(shape.ffn));
  add("vocab", std::to_string(shape.vocab));
  add_real("norm_eps", shape.norm_eps);
  add_real("rope_theta", shape.rope_theta);
  add("tied", shape.tied ? "true" : "false");
  add("causal", shape.causal ? "true" : "false");
  return sha256_hex(text);
}

}  // namespace paradyse
