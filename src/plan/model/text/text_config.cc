#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/sha256.h"
#include "src/plan/base/text_match.h"
#include "src/plan/model/families.h"
#include "src/plan/model/text/text_families.h"
#include "src/plan/model/text/text_shape.h"

namespace paradyse {

using nlohmann::json;

namespace {

// Most parameters: what a double counts exactly, and 8 bytes each still fit an int64.
constexpr double kMostParameters = 9007199254740992.0;  // 2^53

const std::vector<TextFamily>& families() {
  static const std::vector<TextFamily> table = [] {
    std::vector<TextFamily> all = llama_families();
    all.insert(
        all.end(),
        {gemma2_family(),
         gemma3_family(),
         gpt2_family(),
         gpt_neox_family(),
         opt_family(),
         bert_family(),
         roberta_family(),
         distilbert_family(),
         modernbert_family()});
    return all;
  }();
  return table;
}

// Families that are not implemented, by their names.
struct Foreign {
  const char* types;  // with a space between two
  const char* why;
  const char* nearest;
};
constexpr const char* kExperts = "its layers are mixtures of experts";
constexpr const char* kEncoderDecoder = "it is an encoder with a decoder";
constexpr const char* kBesideText =
    "it reads more than text; a language model inside it may be supported";
constexpr const char* kParallel = "its attention and MLP are parallel";
constexpr const char* kNoAttention = "not all of its layers are attention alone";
constexpr const char* kPartOfHead = "it rotates a part of each head";
constexpr std::array kForeign = {
    Foreign{"albert", "its layers share their weights", "bert"},
    Foreign{"baichuan", "its queries, keys and values are one fused tensor", "llama"},
    Foreign{"bart mbart pegasus marian m2m_100 led blenderbot", kEncoderDecoder, "bert"},
    Foreign{"t5 mt5 umt5 longt5 t5gemma switch_transformers", kEncoderDecoder, "bert"},
    Foreign{"bloom mpt", "its positions are biases of attention (ALiBi)", "gpt2"},
    Foreign{"camembert xlm-roberta", "it is a RoBERTa: write that as its model_type", "roberta"},
    Foreign{"chatglm glm glm4", kPartOfHead, "llama"},
    Foreign{"codegen gptj", kParallel, "gpt2"},
    Foreign{"cohere cohere2 falcon phi phi-msft RefinedWeb RefinedWebModel", kParallel, "llama"},
    Foreign{"dbrx deepseek glm4_moe llama4 llama4_text phimoe", kExperts, "llama"},
    Foreign{"deberta deberta-v2", "its position embeddings are relative", "bert"},
    Foreign{
        "deepseek_v2 deepseek_v3",
        "its attention is latent and its layers are mixtures of experts",
        "llama"},
    Foreign{"electra", "its embedding has a width of its own", "bert"},
    Foreign{
        "falcon_h1 falcon_mamba jamba bamba mamba mamba2 nemotron_h phi4flash recurrent_gemma rwkv "
        "zamba zamba2",
        kNoAttention,
        "llama"},
    Foreign{"gemma", "it has no norms of what its parts add", "gemma2"},
    Foreign{"gemma3 gemma4", kBesideText, "gemma3_text"},
    Foreign{"gemma3n gemma3n_text", "its layers have several streams", "gemma3_text"},
    Foreign{"gpt_bigcode", "its heads share one key and one value head", "gpt2"},
    Foreign{"gpt_neo", "every second layer has a window of attention", "gpt2"},
    Foreign{"gpt_neox_japanese", "its biases are not where GPT-NeoX has them", "gpt_neox"},
    Foreign{"gpt_oss qwen3_moe", kExperts, "qwen3"},
    Foreign{
        "granite granitemoe granitemoeshared granitemoehybrid",
        "it multiplies embeddings, residuals and logits by factors",
        "llama"},
    Foreign{"internlm2", "its weights have other names", "llama"},
    Foreign{"llava llava_next llava_next_video llava_onevision mllama", kBesideText, "llama"},
    Foreign{"minicpm minicpm3", "it multiplies embeddings and residuals by factors", "llama"},
    Foreign{"ministral", "its layers differ in their windows", "mistral"},
    Foreign{"ministral3 mistral4", "it scales queries by their positions", "mistral"},
    Foreign{"mistral3", kBesideText, "mistral"},
    Foreign{"mixtral", kExperts, "mistral"},
    Foreign{"nemotron", "its MLP squares a ReLU", "llama"},
    Foreign{"olmo", "its norms have no weights", "olmo2"},
    Foreign{"olmo3", "its layers differ in their windows", "olmo2"},
    Foreign{"olmo_hybrid", kNoAttention, "olmo2"},
    Foreign{"olmoe", kExperts, "olmo2"},
    Foreign{"openai-gpt", "its layers are post-norm", "gpt2"},
    Foreign{"persimmon stablelm stablelm_epoch", kPartOfHead, "llama"},
    Foreign{"phi3_v phi4mm phi4_multimodal", kBesideText, "phi3"},
    Foreign{"qwen", "its weights have other names (it is the first Qwen)", "qwen2"},
    Foreign{"qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_vl", kBesideText, "qwen2"},
    Foreign{"qwen2_moe", kExperts, "qwen2"},
    Foreign{"qwen3_5 qwen3_omni_moe qwen3_vl qwen3_vl_moe", kBesideText, "qwen3"},
    Foreign{"qwen3_5_text qwen3_5_moe_text qwen3_next", kNoAttention, "qwen3"},
    Foreign{"roberta-prelayernorm xlm-roberta-xl", "its norms come before each part", "roberta"},
    Foreign{"smollm3", "some of its layers do not rotate", "llama"},
    Foreign{"starcoder2", "its norms are LayerNorms and its MLP has no gate", "llama"},
};

// The one that has the type among its names, or nullptr.
const Foreign* foreign_of(const std::string& type) {
  const auto named = [&](const Foreign& one) {
    const std::string types = std::string(" ") + one.types + " ";
    return types.find(" " + type + " ") != std::string::npos;
  };
  const auto* const found = std::ranges::find_if(kForeign, named);
  const bool one_word = !type.empty() && type.find(' ') == std::string::npos;
  return one_word && found != kForeign.end() ? found : nullptr;
}

// What a class is called behind its family's name: "ForCausalLM" of "LlamaForCausalLM".
constexpr const char* kClassEnds[] = {"For", "Model", "LMHeadModel", "DoubleHeadsModel"};

// Whether the class is one of the family, in any spelling: "LLaMAForCausalLM",
// "BertForPreTraining". transformers goes by model_type, and the weights say what the model is for.
bool of_family(const std::string& architecture, const TextFamily& family) {
  std::string own = family.class_begins.empty() ? family.model_type : family.class_begins;
  std::erase(own, '_');
  const auto same = [](char a, char b) { return std::tolower(a) == b; };
  if (architecture.size() < own.size() ||
      !std::equal(own.begin(), own.end(), architecture.begin(), [&](char b, char a) {
        return same(a, b);
      })) {
    return false;
  }
  const std::string rest = architecture.substr(own.size());
  return std::any_of(std::begin(kClassEnds), std::end(kClassEnds), [&](const char* end) {
    return end == std::string("For") ? rest.starts_with(end) : rest == end;
  });
}

// Of the classes that the configuration names, where it names no model_type.
const TextFamily* family_by_class(const Keys& keys) {
  const json* classes = keys.find("architectures");
  for (const TextFamily& family : families()) {
    if (classes != nullptr && classes->is_array() && !classes->empty() &&
        classes->front().is_string() && of_family(classes->front().get<std::string>(), family)) {
      return &family;
    }
  }
  return nullptr;
}

const TextFamily& family_of(const Keys& keys) {
  const json* said = keys.find("model_type");
  std::string names;
  for (const TextFamily& family : families()) {
    if (said == nullptr ? family_by_class(keys) == &family : *said == family.model_type) {
      return family;
    }
    names += json(family.model_type).dump() + ", ";
  }
  if (said == nullptr) {
    return families().front();
  }
  const std::string type = said->is_string() ? said->get<std::string>() : "";
  const Foreign* const foreign = foreign_of(type);
  keys.refuse(
      "model_type",
      (foreign == nullptr ? ""
                          : "that family is not implemented: " + std::string(foreign->why) +
                                "; the nearest that is: " + json(foreign->nearest).dump() + "; ") +
          "accepted is " + names +
          R"(and for multi-axis models, where supported, "stdit", "evoformer")");
}

// The configuration with the names that the family's own reader knows.
json under_own_names(const json& config, const TextFamily& family, const Keys& keys) {
  json own = config;
  for (const auto& [other, name] : family.also_called) {
    if (!config.contains(other)) {
      continue;
    }
    if (config.contains(name) && config.at(name) != config.at(other)) {
      keys.refuse(other, "but " + name + ", its other name, is " + excerpt(config.at(name)));
    }
    own[name] = config.at(other);
    own.erase(other);
  }
  return own;
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
};

// Parameters, counted in `Number`: std::int64_t for the count, double where it may be too large.
template <class Number>
Number parameters_in(const TextShape& shape) {
  const auto number = [](std::int64_t size) { return static_cast<Number>(size); };
  const Number h = number(shape.hidden);
  const Number d = number(shape.head_dim);
  const Number q_rows = number(shape.heads) * d;
  const Number kv_rows = number(shape.kv_heads) * d;
  const Number ffn = number(shape.ffn);
  const Number inputs = number(shape.gated() ? 2 : 1);  // gate, up
  const Number norm = number(shape.layer_norm && shape.norm_bias ? 2 : 1) * h;
  const Number attention = 2 * q_rows * h + 2 * kv_rows * h +  // q, o; k, v
                           number(shape.qkv_bias) * (q_rows + 2 * kv_rows) +
                           number(shape.out_bias) * h +
                           number(shape.qk_norm) * (shape.qk_norm_wide ? q_rows + kv_rows : 2 * d);
  const Number mlp = (inputs + 1) * ffn * h + number(shape.mlp_bias) * (inputs * ffn + h);
  const Number norms = number(shape.sandwich_norm ? 4 : 2) * norm;  // of a layer
  const Number vocab = number(shape.vocab);
  const Number embedding = (vocab + number(shape.position_rows()) + number(shape.segments)) * h +
                           norm * number(shape.post_norm || shape.normed_embedding);
  const Number transform = h * h + number(shape.transform_bias) * h + norm;
  const Number head = number(shape.tied ? 0 : 1) * vocab * h +
                      norm * number(shape.post_norm ? 0 : 1) +
                      number(shape.masked_lm) * (transform + number(shape.head_bias) * vocab);
  const Number missing = norm * number(weight_names(shape).first_norm ? 0 : 1);
  return number(shape.layers) * (attention + mlp + norms) - missing + embedding + head;
}

}  // namespace

std::int64_t TextShape::parameters() const { return parameters_in<std::int64_t>(*this); }

Activation read_activation(const Keys& keys, const std::string& key, const std::string& absent) {
  // Several names of one function each, as transformers' ACT2FN has them.
  static const std::map<std::string, Activation> known = {
      {"gelu", Activation::gelu},
      {"gelu_python", Activation::gelu},
      {"gelu_fast", Activation::gelu_tanh},
      {"gelu_new", Activation::gelu_tanh},
      {"gelu_python_tanh", Activation::gelu_tanh},
      {"gelu_pytorch_tanh", Activation::gelu_tanh},
      {"relu", Activation::relu},
      {"silu", Activation::silu},
      {"swish", Activation::silu}};
  std::vector<std::string> names;
  names.reserve(known.size());
  for (const auto& [name, activation] : known) {
    names.push_back(name);
  }
  return known.at(keys.name(key, absent, names));
}

std::string activation_name(Activation activation) {
  switch (activation) {
    case Activation::swiglu:
    case Activation::silu:
      return "silu";
    case Activation::gelu:
    case Activation::geglu_exact:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_new";
    case Activation::geglu:
      return "gelu_pytorch_tanh";
    case Activation::relu:
      return "relu";
  }
  throw std::logic_error("activation_name: unknown Activation");
}

json padding_of(const TextShape& shape) {
  return shape.padding_id < 0 ? json(nullptr) : json(shape.padding_id);
}

void read_heads(
    const Keys& keys,
    const std::string& hidden,
    const std::string& heads,
    std::optional<std::int64_t> head_dim,
    TextShape& shape) {
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

namespace {

bool names_family(const Keys& keys) {
  return keys.find("model_type") != nullptr || family_by_class(keys) != nullptr;
}

TextShape shape_in(const json& config, const std::string& source, std::vector<std::string>* notes) {
  if (!config.is_object()) {
    throw std::invalid_argument(
        source + ": is " + excerpt(config) +
        "; accepted is an object with the keys of a config.json");
  }
  const Keys said(config, source);
  const TextFamily& family = family_of(said);
  const json own = under_own_names(config, family, said);
  // What names no family is no model that transformers reads, and has no sizes but its own.
  const Keys keys(own, source, names_family(said) ? family.sizes : json::object());
  std::vector<std::string> known = {"model_type", "architectures", "auto_map"};
  known.insert(known.end(), family.read_keys.begin(), family.read_keys.end());
  std::vector<FixedKey> fixed(kFixedKeys.begin(), kFixedKeys.end());
  fixed.insert(fixed.end(), family.fixed_keys.begin(), family.fixed_keys.end());
  for (const FixedKey& key : fixed) {
    known.emplace_back(key.key);
  }
  keys.refuse_unknown(known);
  const json* classes = keys.find("architectures");
  const auto fits = [&](const json& one) {
    return one.is_string() && of_family(one.get<std::string>(), family);
  };
  if (classes != nullptr &&
      !(classes->is_array() &&
        (classes->empty() || std::any_of(classes->begin(), classes->end(), fits)))) {
    keys.refuse(
        "architectures",
        "accepted is " + json::array({family.architecture}).dump() +
            " or another class of that family: model_type is \"" + family.model_type + "\"");
  }
  for (const FixedKey& key : fixed) {
    keys.expect(key.key, json_in(key.accepted), key.instead);
  }
  const json* own_code = keys.find("auto_map");
  if (notes != nullptr && own_code != nullptr && !is_off("auto_map", *own_code)) {
    notes->push_back(
        source +
        ": auto_map names Python code of the model's own, which is not run: it is taken "
        "as the \"" +
        family.model_type + "\" that transformers has");
  }
  const TextShape shape = family.read(keys);
  if (notes != nullptr && !keys.taken().empty()) {
    notes->push_back(
        source + ": does not say " + joined(keys.taken(), ", ") +
        ": these are taken, as transformers does for \"" + family.model_type + "\"");
  }
  if (shape.layers > kMostLayers) {
    throw std::invalid_argument(
        source + ": the model has " + std::to_string(shape.layers) +
        " layers; accepted are at most " + std::to_string(kMostLayers));
  }
  const auto parameters = parameters_in<double>(shape);
  if (parameters > kMostParameters) {
    throw std::invalid_argument(
        source + ": the sizes make a model of " + json(parameters).dump() +
        " parameters; accepted are at most 2^53: one of the sizes has digits too many");
  }
  return shape;
}

}  // namespace

TextShape text_shape_from_config(
    const json& config, const std::string& source, std::vector<std::string>* notes) {
  try {
    return shape_in(config, source, notes);
  } catch (const std::invalid_argument& error) {
    if (!config.is_object() || names_family(Keys(config, source))) {
      throw;
    }
    throw std::invalid_argument(
        std::string(error.what()) + "; model_type is missing, so it was read as a \"" +
        families().front().model_type + "\": say model_type if it is of another family");
  }
}

namespace {

const TextFamily& family_of(const TextShape& shape) {
  for (const TextFamily& family : families()) {
    if (family.model_type == shape.architecture) {
      return family;
    }
  }
  throw std::logic_error("no family is called '" + shape.architecture + "'");
}

}  // namespace

const WeightNames& weight_names(const TextShape& shape) { return family_of(shape).names; }

const std::string& class_of(const TextShape& shape) { return family_of(shape).architecture; }

json config_of(const TextShape& shape) {
  const TextFamily& family = family_of(shape);
  json config = family.write(shape);
  config["model_type"] = family.model_type;
  config["architectures"] = json::array({family.architecture});
  return config;
}

LengthLimit length_limit(const TextShape& shape) {
  if (shape.learned_positions) {
    return {
        .tokens = shape.max_positions,
        .why = "the model has learned " + std::to_string(shape.max_positions) + " positions"};
  }
  return {};
}

TextShape without_dropout(TextShape shape) {
  shape.embedding_dropout = shape.residual_dropout = shape.attention_dropout = 0;
  shape.attention_output_dropout.reset();
  return shape;
}

ModelFamily text_family() {
  std::vector<std::string> types;
  for (const TextFamily& family : families()) {
    types.push_back(family.model_type);
  }
  return {
      .name = "text",
      .types = types,
      .read = [](const json& config, const std::string& source, std::vector<std::string>* notes) {
        return text_model(text_shape_from_config(config, source, notes));
      }};
}

TextShape text_shape(const Model& model) {
  auto shape = std::any_cast<TextShape>(model.shape);
  const double after_attention = model.part("attention")->shape.dropout;
  shape.residual_dropout = model.part("mlp")->shape.dropout;
  shape.attention_output_dropout.reset();
  if (after_attention != shape.residual_dropout) {
    shape.attention_output_dropout = after_attention;
  }
  shape.embedding_dropout = model.parts.front().part->shape.dropout;
  shape.attention_dropout = model.part("attention")->shape.attention_dropout;
  return shape;
}

std::string fingerprint(const TextShape& shape) {
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
  const TextShape plain;
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
  if (shape.window > 0) {
    std::string layers;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      layers += shape.window_of(layer) > 0 ? '1' : '0';
    }
    add("window", std::to_string(shape.window));
    add("windowed", layers);
    add_real("window_rope_theta", shape.window_rope_theta);
  }
  const auto add_number = [&](std::string_view name, double value) {
    if (value != 0) {
      add_real(name, value);
    }
  };
  add_number("norm_offset", shape.norm_offset);
  add_number("score_root", shape.score_root);
  add_number("score_cap", shape.score_cap);
  add_number("logit_cap", shape.logit_cap);
  add_flag("scaled_embedding", shape.scaled_embedding);
  add_flag("sandwich_norm", shape.sandwich_norm);
  add_flag("layer_norm", shape.layer_norm);
  add_flag("no_norm_bias", !shape.norm_bias);
  add_flag("no_transform_bias", !shape.transform_bias);
  add_flag("no_head_bias", !shape.head_bias);
  add_flag("post_norm", shape.post_norm);
  add_flag("added_norm", shape.added_norm);
  add_flag("parallel", shape.parallel);
  add_flag("qk_norm", shape.qk_norm);
  add_flag("qk_norm_wide", shape.qk_norm_wide);
  add_flag("qkv_bias", shape.qkv_bias);
  add_flag("out_bias", shape.out_bias);
  add_flag("mlp_bias", shape.mlp_bias);
  add_flag("masked_lm", shape.masked_lm);
  if (shape.transform_activation) {
    add("transform_activation", activation_name(*shape.transform_activation));
  }
  if (shape.turned > 0) {
    add("turned", std::to_string(shape.turned));
  }
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
