// OPT (Zhang et al. 2022), of the sizes that norm before each part.
#include "src/plan/model/text/text_families.h"

namespace paradyse {
namespace {

constexpr std::int64_t kPositionOffset = 2;  // rows 0 and 1 of the position embedding are unused

TextShape read_opt(const Keys& keys) {
  TextShape shape;
  shape.architecture = "opt";
  shape.layers = keys.size("num_hidden_layers");
  read_heads(keys, "hidden_size", "num_attention_heads", std::nullopt, shape);
  shape.ffn = keys.size("ffn_dim");
  shape.vocab = keys.size("vocab_size");
  const std::int64_t width = keys.size_or_absent("word_embed_proj_dim").value_or(shape.hidden);
  if (width != shape.hidden) {
    keys.refuse(
        "word_embed_proj_dim",
        "accepted is hidden_size = " + std::to_string(shape.hidden) +
            ": embeddings of another width (OPT 350M) are not implemented");
  }
  shape.learned_positions = true;
  shape.position_offset = kPositionOffset;
  shape.max_positions = keys.size("max_position_embeddings");
  shape.norm_eps = 1e-5;  // that of torch: there is no key
  shape.layer_norm = true;
  shape.activation = read_activation(keys, "activation_function", "relu");
  shape.qkv_bias = shape.out_bias = shape.mlp_bias = true;
  shape.tied = keys.flag("tie_word_embeddings", true);
  shape.initializer_range = keys.positive("init_std", shape.initializer_range);
  shape.padding_id = keys.padding_id(1, shape.vocab);
  shape.residual_dropout = keys.probability("dropout", 0.1);
  shape.attention_dropout = keys.probability("attention_dropout", 0.0);
  return shape;
}

nlohmann::json write_opt(const TextShape& shape) {
  return {
      {"num_hidden_layers", shape.layers},
      {"hidden_size", shape.hidden},
      {"word_embed_proj_dim", shape.hidden},
      {"num_attention_heads", shape.heads},
      {"ffn_dim", shape.ffn},
      {"vocab_size", shape.vocab},
      {"max_position_embeddings", shape.max_positions},
      {"activation_function", activation_name(shape.activation)},
      {"tie_word_embeddings", shape.tied},
      {"init_std", shape.initializer_range},
      {"pad_token_id", padding_of(shape)},
      {"dropout", shape.residual_dropout},
      {"attention_dropout", shape.attention_dropout},
      {"layerdrop", 0.0},
      {"do_layer_norm_before", true},
      {"enable_bias", true},
      {"layer_norm_elementwise_affine", true},
  };
}

WeightNames opt_names() {
  WeightNames names;
  names.layers = "model.decoder.layers.";
  names.attention_norm = "self_attn_layer_norm";
  names.q = "self_attn.q_proj";
  names.k = "self_attn.k_proj";
  names.v = "self_attn.v_proj";
  names.o = "self_attn.out_proj";
  names.mlp_norm = "final_layer_norm";
  names.up = "fc1";
  names.down = "fc2";
  names.tokens = "model.decoder.embed_tokens";
  names.positions = "model.decoder.embed_positions";
  names.last_norm = "model.decoder.final_layer_norm";
  names.head = "lm_head";
  return names;
}

}  // namespace

TextFamily opt_family() {
  return {
      .model_type = "opt",
      .architecture = "OPTForCausalLM",
      .read_keys =
          {"num_hidden_layers",
           "hidden_size",
           "num_attention_heads",
           "ffn_dim",
           "vocab_size",
           "word_embed_proj_dim",
           "max_position_embeddings",
           "activation_function",
           "tie_word_embeddings",
           "init_std",
           "pad_token_id",
           "dropout",
           "attention_dropout"},
      .fixed_keys =
          {{"is_causal", "true", "attention in both directions is not implemented"},
           {"do_layer_norm_before",
            "true",
            "post-norm layers (OPT 350M) are not implemented for OPT"},
           {"_remove_final_layer_norm", "false", "OPT without its last norm is not implemented"},
           {"enable_bias", "true", "OPT without biases is not implemented"},
           {"layer_norm_elementwise_affine", "true", "norms without weights are not implemented"},
           {"activation_dropout", "0.0", "dropout after the activation is not implemented"},
           {"layerdrop", "0.0", "dropping layers is not implemented"}},
      .sizes =
          {{"num_hidden_layers", 12},
           {"hidden_size", 768},
           {"num_attention_heads", 12},
           {"ffn_dim", 3072},
           {"vocab_size", 50272},
           {"max_position_embeddings", 2048}},
      .read = read_opt,
      .write = write_opt,
      .names = opt_names()};
}

}  // namespace paradyse
