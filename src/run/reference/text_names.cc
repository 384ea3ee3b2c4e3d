#include "src/run/reference/text_names.h"

namespace paradyse::reference {
namespace {

Names gpt2() {
  return {
      .layer = "transformer.h.",
      .attention_norm = "ln_1",
      .fused = "attn.c_attn",
      .o = "attn.c_proj",
      .mlp_norm = "ln_2",
      .up = "mlp.c_fc",
      .down = "mlp.c_proj",
      .tokens = "transformer.wte.weight",
      .positions = "transformer.wpe.weight",
      .last_norm = "transformer.ln_f",
      .head = "lm_head.weight"};
}

Names gpt_neox() {
  return {
      .layer = "gpt_neox.layers.",
      .attention_norm = "input_layernorm",
      .fused = "attention.query_key_value",
      .o = "attention.dense",
      .mlp_norm = "post_attention_layernorm",
      .up = "mlp.dense_h_to_4h",
      .down = "mlp.dense_4h_to_h",
      .tokens = "gpt_neox.embed_in.weight",
      .last_norm = "gpt_neox.final_layer_norm",
      .head = "embed_out.weight"};
}

Names opt() {
  return {
      .layer = "model.decoder.layers.",
      .attention_norm = "self_attn_layer_norm",
      .q = "self_attn.q_proj",
      .k = "self_attn.k_proj",
      .v = "self_attn.v_proj",
      .o = "self_attn.out_proj",
      .mlp_norm = "final_layer_norm",
      .up = "fc1",
      .down = "fc2",
      .tokens = "model.decoder.embed_tokens.weight",
      .positions = "model.decoder.embed_positions.weight",
      .last_norm = "model.decoder.final_layer_norm",
      .head = "lm_head.weight"};
}

Names bert(const std::string& first) {
  return {
      .layer = first + "encoder.layer.",
      .attention_norm = "attention.output.LayerNorm",
      .q = "attention.self.query",
      .k = "attention.self.key",
      .v = "attention.self.value",
      .o = "attention.output.dense",
      .mlp_norm = "output.LayerNorm",
      .up = "intermediate.dense",
      .down = "output.dense",
      .tokens = first + "embeddings.word_embeddings.weight",
      .positions = first + "embeddings.position_embeddings.weight",
      .segments = first + "embeddings.token_type_embeddings.weight",
      .embedding_norm = first + "embeddings.LayerNorm",
      .transform = "cls.predictions.transform.dense",
      .transform_norm = "cls.predictions.transform.LayerNorm",
      .head = "cls.predictions.decoder.weight",
      .head_bias = "cls.predictions.decoder.bias",
      .tied_head_bias = "cls.predictions.bias"};
}

Names roberta() {
  Names names = bert("roberta.");
  names.transform = "lm_head.dense";
  names.transform_norm = "lm_head.layer_norm";
  names.head = "lm_head.decoder.weight";
  names.head_bias = "lm_head.decoder.bias";
  names.tied_head_bias = "lm_head.bias";
  return names;
}

Names distilbert() {
  return {
      .layer = "distilbert.transformer.layer.",
      .attention_norm = "sa_layer_norm",
      .q = "attention.q_lin",
      .k = "attention.k_lin",
      .v = "attention.v_lin",
      .o = "attention.out_lin",
      .mlp_norm = "output_layer_norm",
      .up = "ffn.lin1",
      .down = "ffn.lin2",
      .tokens = "distilbert.embeddings.word_embeddings.weight",
      .positions = "distilbert.embeddings.position_embeddings.weight",
      .embedding_norm = "distilbert.embeddings.LayerNorm",
      .transform = "vocab_transform",
      .transform_norm = "vocab_layer_norm",
      .head = "vocab_projector.weight",
      .head_bias = "vocab_projector.bias",
      .tied_head_bias = "vocab_projector.bias"};
}

Names modernbert() {
  return {
      .layer = "model.layers.",
      .attention_norm = "attn_norm",
      .fused = "attn.Wqkv",
      .o = "attn.Wo",
      .mlp_norm = "mlp_norm",
      .fused_mlp = "mlp.Wi",
      .down = "mlp.Wo",
      .tokens = "model.embeddings.tok_embeddings.weight",
      .embedding_norm = "model.embeddings.norm",
      .last_norm = "model.final_norm",
      .transform = "head.dense",
      .transform_norm = "head.norm",
      .head = "decoder.weight",
      .head_bias = "decoder.bias",
      .tied_head_bias = "decoder.bias",
      .bare_first = true};
}

Names llama() {
  return {
      .layer = "model.layers.",
      .attention_norm = "input_layernorm",
      .q = "self_attn.q_proj",
      .k = "self_attn.k_proj",
      .v = "self_attn.v_proj",
      .o = "self_attn.o_proj",
      .mlp_norm = "post_attention_layernorm",
      .gate = "mlp.gate_proj",
      .up = "mlp.up_proj",
      .down = "mlp.down_proj",
      .tokens = "model.embed_tokens.weight",
      .last_norm = "model.norm",
      .head = "lm_head.weight"};
}

Names olmo2() {
  Names names = llama();
  names.attention_norm = "post_attention_layernorm";
  names.mlp_norm = "post_feedforward_layernorm";
  return names;
}

Names gemma() {
  Names names = llama();
  names.attention_added_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_added_norm = "post_feedforward_layernorm";
  return names;
}

Names phi3() {
  Names names = llama();
  names.q = names.k = names.v = names.gate = names.up = "";
  names.fused = "self_attn.qkv_proj";
  names.fused_mlp = "mlp.gate_up_proj";
  return names;
}

}  // namespace

Names names_of(const TextShape& shape) {
  const std::string& name = shape.architecture;
  return name == "gpt2"              ? gpt2()
         : name == "gpt_neox"        ? gpt_neox()
         : name == "opt"             ? opt()
         : name == "bert"            ? bert("bert.")
         : name == "roberta"         ? roberta()
         : name == "distilbert"      ? distilbert()
         : name == "modernbert"      ? modernbert()
         : name == "olmo2"           ? olmo2()
         : name == "phi3"            ? phi3()
         : name.starts_with("gemma") ? gemma()
                                     : llama();
}

std::map<std::string, std::vector<std::int64_t>> parameters(const TextShape& shape) {
  const Names names = names_of(shape);
  const std::int64_t H = shape.hidden;
  const std::int64_t query_width = shape.heads * shape.head_dim;
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  std::map<std::string, std::vector<std::int64_t>> all = {{names.tokens, {shape.vocab, H}}};
  const auto norm = [&](const std::string& name) {
    all[name + ".weight"] = {H};
    if (shape.layer_norm && shape.norm_bias) {
      all[name + ".bias"] = {H};
    }
  };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in, bool bias) {
    all[name + ".weight"] = shape.architecture == "gpt2" ? std::vector<std::int64_t>{in, out}
                                                         : std::vector<std::int64_t>{out, in};
    if (bias) {
      all[name + ".bias"] = {out};
    }
  };
  if (!shape.tied) {
    all[names.head] = {shape.vocab, H};
  }
  if (shape.learned_positions) {
    all[names.positions] = {shape.max_positions + shape.position_offset, H};
  }
  if (!names.segments.empty()) {
    all[names.segments] = {shape.segments, H};
  }
  for (const std::string& one : {names.embedding_norm, names.last_norm, names.transform_norm}) {
    if (!one.empty()) {
      norm(one);
    }
  }
  if (!names.transform.empty()) {
    linear(names.transform, H, H, shape.transform_bias);
    if (shape.head_bias) {
      all[shape.tied ? names.tied_head_bias : names.head_bias] = {shape.vocab};
    }
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = names.layer + std::to_string(layer) + ".";
    if (layer > 0 || !names.bare_first) {
      norm(prefix + names.attention_norm);
    }
    norm(prefix + names.mlp_norm);
    if (!names.attention_added_norm.empty()) {
      norm(prefix + names.attention_added_norm);
      norm(prefix + names.mlp_added_norm);
    }
    if (names.fused.empty()) {
      linear(prefix + names.q, query_width, H, shape.qkv_bias);
      linear(prefix + names.k, kv_width, H, shape.qkv_bias);
      linear(prefix + names.v, kv_width, H, shape.qkv_bias);
    } else {
      linear(prefix + names.fused, query_width + 2 * kv_width, H, shape.qkv_bias);
    }
    linear(prefix + names.o, H, query_width, shape.out_bias);
    if (shape.architecture == "qwen3" || shape.architecture == "olmo2" ||
        shape.architecture == "gemma3_text") {
      const bool wide = shape.architecture == "olmo2";
      all[prefix + "self_attn.q_norm.weight"] = {wide ? query_width : shape.head_dim};
      all[prefix + "self_attn.k_norm.weight"] = {wide ? kv_width : shape.head_dim};
    }
    if (!names.gate.empty()) {
      linear(prefix + names.gate, shape.ffn, H, shape.mlp_bias);
    }
    if (names.fused_mlp.empty()) {
      linear(prefix + names.up, shape.ffn, H, shape.mlp_bias);
    } else {
      linear(prefix + names.fused_mlp, 2 * shape.ffn, H, shape.mlp_bias);
    }
    linear(prefix + names.down, H, shape.ffn, shape.mlp_bias);
  }
  return all;
}

}  // namespace paradyse::reference
