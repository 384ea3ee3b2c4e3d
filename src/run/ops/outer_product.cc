// o_ij = 1 / S sum_s a_si b_sj^T: a [s i, A], b [s j, B], o [i j, A B] of the rank's s, i and j.
//
// A product [A, s] x [s, B] for each i and j.  Adjoint: da_i = 1 / S sum_j b_j do_ij^T and
// db_j = 1 / S sum_i a_i do_ij, [s, A] and [s, B]; in narrow types each is added up in the type of
// sums, in room for one, and rounded once.
#include "paradyse/plan/index.h"
#include "src/run/kernels/cpu/products.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {
namespace {

struct Sizes {
  std::int64_t s = 0;
  std::int64_t i = 0;
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
  const Dim& sequences = a.dims[a.place("sequences")];
  return {
      .s = size(sequences.piece(rank)),
      .i = size(a.line(rank)),
      .j = size(b.line(rank)),
      .A = a.extent(rank).cols,
      .B = b.extent(rank).cols,
      .scale = 1 / static_cast<double>(sequences.size)};
}

// Rows [s, width] of residue `at`, of so many.
template <typename T>
Rows<T> residue(T* data, std::int64_t at, std::int64_t residues, std::int64_t width) {
  return {data + at * width, residues * width};
}

// Results whose sums are rounded: made in `sums`, then written.
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
  void store(Rows<T> target) {
    if constexpr (kNarrow<T>) {
      const Sum<T>* const sums = sums_.const_data_ptr<Sum<T>>();
      for (std::int64_t r = 0; r < rows_; ++r) {
        for (std::int64_t c = 0; c < cols_; ++c) {
          target.data[r * target.stride + c] = static_cast<T>(sums[r * cols_ + c]);
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
  const auto [s, i, j, A, B, scale] = sizes_of(frame, op);
  const T* const a = frame.value(op.in[0]).const_data_ptr<T>();
  const T* const b = frame.value(op.in[1]).const_data_ptr<T>();
  T* const o = frame.make(op.out[0]).mutable_data_ptr<T>();
  Result<T> result(frame, A, B);
  for (std::int64_t row = 0; row < i; ++row) {
    for (std::int64_t col = 0; col < j; ++col) {
      const Rows<T> target{o + (row * j + col) * A * B, B};
      gemm<T>(
          A, B, s, scale, residue(a, row, i, A).t(), residue(b, col, j, B), 0, result.sums(target));
      result.store(target);
    }
  }
}

template <typename T>
void adjoint(Frame& frame, const Op& op) {
  const auto [s, i, j, A, B, scale] = sizes_of(frame, op);
  const T* const a = frame.value(op.in[0]).const_data_ptr<T>();
  const T* const b = frame.value(op.in[1]).const_data_ptr<T>();
  const T* const grad_o = frame.gradient(op.out[0]).const_data_ptr<T>();
  const at::Tensor of_a = frame.only_gradient_target(op.in[0]);
  const at::Tensor of_b = frame.only_gradient_target(op.in[1]);
  if (i == 0 || j == 0) {  // no pair to sum over
    of_a.zero_();
    of_b.zero_();
    return;
  }
  T* const grad_a = of_a.mutable_data_ptr<T>();
  T* const grad_b = of_b.mutable_data_ptr<T>();
  const auto grad_o_of = [&](std::int64_t row, std::int64_t col) {
    return Rows<const T>{grad_o + (row * j + col) * A * B, B};
  };
  {
    Result<T> result(frame, s, A);
    for (std::int64_t row = 0; row < i; ++row) {
      const Rows<T> target = residue(grad_a, row, i, A);
      for (std::int64_t col = 0; col < j; ++col) {
        gemm<T>(
            s,
            A,
            B,
            scale,
            residue(b, col, j, B),
            grad_o_of(row, col).t(),
            col == 0 ? 0 : 1,
            result.sums(target));
      }
      result.store(target);
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
          residue(a, row, i, A),
          grad_o_of(row, col),
          row == 0 ? 0 : 1,
          result.sums(target));
    }
    result.store(target);
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
