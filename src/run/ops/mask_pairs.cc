// y (S + e) / (n + e) in y's memory: y [i j, C] of the rank's pairs, n_ij = sum_s m_si m_sj of all
// S sequences.
//
// Adjoint: dy = (gradient of the result) times the same.
#include <algorithm>
#include <stdexcept>

#include <ATen/Dispatch.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/ops/masks.h"
#include "src/run/ops/masks.h"

namespace paradyse::ops {
namespace {

// [pairs] (S + e) / (n + e).
at::Tensor shares(const Frame& frame, const Op& op) {
  const Layout& pairs = frame.program().values[idx(op.in[0])].layout;
  const std::int64_t sequences = summed_size(frame.program(), op);
  const auto input = std::ranges::find(frame.batch->inputs, op.mask, &Stream::name);
  if (input == frame.batch->inputs.end()) {
    throw std::logic_error("mask_pairs: the batch brings no '" + op.mask + "'");
  }
  const std::string& residues = input->rows[input->rows[0] == op.along ? 1 : 0];
  // [sequences, the rank's residues] of a pair's first or second
  const auto side = [&](std::size_t dim) {
    const Dim& of_pairs = pairs.dims[dim];
    const Layout rows{
        .dims = {
            {.name = op.along, .size = sequences},
            {.name = residues, .size = of_pairs.size, .cuts = of_pairs.cuts},
            {.name = "columns", .size = 1}}};
    return counted_rows(frame, op.mask, rows).view({sequences, -1});
  };
  const int rank = frame.rank->seat.group_rank;
  const std::int64_t first = size(pairs.dims[0].piece(rank));
  const std::int64_t second = size(pairs.dims[1].piece(rank));
  const at::Tensor numbers = frame.empty(first, second, frame.statistic);
  if (numbers.numel() == 0) {
    return numbers.view({-1});
  }
  frame.kernels().product(side(0).t(), side(1), numbers, /*accumulate=*/false, /*rows=*/0);
  AT_DISPATCH_FLOATING_TYPES(numbers.scalar_type(), "mask_pairs", [&] {
    auto* const all = numbers.mutable_data_ptr<scalar_t>();
    const double whole = static_cast<double>(sequences) + op.scale;
    for (std::int64_t pair = 0; pair < numbers.numel(); ++pair) {
      all[pair] = static_cast<scalar_t>(whole / (static_cast<double>(all[pair]) + op.scale));
    }
  });
  return numbers.view({-1});
}

}  // namespace

void mask_pairs(Frame& frame, const Op& op) {
  at::Tensor& y_TC = frame.value(op.in[0]);
  scale_rows(y_TC, shares(frame, op), y_TC);
  frame.values[idx(op.out[0])] = y_TC;
  frame.values[idx(op.in[0])] = at::Tensor();
}

void mask_pairs_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad_TC = frame.gradient(op.out[0]);
  const at::Tensor target_TC = frame.only_gradient_target(op.in[0]);
  scale_rows(grad_TC, shares(frame, op), target_TC);
}

}  // namespace paradyse::ops
