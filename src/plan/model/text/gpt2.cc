// GPT-2 (Radford et al. 2019).
#include "src/plan/model/text/text_families.h"

namespace paradyse {
namespace {

TextShape read_gpt2(const Keys& keys) {
  TextShape shape;
  shape.architecture = "gpt2";
  shape.layers = keys.size("n_layer");
  read_heads(keys, "n_embd", "n_head", std::nullopt, shape);
  shape.ffn = keys.size_or_absent("n_inner").value_or(4 * shape.hidden);
  shape.vocab = keys.size("vocab_size");
  shape.learned_positions = true;
  shape.max_positions = keys.size("n_positions");
  shape.norm_eps = keys.positive("layer_norm_epsilon", 1e-5);
  shape.layer_norm = true;
  shape.activation = read_activation(keys, "activation_function", "gelu_new");
  shape.qkv_bias = shape.out_bias = shape.mlp_bias = true;
  shape.tied = keys.flag("tie_word_embeddings", true);
  shape.initializer_range = keys.positive("initializer_range", shape.initializer_range);
  shape.scaled_outputs = true;
  shape.embedding_dropout = keys.probability("embd_pdrop", 0.1);
  shape.residual_dropout = keys.probability("resid_pdrop", 0.1);
  shape.attention_dropout = keys.probability("attn_pdrop", 0.1);
  return shape;
}

nlohmann::json write_gpt2(const TextShape& shape) {
  return {
      {"n_layer", shape.layers},
      {"n_embd", shape.hidden},
      {"n_head", shape.heads},
      {"n_inner", shape.ffn},
      {"vocab_size", shape.vocab},
      {"n_positions", shape.max_positions},
      {"layer_norm_epsilon", shape.norm_eps},
      {"activation_function", activation_name(shape.activation)},
      {"tie_word_embeddings", shape.tied},
      {"initializer_range", shape.initializer_range},
      {"embd_pdrop", shape.embedding_dropout},
      {"resid_pdrop", shape.residual_dropout},
      {"attn_pdrop", shape.attention_dropout},
      {"scale_attn_weights", true},
      {"scale_attn_by_inverse_layer_idx", false},
      {"reorder_and_upcast_attn", false},
  };
}

WeightNames gpt2_names() {
  WeightNames names;
  names.layers = "transformer.h.";
  names.attention_norm = "ln_1";
  names.q = names.k = names.v = "attn.c_attn";
  names.o = "attn.c_proj";
  names.mlp_norm = "ln_2";
  names.up = "mlp.c_fc";
  names.down = "mlp.c_proj";
  names.tokens = "transformer.wte";
  names.positions = "transformer.wpe";
  names.last_norm = "transformer.ln_f";
  names.head = "lm_head";
  names.fused = true;
  names.input_first = true;
  return names;
}

}  // namespace

TextFamily gpt2_family() {
  return {
      .model_type = "gpt2",
      .architecture = "GPT2LMHeadModel",
      .read_keys =
          {"n_layer",
           "n_embd",
           "n_head",
           "n_inner",
           "vocab_size",
           "n_positions",
           "n_ctx",                    // n_positions' other name in old files; nobody reads it
           "pad_token_id",             // pads batches, of which there are none here
           "reorder_and_upcast_attn",  // how the same sums are rounded
           "layer_norm_epsilon",
           "activation_function",
           "tie_word_embeddings",
           "initializer_range",
           "embd_pdrop",
           "resid_pdrop",
           "attn_pdrop"},
      .fixed_keys =
          {{"is_causal", "true", "attention in both directions is not implemented"},
           {"scale_attn_weights", "true", "unscaled attention is not implemented"},
           {"scale_attn_by_inverse_layer_idx",
            "false",
            "attention scaled by the layer's index is not implemented"}},
      .sizes =
          {{"n_layer", 12},
           {"n_embd", 768},
           {"n_head", 12},
           {"vocab_size", 50257},
           {"n_positions", 1024}},
      .read = read_gpt2,
      .write = write_gpt2,
      .names = gpt2_names(),
      .also_called = {
          {"num_hidden_layers", "n_layer"},
          {"hidden_size", "n_embd"},
          {"num_attention_heads", "n_head"},
          {"max_position_embeddings", "n_positions"}}};
}

}  // namespace paradyse
