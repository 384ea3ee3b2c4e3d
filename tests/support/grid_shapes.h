// Small models of several dims, of sizes that few ranks divide.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"

namespace paradyse::test {

// A model and the sizes of its samples.
struct GridModel {
  std::string name;
  Model shape;
  DimSizes dims;
  std::int64_t samples = 1;  // of a batch
};
// As tests are listed.
inline std::ostream& operator<<(std::ostream& out, const GridModel& model) {
  return out << model.name;
}

inline StditShape small_stdit(std::int64_t depth) {
  return {.depth = depth, .hidden = 8, .heads = 4, .kv_heads = 2, .mlp_hidden = 12};
}

inline StditShape with_text(StditShape shape) {
  shape.caption_channels = 3;
  return shape;
}

// Open-Sora's; heads of 4 columns, which frames turn in pairs.
inline StditShape small_stdit3(std::int64_t depth) {
  return {
      .depth = depth,
      .hidden = 16,
      .heads = 4,
      .kv_heads = 4,
      .mlp_hidden = 12,
      .channels = 1,
      .caption_channels = 3,
      .stdit3 = true};
}

inline EvoformerShape small_evoformer(std::int64_t blocks) {
  return {
      .blocks = blocks,
      .msa_hidden = 6,
      .pair_hidden = 5,
      .msa_heads = 3,
      .pair_heads = 2,
      .head_dim = 2,
      .outer_channels = 2,
      .triangle_channels = 3,
      .transition = 2};
}

// The extra-MSA stack: columns attend globally; heads of two widths.
inline EvoformerShape small_extra_msa(std::int64_t blocks) {
  EvoformerShape shape = small_evoformer(blocks);
  shape.pair_head_dim = 3;
  shape.global_column = true;
  return shape;
}

inline EvoformerShape in_openfold(EvoformerShape shape) {
  shape.openfold = true;
  return shape;
}

// A batch says which letters count.
inline EvoformerShape with_masks(EvoformerShape shape) {
  shape.msa_mask = true;
  return shape;
}

// Blocks for extra sequences before a trunk, with sizes of their own.
inline EvoformerShape with_extra_blocks(EvoformerShape shape, std::int64_t blocks) {
  shape.openfold = true;
  shape.extra_blocks = blocks;
  shape.extra_hidden = 4;
  shape.extra_heads = 2;
  shape.extra_head_dim = 3;
  shape.extra_outer_channels = 3;
  return shape;
}

}  // namespace paradyse::test
