// y + scale b in y's memory: y [T, C], b the entries of the part's vectors, side by side, that the
// rank's C columns take.
//
// Words.  A *vector* is one of the part's; its *entries* and the *columns* that take them are of
// equal number, where an interval of the rank's entries meets the vector.  Adjoint: dy is the
// result's gradient itself; the gradient of entries is added `scale` times the sum of their columns
// over rows.
#include <algorithm>

#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {
namespace {

// Calls body(vector, its entries, the columns of y on this rank that take them).
template <typename Body>
void for_entries(const Frame& frame, const Op& op, const at::Tensor& y, Body body) {
  std::int64_t here = 0;  // columns of y before the interval
  for (const Interval interval : op.entries[idx(frame.rank->seat.group_rank)]) {
    std::int64_t first = 0;  // entries before the vector
    for (std::int64_t v = op.vectors.begin; v < op.vectors.end; ++v) {
      const auto vector = idx(v);
      const std::int64_t size = frame.parameters->vectors.at(vector).size(0);
      const std::int64_t begin = std::max(interval.begin, first);
      const std::int64_t end = std::min(interval.end, first + size);
      if (begin < end) {
        body(
            vector,
            Interval{begin - first, end - first},
            y.narrow(1, here + begin - interval.begin, end - begin));
      }
      first += size;
    }
    here += interval.size();
  }
}

}  // namespace

void bias(Frame& frame, const Op& op) {
  at::Tensor& y = frame.value(op.in[0]);
  for_entries(frame, op, y, [&](std::size_t vector, Interval entries, const at::Tensor& columns) {
    frame.kernels().add_to_rows(
        columns,
        frame.parameters->vectors[vector].narrow(0, entries.begin, entries.size()),
        op.scale);
  });
  frame.values[idx(op.out[0])] = y;
  frame.values[idx(op.in[0])] = at::Tensor();
}

void bias_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad = frame.gradient(op.out[0]);
  for_entries(
      frame, op, grad, [&](std::size_t vector, Interval entries, const at::Tensor& columns) {
        const at::Tensor& sums = frame.parameters->vector_grads[vector];
        if (sums.defined()) {  // it is trained
          frame.kernels().add_sum_of_rows(
              columns, sums.narrow(0, entries.begin, entries.size()), op.scale);
        }
      });
  frame.gradients[idx(op.in[0])] = grad;
}

}  // namespace paradyse::ops
