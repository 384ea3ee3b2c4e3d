#include "src/plan/model/weight_names.h"

#include <map>
#include <stdexcept>

namespace paradyse {
namespace {

WeightNames llama() {
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

WeightNames gpt2() {
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

WeightNames opt() {
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

WeightNames bert() {
  WeightNames names;
  names.layers = "bert.encoder.layer.";
  names.attention_norm = "attention.output.LayerNorm";
  names.q = "attention.self.query";
  names.k = "attention.self.key";
  names.v = "attention.self.value";
  names.o = "attention.output.dense";
  names.mlp_norm = "output.LayerNorm";
  names.up = "intermediate.dense";
  names.down = "output.dense";
  names.tokens = "bert.embeddings.word_embeddings";
  names.positions = "bert.embeddings.position_embeddings";
  names.segments = "bert.embeddings.token_type_embeddings";
  names.embedding_norm = "bert.embeddings.LayerNorm";
  names.transform = "cls.predictions.transform.dense";
  names.transform_norm = "cls.predictions.transform.LayerNorm";
  names.head = "cls.predictions.decoder";
  names.head_bias = "cls.predictions.bias";
  return names;
}

}  // namespace

const WeightNames& weight_names(const std::string& architecture) {
  static const std::map<std::string, WeightNames> table = {
      {"llama", llama()},
      {"mistral", llama()},
      {"qwen2", llama()},
      {"qwen3", llama()},
      {"gpt2", gpt2()},
      {"opt", opt()},
      {"bert", bert()}};
  const auto found = table.find(architecture);
  if (found == table.end()) {
    throw std::logic_error("weight_names: unknown architecture '" + architecture + "'");
  }
  return found->second;
}

}  // namespace paradyse
