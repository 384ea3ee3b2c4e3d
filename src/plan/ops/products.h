// What products and the tiles of a vocabulary hold while they run.
#pragma once

#include <algorithm>

#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

// The float32 rows in which a narrow product of this size is made.
inline std::int64_t product_bytes(const OpView& view, std::int64_t rows, std::int64_t cols) {
  return view.precision.narrow() ? std::min(rows, view.program.shape.tiles.product_rows(cols)) *
                                       cols * view.precision.statistic
                                 : 0;
}

// Elements of the largest of an op's vocabulary tiles, which every rank has all of.
inline std::int64_t largest_tile(const Op& op) {
  std::int64_t elements = 0;
  for (const Redistribution& tile : op.copies) {
    elements = std::max(elements, tile.to().elements(0));
  }
  return elements;
}

}  // namespace paradyse
