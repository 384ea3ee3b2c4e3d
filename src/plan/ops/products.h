// What products and the tiles of a vocabulary hold while they run.
#pragma once

#include <algorithm>

#include "paradyse/plan/op_traits.h"

namespace paradyse {

// The float32 rows in which a narrow product of this size is made.
inline std::int64_t product_bytes(std::int64_t rows, std::int64_t cols, Precision precision) {
  return precision.narrow() ? std::min(rows, product_tile_rows(cols)) * cols * precision.statistic
                            : 0;
}

// Rows of the largest of an op's vocabulary tiles, which every rank has all of.
inline std::int64_t largest_tile_rows(const Op& op) {
  std::int64_t rows = 0;
  for (const Transfer& tile : op.transfers) {
    rows = std::max(rows, tile.destination.front().rows);
  }
  return rows;
}

}  // namespace paradyse
