#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/model.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// LlamaConfig().to_dict() of transformers 4.57.6, whole.
constexpr const char* kTransformers4 = R"({
 "_name_or_path": "", "add_cross_attention": false, "architectures": null, "attention_bias": false,
 "attention_dropout": 0.0, "bad_words_ids": null, "begin_suppress_tokens": null, "bos_token_id": 1,
 "chunk_size_feed_forward": 0, "cross_attention_hidden_size": null, "decoder_start_token_id": null,
 "diversity_penalty": 0.0, "do_sample": false, "dtype": null, "early_stopping": false,
 "encoder_no_repeat_ngram_size": 0, "eos_token_id": 2, "exponential_decay_length_penalty": null,
 "finetuning_task": null, "forced_bos_token_id": null, "forced_eos_token_id": null, "head_dim":
 128, "hidden_act": "silu", "hidden_size": 4096, "id2label": { "0": "LABEL_0", "1": "LABEL_1" },
 "initializer_range": 0.02, "intermediate_size": 11008, "is_decoder": false, "is_encoder_decoder":
 false, "label2id": { "LABEL_0": 0, "LABEL_1": 1 }, "length_penalty": 1.0, "max_length": 20,
 "max_position_embeddings": 2048, "min_length": 0, "mlp_bias": false, "model_type": "llama",
 "no_repeat_ngram_size": 0, "num_attention_heads": 32, "num_beam_groups": 1, "num_beams": 1,
 "num_hidden_layers": 32, "num_key_value_heads": 32, "num_return_sequences": 1,
 "output_attentions": false, "output_hidden_states": false, "output_scores": false, "pad_token_id":
 null, "prefix": null, "pretraining_tp": 1, "problem_type": null, "pruned_heads": {},
 "remove_invalid_values": false, "repetition_penalty": 1.0, "return_dict": true,
 "return_dict_in_generate": false, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta":
 10000.0, "sep_token_id": null, "suppress_tokens": null, "task_specific_params": null,
 "temperature": 1.0, "tf_legacy_loss": false, "tie_encoder_decoder": false, "tie_word_embeddings":
 false, "tokenizer_class": null, "top_k": 50, "top_p": 1.0, "torchscript": false,
 "transformers_version": "4.57.6", "typical_p": 1.0, "use_bfloat16": false, "use_cache": true,
 "vocab_size": 32000})";

// LlamaConfig().to_dict() of transformers 5.23.0, whole.
constexpr const char* kTransformers5 = R"({
 "_name_or_path": "", "architectures": null, "attention_bias": false, "attention_dropout": 0.0,
 "bos_token_id": 1, "chunk_size_feed_forward": 0, "dtype": null, "eos_token_id": 2, "head_dim":
 128, "hidden_act": "silu", "hidden_size": 4096, "id2label": { "0": "LABEL_0", "1": "LABEL_1" },
 "initializer_range": 0.02, "intermediate_size": 11008, "is_encoder_decoder": false, "label2id": {
 "LABEL_0": 0, "LABEL_1": 1 }, "max_position_embeddings": 2048, "mlp_bias": false, "model_type":
 "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
 "output_attentions": false, "output_hidden_states": false, "pad_token_id": null, "pretraining_tp":
 1, "problem_type": null, "return_dict": true, "rms_norm_eps": 1e-06, "rope_parameters": {
 "rope_theta": 10000.0, "rope_type": "default" }, "tie_word_embeddings": false,
 "transformers_version": "5.23.0", "use_cache": true, "vocab_size": 32000})";

// The least that makes a model.
json small_config() {
  return {
      {"model_type", "llama"},
      {"num_hidden_layers", 2},
      {"hidden_size", 12},
      {"num_attention_heads", 3},
      {"intermediate_size", 20},
      {"vocab_size", 11},
  };
}

TextShape llama_7b() {
  TextShape shape;
  shape.layers = 32;
  shape.hidden = 4096;
  shape.heads = 32;
  shape.kv_heads = 32;
  shape.head_dim = 128;
  shape.ffn = 11008;
  shape.vocab = 32000;
  shape.max_positions = 2048;
  return shape;
}

TextShape read(const json& config) { return text_shape_from_config(config, "m/config.json"); }

// small_config() with `key` = `value`.
json with(const std::string& key, const json& value) {
  json config = small_config();
  config[key] = value;
  return config;
}

// The config is refused with a message that names the file and says each of `parts`.
template <class... Parts>
void expect_refused(const json& config, const Parts&... parts) {
  SCOPED_TRACE(config.dump());
  EXPECT_THAT(
      test::refusal([&] { read(config); }), AllOf(HasSubstr("m/config.json"), HasSubstr(parts)...));
}

TEST(TextShape, ReadsAllThatTransformersWrites) {
  EXPECT_EQ(read(json::parse(kTransformers4)), llama_7b());
  EXPECT_EQ(read(json::parse(kTransformers5)), llama_7b());
}

TEST(TextShape, DefaultsAreThoseOfLlama) {
  const TextShape shape = read(small_config());
  EXPECT_EQ(shape.architecture, "llama");
  EXPECT_EQ(shape.kv_heads, 3);
  EXPECT_EQ(shape.head_dim, 4);
  EXPECT_EQ(shape.max_positions, 0);
  EXPECT_EQ(shape.norm_eps, 1e-6);
  EXPECT_EQ(shape.rope_theta, 10000.0);
  EXPECT_FALSE(shape.tied);
  EXPECT_TRUE(shape.causal);
  // null says as little as leaving it out
  for (const char* key :
       {"num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "rope_parameters",
        "rope_scaling",
        "tie_word_embeddings",
        "architectures",
        "sliding_window",
        "attention_bias",
        "hidden_act",
        "layer_types"}) {
    EXPECT_EQ(read(with(key, nullptr)), shape) << key;
  }
}

TEST(TextShape, ReadsEachKey) {
  EXPECT_EQ(read(with("num_key_value_heads", 1)).kv_heads, 1);
  EXPECT_EQ(read(with("head_dim", 6)).head_dim, 6);
  EXPECT_EQ(read(with("max_position_embeddings", 64)).max_positions, 64);
  EXPECT_EQ(read(with("rms_norm_eps", 1e-5)).norm_eps, 1e-5);
  EXPECT_EQ(read(with("rope_theta", 500000)).rope_theta, 500000.0);
  EXPECT_EQ(read(with("rope_parameters", {{"rope_theta", 5e5}})).rope_theta, 5e5);
  EXPECT_EQ(
      read(with("rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "default"}})).rope_theta,
      5e5);
  EXPECT_TRUE(read(with("tie_word_embeddings", true)).tied);
  EXPECT_FALSE(read(with("is_causal", false)).causal);
  EXPECT_EQ(read(with("initializer_range", 0.01)).initializer_range, 0.01);
}

TEST(TextShape, AcceptsWhatChangesNothing) {
  const TextShape shape = read(small_config());
  const json harmless = json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "hidden_act": "swish", "attention_bias": false,
    "mlp_bias": false, "attention_dropout": 0, "pretraining_tp": 1, "partial_rotary_factor": 1.0,
    "layer_types": ["full_attention", "full_attention"], "rope_scaling": null,
    "torch_dtype": "bfloat16", "transformers_version": "4.31.0", "use_cache": true,
    "is_decoder": true, "bos_token_id": 1, "eos_token_id": [2, 3], "temperature": 0.6})");
  for (const auto& [key, value] : harmless.items()) {
    EXPECT_EQ(read(with(key, value)), shape) << key;
  }
  json windowed = with("sliding_window", 4096);
  windowed["use_sliding_window"] = false;
  EXPECT_EQ(read(windowed), shape);
}

// A key of any name that is off cannot matter; nor can one of a name that says what it is about.
TEST(TextShape, PassesOverKeysThatAreOff) {
  const TextShape shape = read(small_config());
  for (const char* key : {"use_mrope", "num_experts", "alibi", "quantization", "clip_qkv"}) {
    for (const json& value :
         {json(nullptr),
          json(false),
          json(0),
          json(0.0),
          json(""),
          json("none"),
          json::array(),
          json::object(),
          json{{"bits", nullptr}}}) {
      EXPECT_EQ(read(with(key, value)), shape) << key << " " << value;
    }
    for (const json& value :
         {json(true), json(1), json("yes"), json::array({0}), json{{"bits", 4}}}) {
      expect_refused(with(key, value), std::string("\"") + key + "\" is not known", value.dump());
    }
  }
  // A factor says nothing with 1.
  EXPECT_EQ(read(with("logit_scale", 1.0)), shape);
  EXPECT_EQ(read(with("residual_multiplier", 1)), shape);
  expect_refused(with("logit_scale", 0), "logit_scale");
  expect_refused(with("embedding_multiplier", 12), "embedding_multiplier", "12");
  const json bookkeeping = json::parse(R"({
    "_num_labels": 1, "_name_or_path": "gpt2", "id2label": {"0": "A"}, "summary_type": "cls_index",
    "unsloth_version": "2025.1", "transformers_version": "4.31.0", "image_token_id": 7,
    "tokenizer_class": "LlamaTokenizer", "torch_dtype": "bfloat16", "pretraining_tp": 2,
    "task_specific_params": {"text-generation": {"do_sample": true}}, "model_max_length": 2048,
    "_attn_implementation": "sdpa", "classifier_dropout": 0.1, "pooler_type": "first_token"})");
  for (const auto& [key, value] : bookkeeping.items()) {
    EXPECT_EQ(read(with(key, value)), shape) << key;
  }
  // Off under a mistyped name, what is meant would stay on.
  json gpt2 = {
      {"model_type", "gpt2"}, {"n_layer", 1}, {"n_embd", 4}, {"n_head", 1}, {"vocab_size", 5}};
  gpt2["tie_word_embedings"] = false;
  expect_refused(gpt2, "did you mean 'tie_word_embeddings'?");
}

TEST(TextShape, ArchitecturesGoByTheirFamily) {
  const TextShape shape = read(small_config());
  for (const char* name :
       {"LLaMAForCausalLM", "LlamaForCausalLM", "LlamaModel", "LlamaForSequenceClassification"}) {
    EXPECT_EQ(read(with("architectures", {name})), shape) << name;
  }
  EXPECT_EQ(read(with("architectures", json::array())), shape);
  for (const char* name : {"Llama4ForCausalLM", "LlavaForConditionalGeneration", "Llama"}) {
    expect_refused(with("architectures", {name}), "architectures", "LlamaForCausalLM");
  }
  json bert = small_config();
  bert["model_type"] = "bert";
  const TextShape masked = read(bert);
  bert["architectures"] = {"BertForPreTraining"};
  EXPECT_EQ(read(bert), masked);
  EXPECT_EQ(class_of(masked), "BertForMaskedLM");
  bert.erase("model_type");  // then the class says it
  EXPECT_EQ(read(bert), masked);

  std::vector<std::string> notes;
  json own = with("auto_map", {{"AutoModelForCausalLM", "modeling.Mine"}});
  EXPECT_EQ(text_shape_from_config(own, "m/config.json", &notes), shape);
  ASSERT_EQ(notes.size(), 1);
  EXPECT_THAT(notes[0], AllOf(HasSubstr("auto_map"), HasSubstr("not run")));
}

TEST(TextShape, ARefusedFamilyNamesTheNearest) {
  const auto nearest = [](const char* type, const char* name, const char* why) {
    expect_refused(with("model_type", type), type, std::string("nearest that is: \"") + name, why);
  };
  nearest("gemma", "gemma2", "of what its parts add");
  nearest("mixtral", "mistral", "experts");
  nearest("phi3_v", "phi3", "more than text");
  nearest("phi", "llama", "are parallel");
  nearest("qwen2_moe", "qwen2", "experts");
  nearest("xlm-roberta", "roberta", "is a RoBERTa");
  nearest("olmoe", "olmo2", "experts");
  nearest("t5", "bert", "encoder");
  nearest("gpt_neox_japanese", "gpt_neox", "biases");
  nearest("gpt_neo", "gpt2", "window");
  nearest("falcon_mamba", "llama", "not all of its layers are attention alone");
  nearest("qwen3_5_text", "qwen3", "not all of its layers are attention alone");
  nearest("deepseek_v3", "llama", "latent");
  // What only begins like one of them may be anything.
  for (const char* const type : {"gemma4_text", "glm5_next", "deepseek_vl", "bart er", "bar", ""}) {
    EXPECT_THAT(
        test::refusal([&] { read(with("model_type", type)); }),
        AllOf(HasSubstr("model_type is "), testing::Not(HasSubstr("nearest"))));
  }
}

TEST(TextShape, SaysThatTheModelTypeIsMissing) {
  json config = small_config();
  config.erase("model_type");
  config.erase("architectures");
  EXPECT_EQ(read(config).architecture, "llama");
  config["layer_norm_eps"] = 1e-5;
  expect_refused(config, "layer_norm_eps", "model_type is missing, so it was read as a \"llama\"");
  config["architectures"] = {"BertForMaskedLM"};
  EXPECT_THAT(
      test::refusal([&] { read(config); }), testing::Not(HasSubstr("model_type is missing")));
}

TEST(TextShape, ReadsWindows) {
  json mistral = small_config();
  mistral["model_type"] = "mistral";
  // As transformers has it: a window of 4096 where none is said, none where null is.
  EXPECT_EQ(read(mistral).window, 4096);
  mistral["sliding_window"] = nullptr;
  const TextShape none = read(mistral);
  EXPECT_EQ(none.window, 0);
  EXPECT_TRUE(length_limit(none).allows(1 << 20));
  EXPECT_EQ(read(config_of(none)), none);
  mistral["sliding_window"] = 64;
  const TextShape windowed = read(mistral);
  EXPECT_EQ(windowed.window, 64);
  EXPECT_EQ(windowed.window_of(0), 64);
  EXPECT_TRUE(length_limit(windowed).allows(65));
  EXPECT_EQ(text_model(windowed).part("attention")->shape.window, 64);
  EXPECT_EQ(read(config_of(windowed)), windowed);
  EXPECT_NE(fingerprint(none), fingerprint(windowed));
  mistral["layer_types"] = {"full_attention", "sliding_attention"};
  expect_refused(mistral, "layer_types", "in all layers");
  mistral["layer_types"] = {"full_attention", "full_attention"};
  expect_refused(mistral, "layer_types", "sliding_window = null");
  mistral.erase("layer_types");
  // transformers does not read the key, and a window of no tokens gives it NaN
  for (const char* architecture : {"mistral", "phi3"}) {
    json other = mistral;
    other["model_type"] = architecture;
    other["use_sliding_window"] = false;
    expect_refused(other, "use_sliding_window", "keeps its window");
    other["sliding_window"] = nullptr;
    EXPECT_EQ(read(other).window, 0);
    other.erase("use_sliding_window");
    other["sliding_window"] = 0;
    expect_refused(other, "sliding_window", "say null");
  }

  // Eight heads of keys and values where the file does not say, as many as queries where null.
  json eight = mistral;
  eight["num_attention_heads"] = 16;
  eight["hidden_size"] = 64;
  EXPECT_EQ(read(eight).kv_heads, 8);
  eight["num_key_value_heads"] = nullptr;
  EXPECT_EQ(read(eight).kv_heads, 16);

  json qwen = small_config();
  qwen["model_type"] = "qwen2";
  qwen["sliding_window"] = 64;
  EXPECT_EQ(read(qwen).window, 0);  // off unless switched on
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(read(qwen).window, 0);  // of layers behind the 28th
  qwen["max_window_layers"] = 1;
  const TextShape last = read(qwen);
  EXPECT_EQ(last.window, 64);
  EXPECT_EQ(last.window_of(0), 0);
  EXPECT_EQ(last.window_of(1), 64);
  EXPECT_EQ(read(config_of(last)), last);
  const Model model = text_model(last);  // two kinds of attention of one name, one of MLPs
  EXPECT_EQ(model.stacks().size(), 2);
  EXPECT_EQ(model.period(), 2);
  EXPECT_EQ(model.parts[1].part->name, model.parts[3].part->name);
  EXPECT_EQ(model.parts[1].part->shape.window, 0);
  EXPECT_EQ(model.parts[3].part->shape.window, 64);
  EXPECT_EQ(model.parts[2].part, model.parts[4].part);
  EXPECT_EQ(with_layers(model, 3).parts[5].part->shape.window, 0);  // over and over
  qwen["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(read(qwen).window, 0);
  qwen["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(read(qwen), last);
  qwen["layer_types"] = {"full_attention", "chunked_attention"};
  expect_refused(qwen, "layer_types", "each of the 2 layers");
  expect_refused(with("sliding_window", 4096), "sliding_window", "no windows");
}

// transformers reads is_causal of these families, too.
TEST(TextShape, RefusesAttentionInBothDirectionsWhereItIsNotImplemented) {
  for (const char* architecture : {"gpt2", "gpt_neox", "opt", "gemma2", "gemma3_text"}) {
    json config = {{"model_type", architecture}, {"is_causal", true}};
    EXPECT_NO_THROW(static_cast<void>(read(config))) << architecture;
    config["is_causal"] = false;
    expect_refused(config, "is_causal", "both directions");
  }
}

TEST(TextShape, ReadsGemma) {
  json gemma = small_config();
  gemma["model_type"] = "gemma2";
  gemma["num_hidden_layers"] = 3;
  gemma["num_key_value_heads"] = 1;
  gemma["head_dim"] = 8;
  const TextShape two = read(gemma);
  EXPECT_TRUE(two.sandwich_norm && two.scaled_embedding && two.tied && two.gated());
  EXPECT_EQ(two.norm_offset, 1);
  EXPECT_EQ(two.score_cap, 50);
  EXPECT_EQ(two.logit_cap, 30);
  EXPECT_EQ(two.score_root, 256);
  EXPECT_EQ(two.padding_id, 0);
  EXPECT_EQ(
      (std::vector{two.window_of(0), two.window_of(1), two.window_of(2)}),
      (std::vector<std::int64_t>{4096, 0, 4096}));
  EXPECT_EQ(read(config_of(two)), two);
  gemma["attn_logit_softcapping"] = nullptr;  // none, other than left out
  gemma["query_pre_attn_scalar"] = read(gemma).head_dim;
  const TextShape plain = read(gemma);
  EXPECT_EQ(plain.score_cap, 0);
  EXPECT_EQ(plain.score_root, 0);
  EXPECT_EQ(read(config_of(plain)), plain);
  const auto but = [](json config, const char* key, const json& value) {
    config[key] = value;
    return config;
  };
  expect_refused(but(gemma, "sliding_window", nullptr), "sliding_window", "number of tokens");
  expect_refused(but(gemma, "use_bidirectional_attention", true), "both directions");
  expect_refused(but(gemma, "hidden_activation", "silu"), "hidden_activation", "gelu_pytorch_tanh");
  expect_refused(but(gemma, "rope_local_base_freq", 1e4), "\"rope_local_base_freq\" is not known");

  json third = small_config();
  third["model_type"] = "gemma3_text";
  third["num_hidden_layers"] = 7;
  third["num_key_value_heads"] = 1;
  const TextShape three = read(third);
  EXPECT_TRUE(three.qk_norm);
  EXPECT_EQ(three.rope_theta, 1e6);
  EXPECT_EQ(three.window_rope_theta, 1e4);
  EXPECT_EQ(three.logit_cap, 0);
  EXPECT_GT(three.window_of(4), 0);
  EXPECT_EQ(three.window_of(5), 0);
  EXPECT_EQ(rope_of(three, 4)->theta, 1e4);
  EXPECT_EQ(rope_of(three, 5)->theta, 1e6);
  EXPECT_EQ(read(config_of(three)), three);
  EXPECT_EQ(text_model(three).period(), 6);
  EXPECT_EQ(text_model(three).of_sizes({.layers = 1}).layers, 1);
  const json nested = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 500.0}}}};
  const TextShape stretched = read(but(third, "rope_parameters", nested));
  EXPECT_EQ(stretched.rope_scaling.factor, 8);
  EXPECT_EQ(stretched.window_rope_theta, 500);
  EXPECT_EQ(rope_of(stretched, 0)->scaling, RopeScaling());
  EXPECT_EQ(read(config_of(stretched)), stretched);
  json flat = third;
  flat["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  expect_refused(flat, "rope_parameters", "full_attention and sliding_attention");
  json local = but(third, "rope_parameters", nested);
  local["rope_parameters"]["sliding_attention"]["rope_type"] = "linear";
  expect_refused(local, "rope_parameters.sliding_attention: rope_type", "default");
  expect_refused(but(third, "attn_logit_softcapping", 50.0), "attn_logit_softcapping");
}

TEST(TextShape, ReadsModernBert) {
  json config = {
      {"model_type", "modernbert"},
      {"num_hidden_layers", 5},
      {"hidden_size", 24},
      {"num_attention_heads", 3},
      {"intermediate_size", 20},
      {"vocab_size", 11}};
  const TextShape shape = read(config);
  EXPECT_TRUE(shape.masked_lm && shape.tied && shape.layer_norm && shape.gated());
  EXPECT_FALSE(shape.causal || shape.norm_bias || shape.transform_bias || shape.qkv_bias);
  EXPECT_TRUE(shape.head_bias);
  EXPECT_EQ(shape.activation, Activation::geglu_exact);
  EXPECT_EQ(shape.padding_id, -1);  // none of 11
  EXPECT_EQ(read(config_of(shape)), shape);
  EXPECT_EQ(config_of(shape).at("local_attention"), 128);
  EXPECT_EQ(config_of(shape).at("global_attn_every_n_layers"), 3);
  const Model model = text_model(shape);
  EXPECT_EQ(model.period(), 3);
  // The first layer's attention has no norm, the fourth's has.
  const auto norms = [&](std::size_t part) {
    return model.parts[part].part->weights(1).vectors_of(Role::norm).size();
  };
  EXPECT_EQ(norms(1), 0);
  EXPECT_EQ(norms(7), 1);
  EXPECT_EQ(model.parts[7].part->shape.window, 0);
  // Which layers have a window, by either key; and none, or all.
  const auto windows = [](const TextShape& of) {
    std::string all;
    for (std::int64_t layer = 0; layer < of.layers; ++layer) {
      all += of.window_of(layer) > 0 ? 's' : 'f';
    }
    return all;
  };
  EXPECT_EQ(windows(shape), "fssfs");
  for (const auto& [every, wanted] : std::vector<std::pair<int, std::string>>{
           {1, "fffff"}, {2, "fsfsf"}, {4, "fsssf"}, {5, "fssss"}, {9, "fssss"}}) {
    config["global_attn_every_n_layers"] = every;
    const TextShape other = read(config);
    EXPECT_EQ(windows(other), wanted);
    EXPECT_EQ(read(config_of(other)), other);
  }
  config.erase("global_attn_every_n_layers");
  for (const std::string wanted : {"fffff", "sssss", "fssfs", "fsfsf", "sfsfs", "ffsss"}) {
    config["layer_types"] = json::array();
    for (const char kind : wanted) {
      config["layer_types"].push_back(kind == 's' ? "sliding_attention" : "full_attention");
    }
    const TextShape other = read(config);
    EXPECT_EQ(windows(other), wanted);
    EXPECT_EQ(read(config_of(other)), other);
  }
  config.erase("layer_types");
  for (const std::int64_t tokens : {1, 2, 7, 128}) {  // to both sides together
    config["local_attention"] = tokens;
    EXPECT_EQ(read(config).window, tokens / 2 + 1);
    EXPECT_EQ(read(config_of(read(config))), read(config));
  }
  config["rope_parameters"] = {
      {"full_attention", {{"rope_type", "default"}, {"rope_theta", 5e5}}},
      {"sliding_attention", nullptr}};
  EXPECT_EQ(rope_of(read(config), 0)->theta, 5e5);
  EXPECT_EQ(rope_of(read(config), 1)->theta, 1e4);
  for (const char* flag :
       {"norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias"}) {
    json other = config;
    other[flag] = flag == std::string("decoder_bias") ? false : true;
    EXPECT_NE(fingerprint(read(other)), fingerprint(read(config))) << flag;
    EXPECT_NE(read(other).parameters(), read(config).parameters()) << flag;
    EXPECT_EQ(read(config_of(read(other))), read(other)) << flag;
  }
  config["attention_dropout"] = 0.25;
  EXPECT_EQ(read(config).attention_output_dropout, 0.25);
  EXPECT_EQ(read(config_of(read(config))), read(config));
  EXPECT_EQ(fingerprint(read(config)), fingerprint(without_dropout(read(config))));
}

TEST(TextShape, RefusesOtherMathematics) {
  expect_refused(with("model_type", "other"), "model_type", "other", "\"llama\"", "\"bert\"");
  expect_refused(
      with("architectures", {"MistralForCausalLM"}), "architectures", "LlamaForCausalLM");
  expect_refused(with("hidden_act", "gelu"), "hidden_act", "gelu", "silu");
  expect_refused(with("attention_bias", 1), "attention_bias", "true or false");
  expect_refused(with("attention_dropout", 1.0), "attention_dropout", "from 0 to below 1");
  expect_refused(with("resid_pdrop", 0.1), "resid_pdrop", "0.1", "train with 0");
  expect_refused(with("partial_rotary_factor", 0.5), "partial_rotary_factor", "0.5", "1.0");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::string place = std::string(key) + ": ";
    expect_refused(
        with(key, {{"rope_type", "dynamic"}, {"factor", 2.0}}), place + "rope_type", "\"yarn\"");
    expect_refused(with(key, {{"type", "longrope"}}), place + "type", "longrope", "\"linear\"");
    expect_refused(with(key, {{"rope_type", "linear"}}), place + "factor is missing");
    json nameless = with(key, {{"rope_type", "llama3"}, {"factor", 8.0}});
    nameless.erase("model_type");  // else it has positions as published
    expect_refused(nameless, place + "original_max_position_embeddings is missing");
    expect_refused(
        with(
            key,
            {{"rope_type", "llama3"},
             {"factor", 8.0},
             {"original_max_position_embeddings", 8192},
             {"low_freq_factor", 1.0}}),
        place + "high_freq_factor is missing");
    expect_refused(
        with(key, {{"rope_theta", 1e4}, {"factor", 8.0}}), key, "\"factor\" is not known");
    expect_refused(
        with(key, {{"rope_type", "linear"}, {"factor", 2.0}, {"beta_fast", 32}}),
        "\"beta_fast\" is not known");
  }
  json two_scalings = with("rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}});
  two_scalings["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  expect_refused(two_scalings, "rope_parameters", "rope_scaling differs");
  expect_refused(with("rope_parameters", 5), "rope_parameters is 5", "object");
  expect_refused(
      with("layer_types", {"full_attention", "sliding_attention"}), "layer_types", "no window");
  expect_refused(with("layer_types", {"full_attention"}), "layer_types", "each of the 2 layers");
  expect_refused(with("quantization_config", {{"bits", 4}}), "quantization_config", "dequantize");
  expect_refused(with("is_encoder_decoder", true), "is_encoder_decoder", "false");
  json two_thetas = with("rope_theta", 1e4);
  two_thetas["rope_parameters"] = {{"rope_theta", 5e5}};
  expect_refused(two_thetas, "rope_theta", "10000", "500000");
}

// The least that makes a model of each architecture.
json least(const std::string& type) {
  if (type == "gpt2") {
    return {
        {"model_type", type}, {"n_layer", 2}, {"n_embd", 15}, {"n_head", 3}, {"vocab_size", 11}};
  }
  if (type == "distilbert") {
    return {
        {"model_type", type},
        {"n_layers", 2},
        {"dim", 15},
        {"n_heads", 3},
        {"hidden_dim", 20},
        {"vocab_size", 11}};
  }
  json config = small_config();
  config["model_type"] = type;
  if (type == "gpt_neox") {
    config["rotary_pct"] = 0.5;
  }
  if (type == "opt") {
    config.erase("intermediate_size");
    config["ffn_dim"] = 20;
  }
  return config;
}

const char* const kTypes[] = {
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "olmo2",
    "phi3",
    "gpt2",
    "gpt_neox",
    "opt",
    "bert",
    "roberta",
    "distilbert",
    "modernbert"};

TEST(TextShape, ReadsEveryArchitecture) {
  const TextShape qwen2 = read(least("qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.out_bias && !qwen2.mlp_bias && !qwen2.qk_norm);
  EXPECT_EQ(qwen2.head_dim, 4);
  json windows = least("qwen2");
  windows["max_window_layers"] = 28;
  EXPECT_EQ(read(windows), qwen2);

  const TextShape qwen3 = read(least("qwen3"));
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 128);  // its default

  const TextShape gpt2 = read(least("gpt2"));
  EXPECT_EQ(gpt2.ffn, 60);
  EXPECT_EQ(gpt2.head_dim, 5);  // odd: nothing turns
  EXPECT_EQ(gpt2.max_positions, 1024);
  EXPECT_EQ(gpt2.position_rows(), 1024);
  EXPECT_EQ(gpt2.activation, Activation::gelu_tanh);
  EXPECT_TRUE(gpt2.tied && gpt2.layer_norm && gpt2.causal && !gpt2.post_norm);
  EXPECT_TRUE(gpt2.qkv_bias && gpt2.out_bias && gpt2.mlp_bias);
  EXPECT_EQ(gpt2.embedding_dropout, 0.1);
  EXPECT_EQ(gpt2.residual_dropout, 0.1);
  EXPECT_EQ(gpt2.attention_dropout, 0.1);
  EXPECT_EQ(gpt2.padding_id, -1);

  const TextShape opt = read(least("opt"));
  EXPECT_EQ(opt.position_rows(), 2048 + 2);
  EXPECT_EQ(opt.activation, Activation::relu);
  EXPECT_EQ(opt.padding_id, 1);
  EXPECT_EQ(opt.residual_dropout, 0.1);
  EXPECT_EQ(opt.embedding_dropout, 0.0);
  EXPECT_EQ(opt.attention_dropout, 0.0);

  const TextShape bert = read(least("bert"));
  EXPECT_FALSE(bert.causal);
  EXPECT_TRUE(bert.masked_lm && bert.post_norm && bert.layer_norm && bert.tied);
  EXPECT_EQ(bert.position_rows(), 512);
  EXPECT_EQ(bert.segments, 2);
  EXPECT_EQ(bert.norm_eps, 1e-12);
  EXPECT_EQ(bert.activation, Activation::gelu);
  EXPECT_EQ(bert.padding_id, 0);
}

TEST(TextShape, OneActivationHasSeveralNames) {
  const auto activation = [](const char* name) {
    json config = least("gpt2");
    config["activation_function"] = name;
    return read(config).activation;
  };
  EXPECT_EQ(activation("gelu"), activation("gelu_python"));
  for (const char* tanh : {"gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"}) {
    EXPECT_EQ(activation("gelu_new"), activation(tanh));
  }
  EXPECT_NE(activation("gelu"), activation("gelu_new"));
  EXPECT_EQ(activation("silu"), Activation::silu);
  EXPECT_EQ(activation("silu"), activation("swish"));
}

// What each configuration class of transformers 5.24.0 has where nothing is said.
TEST(TextShape, SizesThatAreNotThereAreTheFamilys) {
  struct Sizes {
    const char* type;
    std::int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, positions;
  };
  for (const Sizes& want : {
           Sizes{"llama", 32, 4096, 32, 32, 128, 11008, 32000, 0},
           Sizes{"mistral", 32, 4096, 32, 8, 128, 14336, 32000, 0},
           Sizes{"qwen2", 32, 4096, 32, 32, 128, 22016, 151936, 0},
           Sizes{"qwen3", 32, 4096, 32, 32, 128, 22016, 151936, 0},
           Sizes{"gpt2", 12, 768, 12, 12, 64, 3072, 50257, 1024},
           Sizes{"opt", 12, 768, 12, 12, 64, 3072, 50272, 2048},
           Sizes{"bert", 12, 768, 12, 12, 64, 3072, 30522, 512},
           Sizes{"olmo2", 32, 4096, 32, 32, 128, 11008, 50304, 0},
           Sizes{"phi3", 32, 3072, 32, 32, 96, 8192, 32064, 0},
           Sizes{"gpt_neox", 44, 6144, 64, 64, 96, 24576, 50432, 2048},
           Sizes{"roberta", 12, 768, 12, 12, 64, 3072, 50265, 510},
           Sizes{"distilbert", 6, 768, 12, 12, 64, 3072, 30522, 512},
           Sizes{"modernbert", 22, 768, 12, 12, 64, 1152, 50368, 8192},
       }) {
    SCOPED_TRACE(want.type);
    const TextShape shape = read({{"model_type", want.type}});
    EXPECT_EQ(shape.layers, want.layers);
    EXPECT_EQ(shape.hidden, want.hidden);
    EXPECT_EQ(shape.heads, want.heads);
    EXPECT_EQ(shape.kv_heads, want.kv_heads);
    EXPECT_EQ(shape.head_dim, want.head_dim);
    EXPECT_EQ(shape.ffn, want.ffn);
    EXPECT_EQ(shape.vocab, want.vocab);
    EXPECT_EQ(shape.max_positions, want.positions);
    // What is written says all of it; each key may be left out again.
    const json whole = config_of(shape);
    EXPECT_EQ(read(whole), shape);
    for (const auto& [key, value] : whole.items()) {
      json without = whole;
      without.erase(key);
      std::vector<std::string> notes;
      if (key != "model_type") {
        EXPECT_EQ(text_shape_from_config(without, "m/config.json", &notes), shape) << key;
      }
      EXPECT_LE(notes.size(), 1);
      for (const std::string& note : notes) {
        EXPECT_THAT(note, AllOf(HasSubstr(key + " = " + value.dump()), HasSubstr(want.type)));
      }
    }
  }
  // Those that are taken are said, and no others.
  std::vector<std::string> notes;
  json config = small_config();
  EXPECT_EQ(text_shape_from_config(config, "m/config.json", &notes).vocab, 11);
  EXPECT_TRUE(notes.empty());
  config.erase("vocab_size");
  config.erase("intermediate_size");
  EXPECT_EQ(text_shape_from_config(config, "m/config.json", &notes).ffn, 11008);
  ASSERT_EQ(notes.size(), 1);
  EXPECT_THAT(
      notes[0], HasSubstr("does not say intermediate_size = 11008, vocab_size = 32000: these"));
  // Without a family there are no sizes of one; the class alone says it, too.
  expect_refused(json::object(), "missing");
  EXPECT_EQ(read({{"architectures", {"GPT2LMHeadModel"}}}).layers, 12);
  // Key and value heads that would not divide the heads are as many as those.
  config = small_config();
  config["model_type"] = "qwen2";
  EXPECT_EQ(read(config).kv_heads, 3);
  // Rotations that are stretched over a number of positions that is not there.
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 2.0}};
  EXPECT_EQ(read(config).rope_scaling.original_positions, 32768);
  EXPECT_EQ(read(config).max_positions, 0);
}

TEST(TextShape, Gpt2sKeysHaveOtherNames) {
  const json named = {
      {"model_type", "gpt2"},
      {"num_hidden_layers", 2},
      {"hidden_size", 15},
      {"num_attention_heads", 3},
      {"vocab_size", 11},
      {"max_position_embeddings", 41}};
  json own = {
      {"model_type", "gpt2"},
      {"n_layer", 2},
      {"n_embd", 15},
      {"n_head", 3},
      {"vocab_size", 11},
      {"n_positions", 41}};
  EXPECT_EQ(read(named), read(own));
  own["hidden_size"] = 15;
  EXPECT_EQ(read(own).hidden, 15);
  own["hidden_size"] = 30;
  expect_refused(own, "hidden_size is 30", "n_embd", "15");
}

// Leaving pad_token_id out is the architecture's default, null is none, -1 the last.
TEST(TextShape, PaddingId) {
  json opt = least("opt");
  for (const auto& [said, meant] : {std::pair{json(nullptr), -1}, {json(4), 4}, {json(-1), 10}}) {
    opt["pad_token_id"] = said;
    EXPECT_EQ(read(opt).padding_id, meant);
    EXPECT_EQ(read(with("pad_token_id", said)).padding_id, meant);
  }
  opt["pad_token_id"] = 11;
  expect_refused(opt, "pad_token_id is 11", "from -11 to 10");
  EXPECT_EQ(read(small_config()).padding_id, -1);
}

TEST(TextShape, RefusesOtherMathematicsOfEveryArchitecture) {
  const auto refused =
      [](const char* type, const char* key, const json& value, const auto&... parts) {
        json config = least(type);
        config[key] = value;
        expect_refused(config, std::string(key) + " is", parts...);
      };
  for (const char* type : kTypes) {
    refused(type, "architectures", {"OtherModel"}, "accepted", type);
    refused(type, "add_cross_attention", true, "cross-attention");
    json unknown = least(type);
    unknown["logit_softcapping"] = 3.0;
    expect_refused(unknown, "\"logit_softcapping\" is not known");
  }
  refused("gpt2", "scale_attn_weights", false, "true");
  refused("gpt2", "scale_attn_by_inverse_layer_idx", true, "false");
  refused("gpt2", "activation_function", "quick_gelu", "gelu_new");
  refused("opt", "do_layer_norm_before", false, "350M");
  refused("opt", "word_embed_proj_dim", 6, "hidden_size = 12", "350M");
  refused("opt", "enable_bias", false, "true");
  refused("opt", "layerdrop", 0.1, "dropping layers");
  refused("opt", "activation_dropout", 0.1, "0.0");
  refused("opt", "_remove_final_layer_norm", true, "last norm");
  refused("bert", "position_embedding_type", "relative_key", "absolute");
  refused("bert", "is_decoder", true, "false");
  refused("qwen3", "head_dim", 5, "even");
  json foreign = least("qwen2");  // a key of another architecture
  foreign["n_embd"] = 12;
  expect_refused(foreign, "\"n_embd\" is not known");
}

// Of attention's probabilities in training, whatever the number of layers; no file that a run
// writes forgets it.
TEST(TextShape, AttentionDropoutIsOfAttentionAlone) {
  const Model gpt2 = read(least("gpt2"));
  const auto of = [](const Model& model) {
    std::map<std::string, double> found;
    for (const ModelPart& one : model.parts) {
      found[one.part->name] += one.part->shape.attention_dropout;
    }
    return found;
  };
  const auto layers = static_cast<double>(gpt2.layers);
  using testing::DoubleEq;
  using testing::Pair;
  using testing::UnorderedElementsAre;
  const auto alone = [](double sum) {
    return UnorderedElementsAre(
        Pair("embedding", 0), Pair("attention", DoubleEq(sum)), Pair("mlp", 0), Pair("head", 0));
  };
  EXPECT_THAT(of(gpt2), alone(0.1 * layers));
  EXPECT_THAT(of(without_dropout(gpt2)), alone(0));
  EXPECT_THAT(of(with_dropout(gpt2, 0.3)), alone(0.1 * layers));
  const Model other = with_layers(with_attention_dropout(gpt2, 0.4), 5);
  EXPECT_THAT(of(other), alone(0.4 * 5));
  EXPECT_EQ(text_shape(other).attention_dropout, 0.4);
  EXPECT_EQ(config_of(text_shape(other)).at("attn_pdrop"), 0.4);
  EXPECT_EQ(other.parts[1].part->shape.dropout, 0.1);
  EXPECT_NO_THROW(expect_trainable(other));
}

// In both spellings; what yarn leaves out follows from the rest.
TEST(TextShape, ReadsRopeScaling) {
  using Type = RopeScaling::Type;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    for (const char* type_key : {"type", "rope_type"}) {
      const RopeScaling linear =
          read(with(key, {{type_key, "linear"}, {"factor", 3}})).rope_scaling;
      EXPECT_EQ(linear.type, Type::linear);
      EXPECT_EQ(linear.factor, 3.0);
    }
    json llama3 = with(
        key,
        {{"rope_type", "llama3"},
         {"factor", 8.0},
         {"low_freq_factor", 1.0},
         {"high_freq_factor", 4.0}});
    llama3["max_position_embeddings"] = 4096;
    EXPECT_EQ(read(llama3).rope_scaling.original_positions, 4096);
    llama3[key]["original_max_position_embeddings"] = 512;
    EXPECT_EQ(read(llama3).rope_scaling.original_positions, 512);
    EXPECT_EQ(read(llama3).rope_scaling.type, Type::llama3);

    json yarn = with(key, {{"rope_type", "yarn"}, {"original_max_position_embeddings", 512}});
    yarn["max_position_embeddings"] = 4096;
    EXPECT_EQ(read(yarn).rope_scaling.factor, 8.0);
    EXPECT_DOUBLE_EQ(read(yarn).rope_scaling.attention_factor, 0.1 * std::log(8.0) + 1);
    yarn[key]["factor"] = 4.0;
    yarn[key]["mscale"] = 0.7;
    yarn[key]["mscale_all_dim"] = 0.4;
    EXPECT_DOUBLE_EQ(
        read(yarn).rope_scaling.attention_factor,
        (0.07 * std::log(4.0) + 1) / (0.04 * std::log(4.0) + 1));
    yarn[key]["attention_factor"] = 1.5;
    EXPECT_EQ(read(yarn).rope_scaling.attention_factor, 1.5);
  }
}

// Ends of the scale: fast pairs keep their frequency, slow ones are divided by the factor.
TEST(TextShape, RopeFrequencies) {
  TextShape shape = llama_7b();
  const std::vector<double> plain = rope_frequencies(*rope_of(shape, 0), shape.head_dim);
  ASSERT_EQ(plain.size(), 64);
  EXPECT_EQ(plain[0], 1.0);
  EXPECT_DOUBLE_EQ(plain[32], 0.01);
  for (const auto type : {RopeScaling::Type::llama3, RopeScaling::Type::yarn}) {
    shape.rope_scaling = {.type = type, .factor = 8.0, .original_positions = 8192};
    const std::vector<double> scaled = rope_frequencies(*rope_of(shape, 0), shape.head_dim);
    EXPECT_EQ(scaled.front(), plain.front());
    EXPECT_DOUBLE_EQ(scaled.back(), plain.back() / 8);
    int between = 0;
    for (std::size_t i = 0; i < scaled.size(); ++i) {
      EXPECT_LE(scaled[i], plain[i]);
      EXPECT_GE(scaled[i], plain[i] / 8 * (1 - 1e-15));
      between += scaled[i] < plain[i] && scaled[i] > plain[i] / 8 * (1 + 1e-15) ? 1 : 0;
    }
    EXPECT_GT(between, 3);
  }
  shape.rope_scaling = {.type = RopeScaling::Type::linear, .factor = 2.0};
  EXPECT_EQ(rope_frequencies(*rope_of(shape, 0), shape.head_dim)[0], 0.5);
}

TEST(TextShape, RefusesUnknownKeys) {
  expect_refused(
      with("hiden_size", 12),
      "\"hiden_size\" is not known",
      "did you mean 'hidden_size'?",
      "remove it");
  expect_refused(with("logit_softcapping", 30.0), "\"logit_softcapping\" is not known");
}

TEST(TextShape, RefusesImpossibleSizes) {
  for (const char* key :
       {"num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size"}) {
    json config = small_config();
    config.erase(key);
    config.erase("model_type");  // else it is the family's
    expect_refused(config, std::string(key) + " is missing", "whole number");
  }
  for (const char* key :
       {"num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size"}) {
    for (const json& value : json::array(
             {0,
              -4,
              1.5,
              4.0,
              "4",
              true,
              json::array({4}),
              2147483648,
              std::numeric_limits<std::uint64_t>::max(),
              std::numeric_limits<std::int64_t>::min()})) {
      expect_refused(with(key, value), key, value.dump(), "whole number");
    }
  }
  expect_refused(with("max_position_embeddings", -1), "max_position_embeddings", "-1");
  expect_refused(with("num_key_value_heads", 2), "num_key_value_heads is 2", "divisor", "= 3");
  expect_refused(with("num_key_value_heads", 6), "num_key_value_heads is 6", "divisor", "= 3");
  expect_refused(with("hidden_size", 13), "head_dim", "13", "not divisible", "3");
  expect_refused(with("hidden_size", 9), "head_dim is 3", "even");
  expect_refused(with("head_dim", 5), "head_dim is 5", "even");
  for (const json& value : json::array({0, -1e-6, "1e-6", true})) {
    expect_refused(with("rms_norm_eps", value), "rms_norm_eps", "positive number");
    expect_refused(with("rope_theta", value), "rope_theta", "positive number");
    expect_refused(with("rope_parameters", {{"rope_theta", value}}), "rope_theta", "positive");
    expect_refused(with("initializer_range", value), "initializer_range", "positive number");
  }
  expect_refused(with("rms_norm_eps", std::numeric_limits<double>::infinity()), "rms_norm_eps");
  expect_refused(with("tie_word_embeddings", 1), "tie_word_embeddings", "true or false");
  expect_refused(json::array(), "object");
  expect_refused(nullptr, "object");
  json huge = small_config();
  for (const char* key : {"hidden_size", "intermediate_size", "vocab_size"}) {
    huge[key] = std::numeric_limits<std::int32_t>::max();
  }
  huge["head_dim"] = 2;
  huge["num_hidden_layers"] = 16384;
  expect_refused(huge, "parameters", "2^53");
  huge["num_hidden_layers"] = 16385;
  expect_refused(huge, "16385 layers", "at most 16384");
}

// As published with each model (sum of the sizes in its safetensors files).
TEST(TextShape, CountsParameters) {
  TextShape shape = llama_7b();
  EXPECT_EQ(shape.parameters(), 6738415616);  // LLaMA 2 7B
  shape.ffn = 14336;
  shape.kv_heads = 8;
  shape.vocab = 128256;
  EXPECT_EQ(shape.parameters(), 8030261248);  // LLaMA 3 8B
  shape.layers = 30;
  shape.hidden = 576;
  shape.heads = 9;
  shape.kv_heads = 3;
  shape.head_dim = 64;
  shape.ffn = 1536;
  shape.vocab = 49152;
  shape.tied = true;
  EXPECT_EQ(shape.parameters(), 134515008);  // SmolLM 135M
  shape.layers = 0;
  EXPECT_EQ(shape.parameters(), 576 * (49152 + 1));  // embedding and last norm

  const TextShape gpt2 = read(
      {{"model_type", "gpt2"},
       {"n_layer", 12},
       {"n_embd", 768},
       {"n_head", 12},
       {"vocab_size", 50257}});
  EXPECT_EQ(gpt2.parameters(), 124439808);  // GPT-2 small
  const json opt = {
      {"model_type", "opt"},
      {"num_hidden_layers", 12},
      {"hidden_size", 768},
      {"num_attention_heads", 12},
      {"ffn_dim", 3072},
      {"vocab_size", 50272}};
  EXPECT_EQ(read(opt).parameters(), 125239296);  // OPT 125M
  const json bert = {
      {"model_type", "bert"},
      {"num_hidden_layers", 12},
      {"hidden_size", 768},
      {"num_attention_heads", 12},
      {"intermediate_size", 3072},
      {"vocab_size", 30522}};
  EXPECT_EQ(read(bert).parameters(), 109514298);  // BERT base, uncased, without pooler
  const json qwen = {
      {"model_type", "qwen2"},
      {"num_hidden_layers", 24},
      {"hidden_size", 896},
      {"num_attention_heads", 14},
      {"num_key_value_heads", 2},
      {"intermediate_size", 4864},
      {"vocab_size", 151936},
      {"tie_word_embeddings", true}};
  EXPECT_EQ(read(qwen).parameters(), 494032768);  // Qwen2 0.5B
}

// The count is that of what the ranks store, whatever the domain.
TEST(TextShape, ParametersAreThoseStored) {
  for (const char* type : kTypes) {
    json config = least(type);
    config["tie_word_embeddings"] = std::string(type) == "qwen3";
    const TextShape shape = read(config);
    std::int64_t vectors = 0;  // replicated
    const Model model = text_model(shape);
    for (const ModelPart& one : model.parts) {
      const PartWeights part = one.part->weights(3);
      for (const Vector& vector : part.vectors) {
        vectors += vector.size;
      }
    }
    std::int64_t stored = -2 * vectors;
    for (int rank = 0; rank < 3; ++rank) {
      stored += stored_elements(shape, 3, rank);
    }
    EXPECT_EQ(stored, shape.parameters()) << type;
  }
}

TEST(TextShape, ConfigIsTheInverseOfReading) {
  TextShape shape = llama_7b();
  EXPECT_EQ(read(config_of(shape)), shape);
  shape.kv_heads = 4;
  shape.head_dim = 100;
  shape.max_positions = 0;
  shape.norm_eps = 0.1 + 0.2;  // needs all 17 digits
  shape.rope_theta = 1e6 / 3;
  shape.tied = true;
  shape.causal = false;
  shape.initializer_range = 1.0 / 3;
  EXPECT_EQ(read(config_of(shape)), shape);
  EXPECT_EQ(read(json::parse(config_of(shape).dump())), shape);  // through text, as in a file
  for (const char* type : kTypes) {
    SCOPED_TRACE(type);
    TextShape other = read(least(type));
    EXPECT_EQ(read(config_of(other)), other);
    other.initializer_range = 1.0 / 3;
    other.tied = !other.tied;
    const auto is = [&](const char* name) { return type == std::string(name); };
    other.padding_id = is("gpt2") || is("gpt_neox") ? -1 : 7;
    other.position_offset = is("roberta") ? 8 : other.position_offset;
    other.attention_dropout = 0.25;
    if (is("modernbert")) {
      other.attention_output_dropout = 0.25;
    }
    if (other.learned_positions) {
      other.activation = Activation::relu;
      other.max_positions = 77;
      other.residual_dropout = 0.35;
      other.embedding_dropout = is("opt") ? 0.0 : 0.35;
      if (is("roberta")) {
        other.transform_activation = Activation::gelu;
      }
    }
    EXPECT_EQ(read(config_of(other)), other);
  }
  shape.causal = true;
  for (const RopeScaling& scaling :
       {RopeScaling{.type = RopeScaling::Type::linear, .factor = 2.5},
        RopeScaling{
            .type = RopeScaling::Type::llama3,
            .factor = 8,
            .original_positions = 100,
            .low_freq_factor = 2,
            .high_freq_factor = 3},
        RopeScaling{
            .type = RopeScaling::Type::yarn,
            .factor = 8,
            .original_positions = 100,
            .beta_fast = 20,
            .beta_slow = 2,
            .attention_factor = 1.25,
            .truncate = false}}) {
    shape.rope_scaling = scaling;
    EXPECT_EQ(read(config_of(shape)), shape);
  }
  shape.qkv_bias = shape.out_bias = shape.mlp_bias = true;
  EXPECT_EQ(read(config_of(shape)), shape);
}

// The fingerprint tells two models apart just when their mathematics differs.
TEST(TextShape, FingerprintNamesTheMathematics) {
  const TextShape shape = llama_7b();
  EXPECT_EQ(fingerprint(shape).size(), 64);
  EXPECT_EQ(fingerprint(shape), fingerprint(read(json::parse(kTransformers5))));
  constexpr std::array kDifferent = {
      +[](TextShape& s) { s.architecture = "other"; },
      +[](TextShape& s) { ++s.layers; },
      +[](TextShape& s) { ++s.hidden; },
      +[](TextShape& s) { ++s.heads; },
      +[](TextShape& s) { ++s.kv_heads; },
      +[](TextShape& s) { ++s.head_dim; },
      +[](TextShape& s) { ++s.ffn; },
      +[](TextShape& s) { ++s.vocab; },
      +[](TextShape& s) { s.norm_eps = 1e-5; },
      +[](TextShape& s) { s.rope_theta = 10001.0; },
      +[](TextShape& s) { s.tied = true; },
      +[](TextShape& s) { s.causal = false; },
      +[](TextShape& s) { s.activation = Activation::relu; },
      +[](TextShape& s) { s.layer_norm = true; },
      +[](TextShape& s) { s.post_norm = true; },
      +[](TextShape& s) { s.qk_norm = true; },
      +[](TextShape& s) { s.qk_norm_wide = true; },
      +[](TextShape& s) { s.added_norm = true; },
      +[](TextShape& s) { s.parallel = true; },
      +[](TextShape& s) { s.turned = 2; },
      +[](TextShape& s) { s.transform_activation = Activation::relu; },
      +[](TextShape& s) { s.qkv_bias = true; },
      +[](TextShape& s) { s.out_bias = true; },
      +[](TextShape& s) { s.mlp_bias = true; },
      +[](TextShape& s) { s.learned_positions = true; },
      +[](TextShape& s) { s.segments = 2; },
      +[](TextShape& s) { s.masked_lm = true; },
      +[](TextShape& s) { s.padding_id = 0; },
      +[](TextShape& s) { s.rope_scaling.type = RopeScaling::Type::linear; },
      +[](TextShape& s) { s.rope_scaling.factor = 2; },
      +[](TextShape& s) { s.rope_scaling.original_positions = 2; },
      +[](TextShape& s) { s.rope_scaling.attention_factor = 2; },
  };
  for (std::size_t i = 0; i < kDifferent.size(); ++i) {
    TextShape other = shape;
    kDifferent[i](other);
    EXPECT_NE(fingerprint(other), fingerprint(shape)) << "change " << i;
  }
  TextShape same = shape;
  same.max_positions = 8192;
  same.initializer_range = 0.01;
  same.residual_dropout = same.embedding_dropout = same.attention_dropout = 0.1;
  EXPECT_EQ(fingerprint(same), fingerprint(shape));
}

// The whole vocabulary where it takes at most 1.5 GiB, else as many rows as do.
TEST(Tiles, OfAGpuHoldTheVocabulary) {
  TextShape model = read(small_config());
  model.hidden = 2048;
  model.vocab = 128256;
  EXPECT_EQ(gpu_tiles(model, 2).vocabulary, 128256);
  EXPECT_EQ(gpu_tiles(model, 2).logits_tokens(32000), 2097);
  EXPECT_EQ(gpu_tiles(model, 2).product_rows(2048), 0);
  model.hidden = 16384;
  EXPECT_EQ(gpu_tiles(model, 4).vocabulary, (std::int64_t{3} << 29) / (16384 * 4));
  // Those of a CPU: a token at least, and 64 rows.
  EXPECT_EQ(Tiles().logits_tokens(std::int64_t{1} << 30), 1);
  EXPECT_EQ(Tiles().product_rows(std::int64_t{1} << 30), 64);
}

// Models are the same computed in other tiles.
TEST(Tiles, AreNoPartOfAModelsName) {
  TextShape model = read(small_config());
  const Tiles tiles = gpu_tiles(model, 2);
  const Model tiled = with_tiles(model, tiles);
  EXPECT_EQ(tiled.sha256, fingerprint(model));
  EXPECT_EQ(tiled.tiles(), tiles);
  EXPECT_EQ(with_tiles(tiled, {}).tiles(), Tiles());
}

}  // namespace
}  // namespace paradyse
