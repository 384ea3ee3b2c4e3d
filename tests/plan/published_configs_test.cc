// The config.json of published models, as their folders have them: what is read of each, and what
// is refused for which reason.  Counts of parameters are those that transformers has.
#include <cstdint>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "src/plan/model/text/text_shape.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::HasSubstr;

TextShape read(const char* config) {
  return text_shape_from_config(nlohmann::json::parse(config), "a folder");
}

constexpr const char* kMistral7B = R"({"architectures": ["MistralForCausalLM"],
  "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
  "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.42.0.dev0", "use_cache": true,
  "vocab_size": 32768})";

constexpr const char* kPhi3Mini4k = R"({"_name_or_path": "Phi-3-mini-4k-instruct",
  "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config",
               "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"},
  "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu",
  "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
  "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 32, "original_max_position_embeddings": 4096,
  "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.40.2", "use_cache": true,
  "vocab_size": 32064})";

constexpr const char* kOlmo2 = R"({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
  "model_type": "olmo2", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": null,
  "rope_theta": 500000, "tie_word_embeddings": false, "torch_dtype": "float32",
  "transformers_version": "4.47.0", "use_cache": false, "vocab_size": 100352})";

constexpr const char* kMistral7B01 = R"({"architectures": ["MistralForCausalLM"],
  "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
  "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
  "use_cache": true, "vocab_size": 32000})";

constexpr const char* kGemma2 = R"({"architectures": ["Gemma2ForCausalLM"],
  "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0,
  "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
  "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
  "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
  "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2",
  "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0,
  "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
  "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.42.4",
  "use_cache": true, "vocab_size": 256000})";

constexpr const char* kGemma3 = R"({"architectures": ["Gemma3ForCausalLM"],
  "attention_bias": false, "attention_dropout": 0.0, "attn_logit_softcapping": null,
  "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
  "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
  "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912,
  "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
  "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0,
  "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
  "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "use_cache": true,
  "vocab_size": 262144})";

constexpr const char* kPythia = R"({"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0,
  "eos_token_id": 0, "hidden_act": "gelu", "hidden_size": 2048, "initializer_range": 0.02,
  "intermediate_size": 8192, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
  "model_type": "gpt_neox", "num_attention_heads": 16, "num_hidden_layers": 24,
  "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false,
  "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": true,
  "use_parallel_residual": true, "vocab_size": 50304})";

constexpr const char* kRoberta = R"({"architectures": ["RobertaForMaskedLM"],
  "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02,
  "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 514,
  "model_type": "roberta", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
  "type_vocab_size": 1, "vocab_size": 50265})";

constexpr const char* kDistilbert = R"({"activation": "gelu",
  "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dim": 768, "dropout": 0.1,
  "hidden_dim": 3072, "initializer_range": 0.02, "max_position_embeddings": 512,
  "model_type": "distilbert", "n_heads": 12, "n_layers": 6, "pad_token_id": 0, "qa_dropout": 0.1,
  "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": false, "tie_weights_": true,
  "transformers_version": "4.10.0.dev0", "vocab_size": 30522})";

constexpr const char* kModernBert = R"({"architectures": ["ModernBertForMaskedLM"],
  "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 50281,
  "classifier_activation": "gelu", "classifier_bias": false, "classifier_dropout": 0.0,
  "classifier_pooling": "mean", "cls_token_id": 50281, "decoder_bias": true,
  "deterministic_flash_attn": false, "embedding_dropout": 0.0, "eos_token_id": 50282,
  "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "gradient_checkpointing": false,
  "hidden_activation": "gelu", "hidden_size": 768, "initializer_cutoff_factor": 2.0,
  "initializer_range": 0.02, "intermediate_size": 1152, "layer_norm_eps": 1e-05,
  "local_attention": 128, "local_rope_theta": 10000.0, "max_position_embeddings": 8192,
  "mlp_bias": false, "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": false,
  "norm_eps": 1e-05, "num_attention_heads": 12, "num_hidden_layers": 22, "pad_token_id": 50283,
  "position_embedding_type": "absolute", "sep_token_id": 50282, "tie_word_embeddings": true,
  "torch_dtype": "float32", "transformers_version": "4.47.0.dev0", "vocab_size": 50368})";

TEST(PublishedConfigs, AreReadWhole) {
  EXPECT_EQ(read(kMistral7B).parameters(), 7248023552);
  EXPECT_EQ(read(kPhi3Mini4k).parameters(), 3821079552);
  EXPECT_EQ(read(kOlmo2).parameters(), 7298617344);
  EXPECT_EQ(read(kPythia).parameters(), 1414647808);
  EXPECT_EQ(read(kRoberta).parameters(), 124697433);
  EXPECT_EQ(read(kDistilbert).parameters(), 66985530);
  EXPECT_EQ(read(kMistral7B01).parameters(), 7241732096);
  EXPECT_EQ(read(kGemma2).parameters(), 2614341888);
  EXPECT_EQ(read(kGemma3).parameters(), 999885952);
  EXPECT_EQ(read(kModernBert).parameters(), 149655232);
}

TEST(PublishedConfigs, SayTheMathematics) {
  EXPECT_EQ(read(kMistral7B).window, 0);
  EXPECT_EQ(read(kPhi3Mini4k).window, 2047);
  EXPECT_EQ(read(kMistral7B01).window_of(31), 4096);
  const TextShape gemma2 = read(kGemma2);
  EXPECT_EQ(gemma2.window_of(0), 4096);
  EXPECT_EQ(gemma2.window_of(25), 0);
  EXPECT_EQ(gemma2.score_root, 0);  // that of the head's width
  const TextShape gemma3 = read(kGemma3);
  EXPECT_EQ(gemma3.window_of(4), 512);
  EXPECT_EQ(gemma3.window_of(5), 0);
  EXPECT_EQ(gemma3.window_of(25), 512);
  EXPECT_EQ(read(kPhi3Mini4k).turned, 0);
  const TextShape olmo2 = read(kOlmo2);
  EXPECT_TRUE(olmo2.added_norm && olmo2.qk_norm && olmo2.qk_norm_wide && !olmo2.post_norm);
  const TextShape pythia = read(kPythia);
  EXPECT_TRUE(pythia.parallel && pythia.layer_norm && pythia.qkv_bias && !pythia.tied);
  EXPECT_EQ(pythia.turned, 32);
  const TextShape roberta = read(kRoberta);
  EXPECT_EQ(length_limit(roberta).tokens, 512);
  EXPECT_EQ(roberta.position_offset, 2);
  EXPECT_EQ(roberta.position_rows(), 514);
  EXPECT_FALSE(roberta.padding_in_documents);
  const TextShape distilbert = read(kDistilbert);
  EXPECT_EQ(distilbert.residual_dropout, 0.1);
  EXPECT_EQ(distilbert.attention_output_dropout, 0.0);
  EXPECT_EQ(distilbert.segments, 0);
  const TextShape modernbert = read(kModernBert);
  EXPECT_FALSE(modernbert.causal || modernbert.norm_bias || modernbert.post_norm);
  EXPECT_EQ(modernbert.window_of(0), 0);
  EXPECT_EQ(modernbert.window_of(1), 65);  // 64 to each side, and its own
  EXPECT_EQ(modernbert.window_of(20), 65);
  EXPECT_EQ(modernbert.window_of(21), 0);
  EXPECT_EQ(rope_of(modernbert, 0)->theta, 160000);
  EXPECT_EQ(rope_of(modernbert, 1)->theta, 10000);
  EXPECT_EQ(text_model(modernbert).period(), 3);
}

// The config with one key changed is refused by a message that says each of `parts`.
template <class... Parts>
void expect_refused(
    const char* text, const char* key, const nlohmann::json& value, const Parts&... parts) {
  nlohmann::json config = nlohmann::json::parse(text);
  config[key] = value;
  EXPECT_THAT(
      test::refusal([&] { text_shape_from_config(config, "a folder"); }),
      testing::AllOf(HasSubstr(key), HasSubstr(parts)...));
}

TEST(PublishedConfigs, AreRefusedForWhatIsNotThere) {
  // Phi-3-mini-128k, Phi-4-mini
  expect_refused(kPhi3Mini4k, "rope_scaling", {{"type", "longrope"}}, "longrope", "\"default\"");
  expect_refused(kPhi3Mini4k, "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}, "\"default\"");
  expect_refused(kPhi3Mini4k, "partial_rotary_factor", 0.6, "even");
  expect_refused(kPhi3Mini4k, "embd_pdrop", 0.1, "0.0");
  expect_refused(kOlmo2, "partial_rotary_factor", 0.5, "not implemented");
  expect_refused(kOlmo2, "clip_qkv", 8.0, "not known");
  expect_refused(kPythia, "rotary_pct", 1.5, "part of head_dim");
  // transformers 4.45 to 4.57 writes these beside the keys that it reads.
  expect_refused(kPythia, "rope_theta", 500.0, "rotary_emb_base", "make it 10000");
  expect_refused(kPythia, "partial_rotary_factor", 0.5, "rotary_pct", "make it 0.25");
  expect_refused(kPythia, "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}, "\"default\"");
  expect_refused(
      kPythia, "rope_parameters", {{"partial_rotary_factor", 0.5}}, "rotary_pct is 0.25", "0.5");
  expect_refused(kRoberta, "pad_token_id", nullptr, "first position");
  expect_refused(kRoberta, "max_position_embeddings", 2, "more than pad_token_id + 1 = 2");
  expect_refused(kRoberta, "is_decoder", true, "false");
  expect_refused(kDistilbert, "sinusoidal_pos_embds", true, "not learned");
  expect_refused(kGemma2, "model_type", "gemma", "\"gemma2\"");
  expect_refused(kGemma3, "model_type", "gemma3", "\"gemma3_text\"");
  expect_refused(kGemma3, "attn_logit_softcapping", 50.0, "caps no scores");
  expect_refused(kModernBert, "mlp_dropout", 0.1, "inside an MLP");
  expect_refused(kModernBert, "layer_norm_eps", 1e-6, "norm_eps, which is");
  expect_refused(kModernBert, "hidden_activation", "relu", "has a gate");
  expect_refused(kModernBert, "initializer_cutoff_factor", 3.0, "accepted is 2");
  expect_refused(kModernBert, "initializer_cutoff_factor", nullptr, "accepted is 2");
  expect_refused(kModernBert, "sparse_pred_ignore_index", 0, "-100");
  expect_refused(kModernBert, "num_attention_heads", 256, "turn pairs");
  expect_refused(
      kModernBert, "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}, "not implemented");
  expect_refused(
      kModernBert,
      "rope_parameters",
      {{"full_attention", {{"rope_type", "yarn"}, {"factor", 2.0}}}},
      "full_attention");
  expect_refused(
      kModernBert,
      "rope_parameters",
      {{"sliding_attention", {{"rope_theta", 500.0}}}},
      "local_rope_theta",
      "500");
  expect_refused(kModernBert, "rope_parameters", {{"rope_theta", 500.0}}, "rope_theta");
  expect_refused(kModernBert, "global_attn_every_n_layers", 0, "whole number");
  expect_refused(
      kModernBert,
      "layer_types",
      std::vector<std::string>(22, "full_attention"),
      "global_attn_every_n_layers is 3",
      "layer_types differs");
  expect_refused(kModernBert, "is_decoder_of", true, "not known");
}

TextShape read_with(const char* text, const nlohmann::json& changes) {
  nlohmann::json config = nlohmann::json::parse(text);
  config.update(changes);
  return text_shape_from_config(config, "a folder");
}

TEST(PublishedConfigs, MaySayAKeyTwice) {
  const nlohmann::json twice = {{"rope_theta", 10000}, {"partial_rotary_factor", 0.25}};
  EXPECT_EQ(read_with(kPythia, twice), read(kPythia));
  nlohmann::json alone = nlohmann::json::parse(kPythia);
  alone.erase("rotary_pct");
  alone.erase("rotary_emb_base");
  alone.update(twice);
  EXPECT_EQ(read(alone.dump().c_str()), read(kPythia));  // what transformers takes anyway
  expect_refused(alone.dump().c_str(), "rope_theta", 500, "rotary_emb_base or rope_parameters");
  alone["rope_parameters"] = {{"rope_theta", 500}, {"partial_rotary_factor", 0.25}};
  expect_refused(alone.dump().c_str(), "rope_theta", 10000, "make it 500");
  alone["rope_theta"] = 500;
  EXPECT_EQ(read(alone.dump().c_str()), read_with(kPythia, {{"rotary_emb_base", 500}}));
}

TEST(PublishedConfigs, AgreeInWhatTheySayOfRopeTwice) {
  const nlohmann::json half = {{"rope_theta", 500.0}, {"partial_rotary_factor", 0.5}};
  nlohmann::json both = {{"rope_scaling", half}, {"rope_parameters", half}};
  nlohmann::json mini = nlohmann::json::parse(kPhi3Mini4k);
  mini.erase("rope_theta");
  const std::string text = mini.dump();
  EXPECT_EQ(read_with(text.c_str(), both).rope_theta, 500.0);
  both["rope_scaling"] = nlohmann::json::object();  // says nothing
  EXPECT_EQ(read_with(text.c_str(), both).rope_theta, 500.0);
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    both["rope_scaling"] = half;
    both["rope_scaling"][key] = 0.75;
    const auto refusal = [&] { return test::refusal([&] { read_with(text.c_str(), both); }); };
    EXPECT_THAT(
        refusal(),
        testing::AllOf(
            HasSubstr(std::string("rope_parameters: ") + key + " is "),
            HasSubstr("but with rope_scaling it is 0.75")));
    both["rope_scaling"].erase(key);  // transformers takes this one alone, with what is usual
    EXPECT_THAT(refusal(), HasSubstr("but with rope_scaling it is 1"));
  }
}

TEST(PublishedConfigs, ANullThatIsFalseToTransformersIsRefused) {
  for (const char* const text : {kMistral7B, kPhi3Mini4k, kOlmo2, kGemma2, kGemma3, kPythia}) {
    expect_refused(text, "is_causal", nullptr, "is null", "as false");
    nlohmann::json config = nlohmann::json::parse(text);
    config["is_causal"] = true;
    EXPECT_EQ(read(config.dump().c_str()), read(text));
  }
  nlohmann::json gpt2 = {{"model_type", "gpt2"}};
  nlohmann::json opt = {{"model_type", "opt"}};
  expect_refused(gpt2.dump().c_str(), "is_causal", nullptr, "is null", "as false");
  expect_refused(gpt2.dump().c_str(), "scale_attn_weights", nullptr, "is null", "as false");
  expect_refused(gpt2.dump().c_str(), "tie_word_embeddings", nullptr, "is null", "as false");
  expect_refused(opt.dump().c_str(), "is_causal", nullptr, "is null", "as false");
  expect_refused(opt.dump().c_str(), "do_layer_norm_before", nullptr, "is null", "as false");
  expect_refused(kPythia, "use_parallel_residual", nullptr, "is null", "as false");
  expect_refused(kModernBert, "decoder_bias", nullptr, "is null", "as false");
  expect_refused(kRoberta, "position_embedding_type", nullptr, "is null", "no positions");
  // Null is what these are otherwise, or transformers does not read them.
  EXPECT_EQ(read_with(kMistral7B, {{"tie_word_embeddings", nullptr}}), read(kMistral7B));
  EXPECT_EQ(read_with(kMistral7B01, {{"use_sliding_window", nullptr}}), read(kMistral7B01));
}

TEST(PublishedConfigs, OfGemma3AreReadAsBothVersionsDo) {
  nlohmann::json config = nlohmann::json::parse(kGemma3);
  expect_refused(
      kGemma3, "rope_scaling", {{"type", "linear"}, {"factor", 8.0}}, "type is", "as rope_type");
  EXPECT_EQ(
      read_with(kGemma3, {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}})
          .rope_scaling.factor,
      8.0);
  expect_refused(kGemma3, "_sliding_window_pattern", 2, "sliding_window_pattern", "layer_types");
  EXPECT_EQ(read_with(kGemma3, {{"_sliding_window_pattern", 6}}), read(kGemma3));
  config.erase("sliding_window_pattern");
  const std::string without = config.dump();
  EXPECT_EQ(read_with(without.c_str(), {{"_sliding_window_pattern", 6}}), read(kGemma3));
  expect_refused(without.c_str(), "_sliding_window_pattern", 2, "sliding_window_pattern");
  config["_sliding_window_pattern"] = 2;
  config["layer_types"] = std::vector<std::string>(26, "attention");  // full_attention's old name
  EXPECT_EQ(read(config.dump().c_str()).window, 0);
}

}  // namespace
}  // namespace paradyse
