// Rows of lines, where another matrix has one row a line.
#pragma once

#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {

// How the rank's rows of a value [outer, L, inner] go with those of one that has one row a line,
// [outer, 1, inner].  The line is the dim that is called otherwise in the two.
struct Lines {
  std::int64_t outer = 1;
  std::int64_t rows = 1;  // L
  std::int64_t inner = 1;
  std::int64_t whole = 1;  // L on all ranks
  std::int64_t first = 0;  // line, where only some are worked on

  [[nodiscard]] at::Tensor all(const at::Tensor& matrix) const {
    return matrix.view({outer, rows, inner});
  }
  [[nodiscard]] at::Tensor one(const at::Tensor& matrix) const {
    return matrix.view({inner == 0 ? outer : matrix.numel() / inner, 1, inner})
        .narrow(0, first, outer);
  }
};

inline Lines lines_of(const Frame& frame, const Op& op, ValueId all, ValueId one) {
  const int rank = frame.rank->seat.group_rank;
  const auto dims = [&](ValueId id) -> const std::vector<Dim>& {
    return frame.program().values[idx(id)].layout.dims;
  };
  Lines lines;
  bool inside = false;
  for (std::size_t d = 0; d < dims(all).size(); ++d) {
    const Dim& dim = dims(all)[d];
    const std::int64_t held = size(dim.piece(rank));
    if (dim.name != dims(one)[d].name) {
      lines.rows = held;
      lines.whole = dim.size;
      inside = true;
    } else {
      (inside ? lines.inner : lines.outer) *= held;
    }
  }
  if (!op.tile.empty() && lines.rows > 0) {
    lines.first = op.tile[idx(rank)].begin / lines.rows;
  }
  return lines;
}

}  // namespace paradyse::ops
