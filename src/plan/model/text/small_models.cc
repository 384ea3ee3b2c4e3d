#include "src/plan/model/small_models.h"

#include "src/plan/model/text/text_shape.h"

namespace paradyse {

std::vector<std::pair<std::string, Model>> small_models() {
  TextShape grouped;  // query heads share key/value heads
  grouped.hidden = 12;
  grouped.heads = 6;
  grouped.kv_heads = 2;
  grouped.head_dim = 4;
  grouped.ffn = 13;
  grouped.vocab = 31;
  TextShape shared = grouped;  // one key/value head, tied head
  shared.heads = 5;
  shared.kv_heads = 1;
  shared.hidden = 14;
  shared.ffn = 11;
  shared.vocab = 29;
  shared.tied = true;
  TextShape few = grouped;  // fewer heads, and rows of all else, than ranks
  few.heads = 2;
  few.kv_heads = 2;
  few.ffn = 3;
  few.vocab = 7;
  TextShape qwen2 = grouped;
  qwen2.architecture = "qwen2";
  qwen2.qkv_bias = true;
  qwen2.head_dim = 16;  // CUDA's flash attention takes 8, 16, ...
  TextShape qwen3 = grouped;
  qwen3.architecture = "qwen3";
  qwen3.qk_norm = true;
  TextShape windowed = grouped;  // in one layer of two
  windowed.architecture = "qwen2";
  windowed.qkv_bias = true;
  windowed.head_dim = 16;
  windowed.window = 3;
  windowed.windowed = {true, false};
  TextShape gpt2;  // learned positions, LayerNorm, biases; as many key/value heads as query heads
  gpt2.architecture = "gpt2";
  gpt2.hidden = 15;
  gpt2.heads = gpt2.kv_heads = 3;
  gpt2.head_dim = 5;
  gpt2.ffn = 13;
  gpt2.vocab = 31;
  gpt2.max_positions = 20;
  gpt2.learned_positions = gpt2.layer_norm = true;
  gpt2.qkv_bias = gpt2.out_bias = gpt2.mlp_bias = true;
  gpt2.tied = true;
  gpt2.activation = Activation::gelu_tanh;
  TextShape opt = gpt2;
  opt.architecture = "opt";
  opt.position_offset = 2;
  opt.activation = Activation::relu;
  TextShape bert = gpt2;  // bidirectional, norms after the sums, masked tokens
  bert.architecture = "bert";
  bert.causal = false;
  bert.head_dim = 8;  // flash attention, as above
  bert.post_norm = bert.masked_lm = true;
  bert.segments = 2;
  bert.activation = Activation::gelu;
  std::vector<std::pair<std::string, Model>> models;
  for (auto& [name, shape] : std::vector<std::pair<const char*, TextShape>>{
           {"gqa 6/2", grouped},
           {"mqa 5/1 tied", shared},
           {"mha 2/2", few},
           {"qwen2", qwen2},
           {"qwen3", qwen3},
           {"window", windowed},
           {"gpt2", gpt2},
           {"opt", opt},
           {"bert", bert}}) {
    shape.layers = 2;
    shape.rope_theta = 500.0;
    shape.initializer_range = 0.2;  // at 0.3 the noise in a key bias's zero gradient nears 2e-5
    models.emplace_back(name, text_model(shape));
  }
  return models;
}

}  // namespace paradyse
