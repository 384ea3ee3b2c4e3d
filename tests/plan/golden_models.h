// Models of which golden files have plans and counts: sizes that few ranks divide.
#pragma once

#include <cstdint>
#include <vector>

#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/support/grid_shapes.h"

namespace paradyse::test {

inline TextShape llama() {  // query heads share key/value heads; sizes that ranks do not divide
  TextShape m;
  m.layers = 6;
  m.hidden = 96;
  m.heads = 6;
  m.kv_heads = 2;
  m.head_dim = 16;
  m.ffn = 250;
  m.vocab = 259;
  m.tied = true;
  return m;
}

inline TextShape gpt2() {
  TextShape m;
  m.architecture = "gpt2";
  m.layers = 5;
  m.hidden = 80;
  m.heads = m.kv_heads = 5;
  m.head_dim = 16;
  m.ffn = 320;
  m.vocab = 10007;  // two tiles
  m.max_positions = 1 << 14;
  m.learned_positions = m.layer_norm = true;
  m.qkv_bias = m.out_bias = m.mlp_bias = true;
  m.tied = true;
  m.activation = Activation::gelu_tanh;
  m.embedding_dropout = m.residual_dropout = 0.1;
  return m;
}

inline TextShape bert() {
  TextShape m = gpt2();
  m.architecture = "bert";
  m.layers = 4;
  m.vocab = 331;
  m.causal = false;
  m.post_norm = m.masked_lm = true;
  m.segments = 2;
  m.activation = Activation::gelu;
  return m;
}

inline TextShape qwen3() {
  TextShape m = llama();
  m.architecture = "qwen3";
  m.layers = 12;
  m.qk_norm = true;
  m.tied = false;
  return m;
}

inline std::vector<GridModel> grid_models() {
  StditShape video{.depth = 3, .hidden = 96, .heads = 6, .kv_heads = 2, .mlp_hidden = 250};
  const DimSizes clip = {{"frames", 10}, {"patches", 66}};
  std::vector<GridModel> all = {{.name = "stdit", .shape = video, .dims = clip, .samples = 3}};
  video.caption_channels = 40;
  all.push_back({.name = "stdit_text", .shape = video, .dims = clip, .samples = 2});
  all.back().dims["text"] = 7;

  const EvoformerShape trunk{
      .blocks = 2,
      .msa_hidden = 48,
      .pair_hidden = 40,
      .msa_heads = 6,
      .pair_heads = 5,
      .head_dim = 8,
      .outer_channels = 12,
      .triangle_channels = 42};
  EvoformerShape protein = trunk;
  const DimSizes alignment = {{"sequences", 21}, {"residues", 26}, {"i", 26}, {"j", 26}};
  all.push_back({.name = "evoformer", .shape = protein, .dims = alignment});
  protein.multimer = true;
  all.push_back({.name = "multimer", .shape = protein, .dims = alignment});
  protein.multimer = false;
  protein.global_column = true;
  protein.msa_hidden = 24;
  protein.pair_head_dim = 12;
  all.push_back({.name = "extra_msa", .shape = protein, .dims = alignment});
  all.back().dims["sequences"] = 50;
  protein = test::with_extra_blocks(trunk, 1);
  protein.extra_hidden = 24;
  all.push_back({.name = "openfold_extra", .shape = protein, .dims = alignment});
  all.back().dims["extra_sequences"] = 50;
  return all;
}

}  // namespace paradyse::test
