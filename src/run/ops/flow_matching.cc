// (y, v) -> d [rows, columns]: the loss is the sum of (y - v)^2, which is counted for the sample
// that a row is of; d, its gradient to y.  The adjoint hands d on.
#include <type_traits>
#include <vector>

#include <ATen/Dispatch.h>

#include "paradyse/plan/index.h"
#include "paradyse/run/accountant.h"
#include "src/run/device/through_aten.h"
#include "src/run/kernels/aten/aten_kernels.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {
namespace {

// [row] The sum of squared differences; where d is defined, it becomes the differences times
// `scale`.
std::vector<double> compare(const at::Tensor& y, const at::Tensor& v, at::Tensor d, double scale) {
  const std::int64_t rows = y.size(0);
  const std::int64_t columns = y.size(1);
  std::vector<double> sums;
  if (through_aten(y)) {
    const HostScope library_memory;
    sums.reserve(idx(rows));
    aten::for_rows(rows, columns, [&](std::int64_t begin, std::int64_t n) {
      const at::Tensor difference =
          y.narrow(0, begin, n).to(at::kDouble) - v.narrow(0, begin, n).to(at::kDouble);
      if (d.defined()) {
        d.narrow(0, begin, n).copy_(difference * scale);
      }
      const at::Tensor of_rows = difference.square().sum(1).to(at::kCPU);
      const auto* data = of_rows.const_data_ptr<double>();
      sums.insert(sums.end(), data, data + n);
    });
    return sums;
  }
  sums.assign(idx(rows), 0);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, y.scalar_type(), "flow_matching", [&] {
    const auto* a = y.const_data_ptr<scalar_t>();
    const auto* b = v.const_data_ptr<scalar_t>();
    auto* to = d.defined() ? d.mutable_data_ptr<scalar_t>() : nullptr;
    using Sum = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
      sums[idx(i / columns)] += difference * difference;
      if (to != nullptr) {
        to[i] = static_cast<scalar_t>(static_cast<Sum>(scale * difference));
      }
    }
  });
  return sums;
}

}  // namespace

void flow_matching(Frame& frame, const Op& op) {
  const at::Tensor y = frame.value(op.in[0]);
  const at::Tensor d = op.out.empty() ? at::Tensor() : frame.make(op.out[0]);
  const std::vector<double> sums = compare(y, frame.value(op.in[1]), d, 2 * frame.loss_scale);
  for (std::size_t row = 0; row < sums.size(); ++row) {
    const auto sample = idx(frame.batch->document_of[row]);
    frame.result->loss_sums[sample] += sums[row];
    frame.result->counts[sample] += y.size(1);
  }
  if (!frame.batch->predictions.empty()) {
    const Value& v = frame.program().values[idx(op.in[1])];
    keep_prediction(*frame.batch, v.name, v.layout, frame.rank->seat.group_rank, y);
  }
}

void flow_matching_adjoint(Frame& frame, const Op& op) {
  frame.gradients[idx(op.in[0])] = frame.value(op.out[0]);
}

}  // namespace paradyse::ops
