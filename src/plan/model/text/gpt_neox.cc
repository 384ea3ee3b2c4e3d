// GPT-NeoX (Black et al. 2022) and the Pythia models (Biderman et al. 2023): attention and MLP side
// by side, a part of each head rotated, q, k and v of each head together in one tensor.
#include "src/plan/model/text/text_families.h"

namespace paradyse {
namespace {

TextShape read_gpt_neox(const Keys& keys) {
  TextShape shape;
  shape.architecture = "gpt_neox";
  shape.layers = keys.size("num_hidden_layers");
  read_heads(keys, "hidden_size", "num_attention_heads", std::nullopt, shape);
  shape.ffn = keys.size("intermediate_size");
  shape.vocab = keys.size("vocab_size");
  shape.max_positions = keys.size("max_position_embeddings");
  shape.norm_eps = keys.positive("layer_norm_eps", 1e-5);
  shape.layer_norm = true;
  shape.parallel = keys.flag("use_parallel_residual", true);
  read_rope(
      keys,
      shape,
      {.theta = "rotary_emb_base",
       .part = "rotary_pct",
       .absent_part = 0.25,
       .also_theta = "rope_theta",
       .also_part = "partial_rotary_factor",
       .stretched = false});
  shape.activation = read_activation(keys, "hidden_act", "gelu");
  shape.qkv_bias = shape.out_bias = keys.flag("attention_bias", true);
  shape.mlp_bias = true;
  shape.tied = keys.flag("tie_word_embeddings", false);
  shape.initializer_range = keys.positive("initializer_range", shape.initializer_range);
  shape.residual_dropout = shape.embedding_dropout = keys.probability("hidden_dropout", 0.0);
  shape.attention_dropout = keys.probability("attention_dropout", 0.0);
  return shape;
}

nlohmann::json write_gpt_neox(const TextShape& shape) {
  return {
      {"num_hidden_layers", shape.layers},
      {"hidden_size", shape.hidden},
      {"num_attention_heads", shape.heads},
      {"intermediate_size", shape.ffn},
      {"vocab_size", shape.vocab},
      {"max_position_embeddings", shape.max_positions},
      {"layer_norm_eps", shape.norm_eps},
      {"use_parallel_residual", shape.parallel},
      {"rotary_pct", turned_part(shape)},
      {"rotary_emb_base", shape.rope_theta},
      {"hidden_act", activation_name(shape.activation)},
      {"attention_bias", shape.qkv_bias},
      {"tie_word_embeddings", shape.tied},
      {"initializer_range", shape.initializer_range},
      {"hidden_dropout", shape.residual_dropout},
      {"attention_dropout", shape.attention_dropout},
  };
}

WeightNames gpt_neox_names() {
  WeightNames names;
  names.layers = "gpt_neox.layers.";
  names.attention_norm = "input_layernorm";
  names.q = names.k = names.v = "attention.query_key_value";
  names.o = "attention.dense";
  names.mlp_norm = "post_attention_layernorm";
  names.up = "mlp.dense_h_to_4h";
  names.down = "mlp.dense_4h_to_h";
  names.tokens = "gpt_neox.embed_in";
  names.last_norm = "gpt_neox.final_layer_norm";
  names.head = "embed_out";
  names.fused = names.fused_by_head = true;
  return names;
}

}  // namespace

TextFamily gpt_neox_family() {
  return {
      .model_type = "gpt_neox",
      .architecture = "GPTNeoXForCausalLM",
      .read_keys =
          {"num_hidden_layers",
           "hidden_size",
           "num_attention_heads",
           "intermediate_size",
           "vocab_size",
           "max_position_embeddings",
           "layer_norm_eps",
           "use_parallel_residual",
           "rotary_pct",
           "rotary_emb_base",
           "partial_rotary_factor",  // rotary_pct's other name
           "rope_theta",             // rotary_emb_base's
           "rope_scaling",
           "rope_parameters",
           "hidden_act",
           "attention_bias",
           "tie_word_embeddings",
           "initializer_range",
           "pad_token_id",  // pads batches, of which there are none here
           "hidden_dropout",
           "attention_dropout"},
      .fixed_keys = {{"is_causal", "true", "attention in both directions is not implemented"}},
      .sizes =
          {{"num_hidden_layers", 44},
           {"hidden_size", 6144},
           {"num_attention_heads", 64},
           {"intermediate_size", 24576},
           {"vocab_size", 50432},
           {"max_position_embeddings", 2048}},
      .read = read_gpt_neox,
      .write = write_gpt_neox,
      .names = gpt_neox_names()};
}

}  // namespace paradyse
