// Random layouts of matrices, and what of a matrix lies where, element by element.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/detail/transfer.h"

namespace paradyse::test {

using Random = std::mt19937_64;

inline std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// Partitions [0, n): contiguous and uneven, some pieces empty; or many small intervals dealt out;
// or zigzag over packed documents.  `overlapping` stretches some intervals into their neighbours.
inline Cuts random_cuts(std::int64_t n, int ranks, Random& random, bool overlapping) {
  Cuts cuts(static_cast<std::size_t>(ranks));
  const std::int64_t kind = pick(random, 0, 2);
  if (kind == 0) {
    std::vector<std::int64_t> borders = {0, n};
    for (int r = 1; r < ranks; ++r) {
      borders.push_back(pick(random, 0, n));
    }
    std::sort(borders.begin(), borders.end());
    for (int r = 0; r < ranks; ++r) {
      const auto i = static_cast<std::size_t>(r);
      append(cuts[i], {borders[i], borders[i + 1]});
    }
  } else if (kind == 1) {
    for (std::int64_t begin = 0; begin < n;) {
      const std::int64_t end = std::min(n, begin + pick(random, 1, 3));
      append(cuts[static_cast<std::size_t>(pick(random, 0, ranks - 1))], {begin, end});
      begin = end;
    }
  } else {
    std::vector<std::int64_t> lengths;
    for (std::int64_t left = n; left > 0; left -= lengths.back()) {
      lengths.push_back(pick(random, 1, left));
    }
    cuts = token_cuts(lengths, ranks, /*causal=*/true);
  }
  if (overlapping) {
    for (Piece& piece : cuts) {
      if (piece.size() <= 1 && pick(random, 0, 1) == 0) {
        const std::int64_t begin = piece.empty() ? pick(random, 0, n) : piece[0].begin;
        const std::int64_t end = piece.empty() ? begin : piece[0].end;
        const Interval wider{
            std::max<std::int64_t>(0, begin - pick(random, 0, 3)),
            std::min(n, end + pick(random, 0, 3))};
        piece.clear();
        append(piece, wider);
      }
    }
  }
  return cuts;
}

// A matrix cut along its rows (dim 0) or its columns (dim 1).
inline Layout cut_along(int dim, Extent whole, Cuts cuts) {
  return dim == 0 ? matrix("rows", whole, std::move(cuts))
                  : matrix("rows", whole, {}, std::move(cuts));
}

// Rows (dim 0) or columns (dim 1) of a matrix that `rank` holds, in its order.
inline std::vector<std::int64_t> indices(const Layout& layout, int dim, int rank) {
  const Dim& along = layout.dims.at(static_cast<std::size_t>(dim));
  Piece piece;
  append(piece, {0, along.size});
  if (!along.cuts.empty()) {
    piece = along.cuts[static_cast<std::size_t>(rank)];
  }
  std::vector<std::int64_t> result;
  for (const Interval interval : piece) {
    for (std::int64_t i = interval.begin; i < interval.end; ++i) {
      result.push_back(i);
    }
  }
  return result;
}

// What `rank` holds of the matrix `whole`.
inline at::Tensor local(const at::Tensor& whole, const Layout& layout, int rank) {
  return whole.index_select(0, at::tensor(indices(layout, 0, rank), at::kLong))
      .index_select(1, at::tensor(indices(layout, 1, rank), at::kLong))
      .contiguous();
}

// C^T by its definition: each element of each destination is added to where it was copied from: the
// reader itself where it holds the element, else the lowest rank that does.
inline std::vector<at::Tensor> transposed_copy(
    const Layout& from, const Layout& to, const std::vector<at::Tensor>& given) {
  const int ranks = static_cast<int>(given.size());
  std::vector<at::Tensor> sums;
  std::vector<std::vector<std::int64_t>> rows;
  std::vector<std::vector<std::int64_t>> cols;
  for (int r = 0; r < ranks; ++r) {
    rows.push_back(indices(from, 0, r));
    cols.push_back(indices(from, 1, r));
    sums.push_back(at::zeros(
        {static_cast<std::int64_t>(rows.back().size()),
         static_cast<std::int64_t>(cols.back().size())},
        at::kDouble));
  }
  const auto find = [](const std::vector<std::int64_t>& all, std::int64_t index) {
    const auto at = std::find(all.begin(), all.end(), index);
    return at == all.end() ? std::int64_t{-1} : at - all.begin();
  };
  for (int r = 0; r < ranks; ++r) {
    const auto my_rows = indices(to, 0, r);
    const auto my_cols = indices(to, 1, r);
    const at::Tensor mine = given[static_cast<std::size_t>(r)].to(at::kDouble).contiguous();
    for (std::size_t i = 0; i < my_rows.size(); ++i) {
      for (std::size_t j = 0; j < my_cols.size(); ++j) {
        for (int k = -1; k < ranks; ++k) {
          const auto holder = static_cast<std::size_t>(k < 0 ? r : k);
          const std::int64_t row = find(rows[holder], my_rows[i]);
          const std::int64_t col = find(cols[holder], my_cols[j]);
          if (row >= 0 && col >= 0) {
            at::Tensor& sum = sums[holder];
            sum.mutable_data_ptr<double>()[row * sum.size(1) + col] +=
                mine.const_data_ptr<double>()[i * my_cols.size() + j];
            break;
          }
        }
      }
    }
  }
  return sums;
}

// Small whole numbers: their sums are exact in every type and order.
inline at::Tensor whole_numbers(Extent extent, Random& random) {
  const at::Tensor m = at::empty({extent.rows, extent.cols}, at::kDouble);
  for (std::int64_t i = 0; i < m.numel(); ++i) {
    m.mutable_data_ptr<double>()[i] = static_cast<double>(pick(random, -8, 8));
  }
  return m;
}

}  // namespace paradyse::test
