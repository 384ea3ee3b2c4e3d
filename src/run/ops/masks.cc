#include "src/run/ops/masks.h"

#include <algorithm>
#include <span>

#include <ATen/Dispatch.h>

#include "paradyse/plan/detail/index.h"
#include "src/run/kernels/cpu/products.h"

namespace paradyse::ops {
namespace {

// Of AlphaFold and OpenFold (`inf`).
constexpr double kMaskedScore = -1e9;

const Layout& keys_layout(const Frame& frame, const Op& op) {
  return frame.program().values[idx(keys_of(op))].layout;
}

// Keys of a line: the last row dim.
std::int64_t line_size(const Layout& keys) { return keys.dims[keys.dims.size() - 2].size; }

}  // namespace

at::Tensor counted_rows(const Frame& frame, const std::string& mask, const Layout& rows) {
  const Layout one_column = rows.with_columns(1);
  const int rank = frame.rank->seat.group_rank;
  at::Tensor counted = frame.empty(one_column.elements(rank), 1, frame.statistic);
  if (counted.numel() > 0) {
    copy_input(*frame.batch, mask, one_column, rank, counted);
  }
  return counted.view({-1});
}

KeyMask::KeyMask(const Frame& frame, const Op& op) : frame_(frame), op_(op) {
  if (op.mask.empty()) {
    return;
  }
  const Layout& keys = keys_layout(frame, op);
  lines_ = counted_rows(frame, op.mask, keys.cut(op.along, {}));
  const std::int64_t length = line_size(keys);
  AT_DISPATCH_FLOATING_TYPES(lines_.scalar_type(), "key_mask", [&] {
    auto* const numbers = lines_.mutable_data_ptr<scalar_t>();
    for (std::int64_t first = 0; first < lines_.numel(); first += length) {
      const std::span line(numbers + first, idx(length));
      const bool none = std::ranges::none_of(line, [](scalar_t counts) { return counts != 0; });
      for (scalar_t& number : line) {
        number = none || number != 0 ? scalar_t{0} : static_cast<scalar_t>(kMaskedScore);
      }
    }
  });
}

at::Tensor KeyMask::of(int group_rank) const {
  if (!lines_.defined()) {
    return {};
  }
  const Layout& keys = keys_layout(frame_, op_);
  const Piece mine = keys.line(group_rank);
  const std::int64_t length = line_size(keys);
  const std::int64_t lines = length == 0 ? 0 : lines_.numel() / length;
  const at::Tensor part = frame_.empty(lines, size(mine), frame_.statistic);
  std::int64_t at = 0;
  for (const Interval run : mine) {
    part.narrow(1, at, run.size())
        .copy_(lines_.view({lines, length}).narrow(1, run.begin, run.size()));
    at += run.size();
  }
  return part.view({-1});
}

void scale_rows(const at::Tensor& from, const at::Tensor& numbers, const at::Tensor& to) {
  const std::int64_t rows = to.size(0);
  const std::int64_t columns = to.size(1);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, to.scalar_type(), "scale_rows", [&] {
    using S = Sum<scalar_t>;
    const auto* x = from.const_data_ptr<scalar_t>();
    auto* y = to.mutable_data_ptr<scalar_t>();
    const auto* const factors = numbers.const_data_ptr<S>();
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t c = 0; c < columns; ++c) {
        *y++ = static_cast<scalar_t>(static_cast<S>(*x++) * factors[row]);
      }
    }
  });
}

}  // namespace paradyse::ops
