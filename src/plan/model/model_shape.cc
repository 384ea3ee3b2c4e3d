#include "paradyse/plan/model_shape.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/plan/index.h"
#include "src/plan/base/sha256.h"
#include "src/plan/base/text_match.h"
#include "src/plan/model/families.h"

namespace paradyse {

using nlohmann::json;

namespace {

// Most parameters: what a double counts exactly, and 8 bytes each still fit an int64.
constexpr double kMostParameters = 9007199254740992.0;  // 2^53

const std::vector<Family>& families() {
  static const std::vector<Family> table = [] {
    std::vector<Family> all = llama_families();
    all.insert(all.end(), {gpt2_family(), opt_family(), bert_family()});
    return all;
  }();
  return table;
}

const Family& family_of(const Keys& keys) {
  std::vector<std::string> types;
  for (const Family& family : families()) {
    types.push_back(family.model_type);
  }
  const std::string type = keys.name(
      "model_type",
      "llama",
      types,
      R"(; of models of several dims, where they are taken, "stdit", "evoformer")");
  return families()[idx(std::find(types.begin(), types.end(), type) - types.begin())];
}

// What no family accepts otherwise.
constexpr std::array kFixedKeys = {
    FixedKey{"is_encoder_decoder", "false", "encoders with a decoder are not implemented"},
    FixedKey{"add_cross_attention", "false", "cross-attention is not implemented"},
    FixedKey{"cross_attention_hidden_size", "null", "cross-attention is not implemented"},
    FixedKey{"pruned_heads", "{}", "pruned heads are not implemented"},
    FixedKey{"per_layer_config", "{}", "layers that differ are not implemented"},
    FixedKey{
        "quantization_config", "null", "quantized weights are not implemented; dequantize them"},
    FixedKey{"auto_map", "null", "a model's own Python code is not run"},
};

// Parameters, counted in `Number`: std::int64_t for the count, double where it may be too large.
template <class Number>
Number parameters_in(const ModelShape& shape) {
  const auto number = [](std::int64_t size) { return static_cast<Number>(size); };
  const Number h = number(shape.hidden);
  const Number d = number(shape.head_dim);
  const Number q_rows = number(shape.heads) * d;
  const Number kv_rows = number(shape.kv_heads) * d;
  const Number ffn = number(shape.ffn);
  const Number inputs = number(shape.gated() ? 2 : 1);  // gate, up
  const Number norm = number(shape.layer_norm ? 2 : 1) * h;
  const Number attention = 2 * q_rows * h + 2 * kv_rows * h +  // q, o; k, v
                           number(shape.qkv_bias) * (q_rows + 2 * kv_rows) +
                           number(shape.out_bias) * h + number(shape.qk_norm) * 2 * d;
  const Number mlp = (inputs + 1) * ffn * h + number(shape.mlp_bias) * (inputs * ffn + h);
  const Number vocab = number(shape.vocab);
  const Number embedding = (vocab + number(shape.position_rows()) + number(shape.segments)) * h +
                           norm * number(shape.post_norm);
  const Number head = number(shape.tied ? 0 : 1) * vocab * h +
                      norm * number(shape.post_norm ? 0 : 1) +
                      number(shape.masked_lm) * (h * h + h + norm + vocab);
  return number(shape.layers) * (attention + mlp + 2 * norm) + embedding + head;
}

}  // namespace

std::int64_t ModelShape::parameters() const { return parameters_in<std::int64_t>(*this); }

Activation read_activation(const Keys& keys, const std::string& key, const std::string& absent) {
  const std::string name =
      keys.name(key, absent, {"gelu", "gelu_new", "gelu_pytorch_tanh", "relu"});
  return name == "gelu"   ? Activation::gelu
         : name == "relu" ? Activation::relu
                          : Activation::gelu_tanh;
}

std::string activation_name(Activation activation) {
  switch (activation) {
    case Activation::swiglu:
    case Activation::silu:
      return "silu";
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_new";
    case Activation::relu:
      return "relu";
  }
  throw std::logic_error("activation_name: unknown Activation");
}

json padding_of(const ModelShape& shape) {
  return shape.padding_id < 0 ? json(nullptr) : json(shape.padding_id);
}

void read_heads(
    const Keys& keys,
    const std::string& hidden,
    const std::string& heads,
    std::optional<std::int64_t> head_dim,
    ModelShape& shape) {
  shape.hidden = keys.size(hidden);
  shape.heads = keys.size(heads);
  shape.kv_heads = shape.heads;
  if (!head_dim && shape.hidden % shape.heads != 0) {
    throw std::invalid_argument(
        keys.where() + ": head_dim is missing; " + hidden + " = " + std::to_string(shape.hidden) +
        " is not divisible by " + heads + " = " + std::to_string(shape.heads) +
        ": say head_dim where the architecture has one, or correct a size");
  }
  shape.head_dim = head_dim.value_or(shape.hidden / shape.heads);
}

ModelShape model_shape_from_config(const json& config, const std::string& source) {
  if (!config.is_object()) {
    throw std::invalid_argument(
        source + ": is " + excerpt(config) +
        "; accepted is an object with the keys of a config.json");
  }
  const Keys keys(config, source);
  const Family& family = family_of(keys);
  std::vector<std::string> known = harmless_keys();
  known.insert(known.end(), {"model_type", "architectures"});
  known.insert(known.end(), family.read_keys.begin(), family.read_keys.end());
  std::vector<FixedKey> fixed(kFixedKeys.begin(), kFixedKeys.end());
  fixed.insert(fixed.end(), family.fixed_keys.begin(), family.fixed_keys.end());
  for (const FixedKey& key : fixed) {
    known.emplace_back(key.key);
  }
  keys.refuse_unknown(known);
  keys.expect(
      "architectures",
      json::array({family.architecture}),
      "that is what is implemented of model_type \"" + family.model_type + "\"");
  for (const FixedKey& key : fixed) {
    keys.expect(key.key, json::parse(key.accepted), key.instead);
  }
  const ModelShape shape = family.read(keys);
  const auto parameters = parameters_in<double>(shape);
  if (parameters > kMostParameters) {
    throw std::invalid_argument(
        source + ": the sizes make a model of " + json(parameters).dump() +
        " parameters; accepted are at most 2^53: one of the sizes has digits too many");
  }
  return shape;
}

json config_of(const ModelShape& shape) {
  for (const Family& family : families()) {
    if (family.model_type == shape.architecture) {
      json config = family.write(shape);
      config["model_type"] = family.model_type;
      config["architectures"] = json::array({family.architecture});
      return config;
    }
  }
  throw std::logic_error("config_of: unknown architecture '" + shape.architecture + "'");
}

ModelShape without_dropout(ModelShape shape) {
  shape.embedding_dropout = shape.residual_dropout = shape.attention_dropout = 0;
  return shape;
}

void expect_trainable(const ModelShape& shape) {
  if (shape.attention_dropout > 0) {
    throw std::invalid_argument(
        "the model asks for attention dropout " + json(shape.attention_dropout).dump() +
        ", which the attention kernels do not have: train without it by model.attention_dropout = "
        "0 "
        "in a run's configuration (or --set model.attention_dropout=0), or by grad "
        "--attention-dropout 0");
  }
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
  // What came later is said only where it is not as in a LLaMA: its name stays.
  const ModelShape plain;
  const auto add_flag = [&add](std::string_view name, bool value) {
    if (value) {
      add(name, "true");
    }
  };
  if (shape.rope_scaling != plain.rope_scaling) {
    const RopeScaling& rope = shape.rope_scaling;
    add("rope", std::to_string(static_cast<int>(rope.type)));
    add_real("factor", rope.factor);
    add("original_positions", std::to_string(rope.original_positions));
    add_real("low_freq_factor", rope.low_freq_factor);
    add_real("high_freq_factor", rope.high_freq_factor);
    add_real("beta_fast", rope.beta_fast);
    add_real("beta_slow", rope.beta_slow);
    add_real("attention_factor", rope.attention_factor);
    add_flag("truncate", rope.truncate);
  }
  if (shape.activation != plain.activation) {
    add("activation", activation_name(shape.activation));
  }
  add_flag("layer_norm", shape.layer_norm);
  add_flag("post_norm", shape.post_norm);
  add_flag("qk_norm", shape.qk_norm);
  add_flag("qkv_bias", shape.qkv_bias);
  add_flag("out_bias", shape.out_bias);
  add_flag("mlp_bias", shape.mlp_bias);
  add_flag("masked_lm", shape.masked_lm);
  if (shape.learned_positions) {
    add("positions", std::to_string(shape.max_positions));
    add("position_offset", std::to_string(shape.position_offset));
  }
  if (shape.segments > 0) {
    add("segments", std::to_string(shape.segments));
  }
  if (shape.padding_id >= 0) {
    add("padding_id", std::to_string(shape.padding_id));
  }
  return sha256_hex(text);
}

}  // namespace paradyse
