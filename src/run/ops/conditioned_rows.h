// Which row of a condition goes with each row of a value: the one at the same indices of the row
// dims that both have.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {

// Calls body(first row of x, rows, row of c) for runs of rows of x [T, ..] that one row of c goes
// with, in their order.
template <typename Body>
void for_conditioned_rows(const Frame& frame, ValueId x, ValueId c, Body body) {
  const int rank = frame.rank->seat.group_rank;
  const Layout& of_x = frame.program().values[idx(x)].layout;
  const Layout& of_c = frame.program().values[idx(c)].layout;
  const std::vector<std::int64_t> strides = of_c.strides(rank);
  struct RowDim {
    std::int64_t size = 0;
    std::int64_t stride = 0;  // in rows of c
  };
  std::vector<RowDim> dims;  // row dims of x, first to last
  const std::int64_t columns = of_c.extent(rank).cols;
  for (std::size_t d = 0; d + 1 < of_x.dims.size(); ++d) {
    RowDim& dim = dims.emplace_back(RowDim{.size = size(of_x.dims[d].piece(rank))});
    for (std::size_t e = 0; e + 1 < of_c.dims.size(); ++e) {
      if (of_c.dims[e].name == of_x.dims[d].name) {
        dim.stride = columns == 0 ? 0 : strides[e] / columns;
        if (of_c.dims[e].piece(rank) != of_x.dims[d].piece(rank)) {
          throw std::logic_error(
              frame.program().part + ": '" + of_c.dims[e].name +
              "' of a condition is cut otherwise than that of its rows");
        }
      }
    }
  }
  std::int64_t run = 1;  // rows of the last dims, none of which c has
  while (!dims.empty() && dims.back().stride == 0) {
    run *= dims.back().size;
    dims.pop_back();
  }
  std::int64_t runs = run == 0 ? 0 : 1;
  for (const RowDim& dim : dims) {
    runs *= dim.size;
  }
  for (std::int64_t i = 0; i < runs; ++i) {
    std::int64_t row = 0;
    std::int64_t left = i;
    for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
      row += left % dim->size * dim->stride;
      left /= dim->size;
    }
    body(i * run, run, row);
  }
}

// Columns of a row of c, over and over, with a vector of the part: [n] in `to`.
inline void conditioned(
    const at::Tensor& c,
    std::int64_t row,
    Interval columns,
    const at::Tensor& vector,
    at::Tensor& to) {
  const at::Tensor of_row = c.select(0, row).narrow(0, columns.begin, columns.size());
  for (std::int64_t first = 0; first < vector.size(0); first += columns.size()) {
    at::Tensor some = to.narrow(0, first, columns.size());
    at::add_out(some, of_row, vector.narrow(0, first, columns.size()));
  }
}
// Adds the gradient of those [n] to that of the row's columns, which read it once or more.
inline void add_to_condition(
    const Frame& frame,
    const at::Tensor& grad_c,
    std::int64_t row,
    Interval columns,
    const at::Tensor& gradient) {
  const at::Tensor of_row = grad_c.select(0, row).narrow(0, columns.begin, columns.size());
  for (std::int64_t first = 0; first < gradient.size(0); first += columns.size()) {
    frame.kernels().add_numbers(of_row, gradient.narrow(0, first, columns.size()));
  }
}

// Where the gradient of c goes: zero where nothing was there.
inline at::Tensor condition_gradient(Frame& frame, ValueId c) {
  auto [grad, accumulate] = frame.gradient_target(c);
  if (!accumulate) {
    grad.zero_();
  }
  return grad;
}

}  // namespace paradyse::ops
