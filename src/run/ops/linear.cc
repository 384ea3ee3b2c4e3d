#include "src/run/ops/ops.h"

namespace paradyse::ops {
namespace {

// to = or += a b.  An empty inner dim gives zeros; nothing is launched for an empty result.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& to, bool accumulate) {
  if (to.numel() == 0) {
    return;
  }
  at::Tensor out = to;
  if (a.size(1) == 0) {
    if (!accumulate) {
      out.zero_();
    }
  } else if (accumulate) {
    at::addmm_out(out, out, a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

// to += a b where `to` may be wider than the product.
void add_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& to) {
  if (to.scalar_type() == a.scalar_type()) {
    multiply(a, b, to, true);
  } else if (to.numel() > 0 && a.size(1) > 0) {
    to.add_(at::mm(a, b));
  }
}

const std::vector<Term>& terms(const Frame& frame, const Op& op) {
  return op.terms[static_cast<std::size_t>(frame.rank->seat.group_rank)];
}

}  // namespace

void linear(Frame& frame, const Op& op) {
  const at::Tensor x = frame.value(op.in[0]);
  const at::Tensor y = frame.make(op.out[0]);
  std::int64_t column = 0;
  for (const Term& term : terms(frame, op)) {
    const at::Tensor w = frame.value(op.in[static_cast<std::size_t>(term.operand)])
                             .narrow(0, term.rows.begin, term.rows.size());
    if (op.transposed) {
      multiply(x, w, y, false);
    } else {
      multiply(x, w.t(), y.narrow(1, column, w.size(0)), false);
      column += w.size(0);
    }
  }
}

void linear_adjoint(Frame& frame, const Op& op) {
  const at::Tensor x = frame.value(op.in[0]);
  const at::Tensor grad_y = frame.gradient(op.out[0]);
  auto [grad_x, accumulate] = frame.gradient_target(op.in[0]);
  std::int64_t column = 0;
  for (const Term& term : terms(frame, op)) {
    const ValueId weight = op.in[static_cast<std::size_t>(term.operand)];
    const at::Tensor w = frame.value(weight).narrow(0, term.rows.begin, term.rows.size());
    const at::Tensor grad_columns =
        op.transposed ? grad_y : grad_y.narrow(1, column, term.rows.size());
    column += term.rows.size();
    multiply(grad_columns, op.transposed ? w.t() : w, grad_x, accumulate);
    accumulate = true;
    const auto [grad_w, add] = frame.weight_gradient_target(weight, term.rows);
    const at::Tensor left = op.transposed ? x.t() : grad_columns.t();
    const at::Tensor& right = op.transposed ? grad_y : x;
    if (add) {
      add_product(left, right, grad_w);
    } else {
      multiply(left, right, grad_w, false);
    }
  }
}

}  // namespace paradyse::ops
