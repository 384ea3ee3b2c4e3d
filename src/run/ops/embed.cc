// Rows of the embedding by token id.  The table is gathered in vocabulary tiles.
#include <cstring>
#include <type_traits>

#include <ATen/Dispatch.h>

#include "src/run/ops/ops.h"

namespace paradyse::ops {

void embed(Frame& frame, const Op& op) {
  const at::Tensor x_TH = frame.make(op.out[0]);
  const auto row_bytes = static_cast<std::size_t>(x_TH.size(1)) * x_TH.element_size();
  auto* rows = static_cast<char*>(x_TH.mutable_data_ptr());
  std::int64_t first = 0;
  for (const Transfer& tile : op.transfers) {
    const Extent extent = tile.destination[static_cast<std::size_t>(frame.rank->seat.domain_rank)];
    const at::Tensor table = frame.empty(extent.rows, extent.cols, frame.activation);
    frame.rank->domain->exchange(frame.parameters->stack, table, tile, frame.call("embed", true))
        ->wait();
    const auto* entries = static_cast<const char*>(table.const_data_ptr());
    for (std::size_t t = 0; t < frame.batch->ids.size(); ++t) {
      const std::int64_t id = frame.batch->ids[t] - first;
      if (id >= 0 && id < extent.rows) {
        std::memcpy(
            rows + t * row_bytes, entries + static_cast<std::size_t>(id) * row_bytes, row_bytes);
      }
    }
    first += extent.rows;
  }
}

void embed_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad_x_TH = frame.gradient(op.out[0]);
  std::int64_t first = 0;
  for (const Transfer& tile : op.transfers) {
    const Extent extent = tile.destination[static_cast<std::size_t>(frame.rank->seat.domain_rank)];
    const at::Tensor grad_table = frame.empty(extent.rows, extent.cols, frame.statistic).zero_();
    AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, frame.activation, "embed_adjoint", [&] {
      using Sum = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
      const auto* grads = grad_x_TH.const_data_ptr<scalar_t>();
      auto* sums = grad_table.mutable_data_ptr<Sum>();
      const std::int64_t H = extent.cols;
      for (std::size_t t = 0; t < frame.batch->ids.size(); ++t) {
        const std::int64_t id = frame.batch->ids[t] - first;
        if (id >= 0 && id < extent.rows) {
          const scalar_t* from = grads + static_cast<std::int64_t>(t) * H;
          for (std::int64_t i = 0; i < H; ++i) {
            sums[id * H + i] += static_cast<Sum>(from[i]);
          }
        }
      }
    });
    frame.rank->domain
        ->exchange_sum(
            grad_table, frame.parameters->stack_grad, tile, true, frame.call("embed adjoint"))
        ->wait();
    first += extent.rows;
  }
}

}  // namespace paradyse::ops
