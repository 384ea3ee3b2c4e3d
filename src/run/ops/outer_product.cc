// o_ij = scale sum_s a_si b_sj^T: a [s i, A], b [s j, B], o [i j, A B] of the rank's s, i and j.
//
// A product [A, s] x [s, B] for each i and j.  Adjoint: da_i = scale sum_j b_j do_ij^T and
// db_j = scale sum_i a_i do_ij, [s, A] and [s, B]; in narrow types each is added up in the type of
// sums, in room for one, and rounded once.  Of a `tile` of i, da is made for it and db added to.
#include "paradyse/plan/detail/index.h"
#include "src/run/kernels/cpu/products.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {
namespace {

struct Sizes {
  std::int64_t s = 0;
  std::int64_t all_i = 0;  // residues of a
  std::int64_t first = 0;  // of them in the tile
  std::int64_t i = 0;      // and how many
  std::int64_t j = 0;
  std::int64_t A = 0;
  std::int64_t B = 0;
  double scale = 1;
};

Sizes sizes_of(const Frame& frame, const Op& op) {
  const auto layout = [&](ValueId id) -> const Layout& {
    return frame.program().values[idx(id)].layout;
  };
  const int rank = frame.rank->seat.group_rank;
  const Layout& a = layout(op.in[0]);
  const Layout& b = layout(op.in[1]);
  const std::int64_t all_i = size(a.line(rank));
  const Interval tile = op.tile.empty() ? Interval{0, all_i} : op.tile[idx(rank)];
  return {
      .s = size(a.dims.front().piece(rank)),
      .all_i = all_i,
      .first = tile.begin,
      .i = tile.size(),
      .j = size(b.line(rank)),
      .A = a.extent(rank).cols,
      .B = b.extent(rank).cols,
      .scale = op.scale};
}

// Rows [s, width] of residue `at`, of so many.
template <typename T>
Rows<T> residue(T* data, std::int64_t at, std::int64_t residues, std::int64_t width) {
  return {data + at * width, residues * width};
}

// Results whose sums are rounded: made in `sums`, then written, or added.
template <typename T>
class Result {
 public:
  Result(Frame& frame, std::int64_t rows, std::int64_t cols) : rows_(rows), cols_(cols) {
    if constexpr (kNarrow<T>) {
      sums_ = frame.empty(rows, cols, frame.statistic);
    }
  }
  Rows<Sum<T>> sums(Rows<T> target) {
    if constexpr (kNarrow<T>) {
      return {sums_.mutable_data_ptr<Sum<T>>(), cols_};
    } else {
      return target;
    }
  }
  void store(Rows<T> target, bool add = false) {
    if constexpr (kNarrow<T>) {
      const Sum<T>* const sums = sums_.const_data_ptr<Sum<T>>();
      for (std::int64_t r = 0; r < rows_; ++r) {
        for (std::int64_t c = 0; c < cols_; ++c) {
          T& to = target.data[r * target.stride + c];
          to = static_cast<T>(sums[r * cols_ + c] + (add ? static_cast<Sum<T>>(to) : 0));
        }
      }
    }
  }

 private:
  std::int64_t rows_;
  std::int64_t cols_;
  at::Tensor sums_;
};

template <typename T>
void forward(Frame& frame, const Op& op) {
  const auto [s, all_i, first, i, j, A, B, scale] = sizes_of(frame, op);
  const T* const a = frame.value(op.in[0]).const_data_ptr<T>();
  const T* const b = frame.value(op.in[1]).const_data_ptr<T>();
  T* const o = frame.make(op.out[0]).mutable_data_ptr<T>();
  Result<T> result(frame, A, B);
  for (std::int64_t row = 0; row < i; ++row) {
    for (std::int64_t col = 0; col < j; ++col) {
      const Rows<T> target{o + (row * j + col) * A * B, B};
      gemm<T>(
          A,
          B,
          s,
          scale,
          residue(a, first + row, all_i, A).t(),
          residue(b, col, j, B),
          0,
          result.sums(target));
      result.store(target);
    }
  }
}

template <typename T>
void adjoint(Frame& frame, const Op& op) {
  const auto [s, all_i, first, i, j, A, B, scale] = sizes_of(frame, op);
  const T* const a = frame.value(op.in[0]).const_data_ptr<T>();
  const T* const b = frame.value(op.in[1]).const_data_ptr<T>();
  const T* const grad_o = frame.gradient(op.out[0]).const_data_ptr<T>();
  const auto [of_a, a_there] = frame.gradient_target(op.in[0]);
  const auto [of_b, b_there] = frame.gradient_target(op.in[1]);
  const bool nothing = i == 0 || j == 0;  // no pair to sum over
  if (!a_there && (nothing || i < all_i)) {
    of_a.zero_();
  }
  if (!b_there && nothing) {
    of_b.zero_();
  }
  if (nothing) {
    return;
  }
  const bool add_to_a = a_there || i < all_i;
  const bool add_to_b = b_there;
  // In the type of the result sums are added to straight away, else when they are rounded.
  const auto keeps = [](bool add, std::int64_t summed) {
    return summed > 0 || (add && !kNarrow<T>) ? 1 : 0;
  };
  T* const grad_a = of_a.mutable_data_ptr<T>();
  T* const grad_b = of_b.mutable_data_ptr<T>();
  const auto grad_o_of = [&](std::int64_t row, std::int64_t col) {
    return Rows<const T>{grad_o + (row * j + col) * A * B, B};
  };
  {
    Result<T> result(frame, s, A);
    for (std::int64_t row = 0; row < i; ++row) {
      const Rows<T> target = residue(grad_a, first + row, all_i, A);
      for (std::int64_t col = 0; col < j; ++col) {
        gemm<T>(
            s,
            A,
            B,
            scale,
            residue(b, col, j, B),
            grad_o_of(row, col).t(),
            keeps(add_to_a, col),
            result.sums(target));
      }
      result.store(target, add_to_a);
    }
  }
  Result<T> result(frame, s, B);
  for (std::int64_t col = 0; col < j; ++col) {
    const Rows<T> target = residue(grad_b, col, j, B);
    for (std::int64_t row = 0; row < i; ++row) {
      gemm<T>(
          s,
          B,
          A,
          scale,
          residue(a, first + row, all_i, A),
          grad_o_of(row, col),
          keeps(add_to_b, row),
          result.sums(target));
    }
    result.store(target, add_to_b);
  }
}

}  // namespace

void outer_product(Frame& frame, const Op& op) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, frame.activation, "outer_product", [&] {
    forward<scalar_t>(frame, op);
  });
}

void outer_product_adjoint(Frame& frame, const Op& op) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, frame.activation, "outer_product_adjoint", [&] {
        adjoint<scalar_t>(frame, op);
      });
}

}  // namespace paradyse::ops
