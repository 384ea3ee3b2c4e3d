// m = the mean of a line's rows: x [outer, L, inner], m [outer, 1, inner]; divided by the rows that
// all ranks have of it.  With a mask, of the rows that count: shares w [outer, L, inner / C] are 1
// / their number, or 0.
#include <algorithm>

#include <ATen/Dispatch.h>

#include "src/run/kernels/cpu/products.h"
#include "src/run/ops/lines.h"
#include "src/run/ops/masks.h"

namespace paradyse::ops {
namespace {

// Rows of lines of which some count.
class MaskedLines {
 public:
  MaskedLines(const Frame& frame, const Op& op, const Lines& lines)
      : lines_(lines), columns_(layout_of(frame, op).extent(rank_of(frame)).cols) {
    const Layout& x = layout_of(frame, op);
    shares_ = counted_rows(frame, op.mask, x.cut(op.along, {}));
    held_ = x.dims[x.place(op.along)].piece(rank_of(frame));
    AT_DISPATCH_FLOATING_TYPES(shares_.scalar_type(), "line_mean", [&] { share<scalar_t>(); });
  }

  // m = the sum of shares of rows.
  template <typename T>
  void add_up(const Frame& frame, const at::Tensor& x, const at::Tensor& m) const {
    at::Tensor room;  // of sums, where they are rounded
    if constexpr (kNarrow<T>) {
      room = frame.empty(1, lines_.inner, frame.statistic);
    }
    for (std::int64_t outer = 0; outer < lines_.outer; ++outer) {
      T* const to = m.mutable_data_ptr<T>() + outer * lines_.inner;
      Sum<T>* sums = nullptr;
      if constexpr (kNarrow<T>) {
        sums = room.mutable_data_ptr<Sum<T>>();
      } else {
        sums = to;
      }
      std::fill_n(sums, lines_.inner, Sum<T>{0});
      each_row<T>(outer, x.const_data_ptr<T>(), [&](std::int64_t i, Sum<T> share, const T& number) {
        sums[i] += share * static_cast<Sum<T>>(number);
      });
      if constexpr (kNarrow<T>) {
        std::copy_n(sums, lines_.inner, to);
      }
    }
  }

  // grad_x = or += its shares of grad_m.
  template <typename T>
  void hand_out(const at::Tensor& grad_m, const at::Tensor& grad_x, bool add) const {
    for (std::int64_t outer = 0; outer < lines_.outer; ++outer) {
      const T* const from = grad_m.const_data_ptr<T>() + outer * lines_.inner;
      each_row<T>(outer, grad_x.mutable_data_ptr<T>(), [&](std::int64_t i, Sum<T> share, T& to) {
        const Sum<T> given = share * static_cast<Sum<T>>(from[i]);
        to = static_cast<T>(add ? static_cast<Sum<T>>(to) + given : given);
      });
    }
  }

 private:
  static const Layout& layout_of(const Frame& frame, const Op& op) {
    return frame.program().values[idx(op.in[0])].layout;
  }
  static int rank_of(const Frame& frame) { return frame.rank->seat.group_rank; }
  // Lines that stand side by side.
  [[nodiscard]] std::int64_t beside() const { return columns_ == 0 ? 0 : lines_.inner / columns_; }

  // 1 and 0 become shares of whole lines.
  template <typename S>
  void share() {
    auto* const all = shares_.mutable_data_ptr<S>();
    for (std::int64_t outer = 0; outer < lines_.outer; ++outer) {
      for (std::int64_t line = 0; line < beside(); ++line) {
        S* const first = all + outer * lines_.whole * beside() + line;
        S count = 0;
        for (std::int64_t row = 0; row < lines_.whole; ++row) {
          count += first[row * beside()];
        }
        for (std::int64_t row = 0; row < lines_.whole && count > 0; ++row) {
          first[row * beside()] /= count;
        }
      }
    }
  }

  // Calls body(column of m, share, element of x) for what the rank has of a run of lines.
  template <typename T, typename Data, typename Body>
  void each_row(std::int64_t outer, Data* x, Body body) const {
    const auto* const all = shares_.const_data_ptr<Sum<T>>();
    x += outer * lines_.rows * lines_.inner;
    for (const Interval run : held_) {
      for (std::int64_t row = run.begin; row < run.end; ++row) {
        const auto* const of_row = all + (outer * lines_.whole + row) * beside();
        for (std::int64_t i = 0; i < lines_.inner; ++i) {
          body(i, of_row[i / columns_], *x++);
        }
      }
    }
  }

  Lines lines_;
  std::int64_t columns_;
  at::Tensor shares_;
  Piece held_;
};

}  // namespace

void line_mean(Frame& frame, const Op& op) {
  const Lines lines = lines_of(frame, op, op.in[0], op.out[0]);
  at::Tensor m = lines.one(frame.make(op.out[0]));
  if (!op.mask.empty()) {
    const MaskedLines masked(frame, op, lines);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, frame.activation, "line_mean", [&] {
      masked.add_up<scalar_t>(frame, frame.value(op.in[0]), m);
    });
    return;
  }
  if (lines.rows == 0) {
    m.zero_();
    return;
  }
  at::mean_out(m, lines.all(frame.value(op.in[0])), 1, /*keepdim=*/true);
  if (lines.rows != lines.whole) {
    m.mul_(static_cast<double>(lines.rows) / static_cast<double>(lines.whole));
  }
}

void line_mean_adjoint(Frame& frame, const Op& op) {
  const Lines lines = lines_of(frame, op, op.in[0], op.out[0]);
  const at::Tensor grad_m = lines.one(frame.gradient(op.out[0]));
  const auto [target, there] = frame.gradient_target(op.in[0]);
  if (!op.mask.empty()) {
    const MaskedLines masked(frame, op, lines);
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kBFloat16,
        at::kHalf,
        frame.activation,
        "line_mean_adjoint",
        [&, &grad_x = target, add = there] { masked.hand_out<scalar_t>(grad_m, grad_x, add); });
    return;
  }
  const at::Tensor grad_x = lines.all(target);
  const double share = 1 / static_cast<double>(lines.whole);
  if (there) {
    grad_x.add_(grad_m, share);
  } else {
    grad_x.copy_(grad_m.expand_as(grad_x)).mul_(share);
  }
}

}  // namespace paradyse::ops
