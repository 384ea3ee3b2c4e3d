// qkv with every query and key head normed: the D columns of a head in a row are a row of an
// RMSNorm, by one vector for all query heads and one for all key heads; value heads are copied.
//
// Columns of qkv: query heads | key heads | value heads, of which a rank may have none.
#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"
#include "src/run/ops/rms_norm.h"

namespace paradyse::ops {
namespace {

// Calls body(vector, first column, columns) for the query heads and for the key heads; gives where
// the value heads begin.
template <typename Body>
std::int64_t for_heads(const Frame& frame, const Op& op, Body body) {
  const Heads& heads = op.heads[idx(frame.rank->seat.group_rank)];
  const std::int64_t D = frame.program().shape.head_dim;
  const auto first = idx(op.vectors.begin);
  const std::int64_t queries = heads.query.size() * D;
  const std::int64_t keys = heads.key.size() * D;
  body(first, 0, queries);
  body(first + 1, queries, keys);
  return queries + keys;
}

}  // namespace

void qk_norm(Frame& frame, const Op& op) {
  const at::Tensor x = frame.value(op.in[0]);
  const at::Tensor y = frame.make(op.out[0]);
  const std::int64_t values =
      for_heads(frame, op, [&](std::size_t vector, std::int64_t column, std::int64_t columns) {
        frame.kernels().rms_norm(
            x.narrow(1, column, columns),
            frame.parameters->vectors.at(vector),
            rms_norm_of(frame.program().shape),
            y.narrow(1, column, columns));
      });
  y.narrow(1, values, x.size(1) - values).copy_(x.narrow(1, values, x.size(1) - values));
}

void qk_norm_adjoint(Frame& frame, const Op& op) {
  const at::Tensor x = frame.value(op.in[0]);
  const at::Tensor grad_y = frame.gradient(op.out[0]);
  const at::Tensor grad_x = frame.only_gradient_target(op.in[0]);
  const std::int64_t values =
      for_heads(frame, op, [&](std::size_t vector, std::int64_t column, std::int64_t columns) {
        frame.kernels().rms_norm_adjoint(
            x.narrow(1, column, columns),
            frame.parameters->vectors.at(vector),
            rms_norm_of(frame.program().shape),
            {.y = grad_y.narrow(1, column, columns),
             .x = grad_x.narrow(1, column, columns),
             .w = frame.vector_gradient(static_cast<std::int64_t>(vector))});
      });
  grad_x.narrow(1, values, x.size(1) - values).copy_(grad_y.narrow(1, values, x.size(1) - values));
}

}  // namespace paradyse::ops
