// How a tensor lies over a group of ranks: its named dims, in the order in which ranks store them,
// and of each dim the indices that each rank holds.
//
// A rank's piece is the product of its pieces of all dims, stored row-major.  Ops see it as a
// matrix [rows, cols]: all dims but the last, merged, and the last (extent()).  Where several ranks
// hold an element they hold copies of it, or, of a `partial` tensor, terms of its sum.
//
// The gradient of copies is a sum (`partial`) and that of a sum is copies; a partition is its own
// gradient; so there is no place where a factor p can be lost or gained.  Next: transfer.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "paradyse/plan/cuts.h"

namespace paradyse {

struct Dim {
  std::string name = {};
  std::int64_t size = 0;
  Cuts cuts = {};  // [rank]; none: every rank has all of it

  [[nodiscard]] Piece piece(int rank) const;
  friend bool operator==(const Dim&, const Dim&) = default;
};

// Of a sample of several dims: how large each is, by name.
using DimSizes = std::map<std::string, std::int64_t>;

// A matrix as ops see it.
struct Extent {
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  [[nodiscard]] std::int64_t elements() const { return rows * cols; }
  friend bool operator==(const Extent&, const Extent&) = default;
};

struct Layout {
  std::vector<Dim> dims = {};
  bool partial = false;

  // Throws std::invalid_argument, naming the dims there are, for another name.
  [[nodiscard]] std::size_t place(const std::string& dim) const;
  [[nodiscard]] const Dim& columns() const { return dims.back(); }
  [[nodiscard]] std::int64_t elements() const;          // of the tensor
  [[nodiscard]] std::int64_t elements(int rank) const;  // of a rank's piece
  [[nodiscard]] Extent extent() const;                  // of the tensor
  [[nodiscard]] Extent extent(int rank) const;          // of a rank's piece
  // [dim] Elements of the piece from one index to the next.
  [[nodiscard]] std::vector<std::int64_t> strides(int rank) const;

  // The indices of the last row dim that a rank holds: attention attends along it.
  [[nodiscard]] Piece line(int rank) const { return dims.at(dims.size() - 2).piece(rank); }
  // Some ranks may hold not all of the rows, or of the columns.
  [[nodiscard]] bool cuts_rows() const;
  [[nodiscard]] bool cuts_columns() const { return !dims.back().cuts.empty(); }

  // The same tensor placed otherwise: all of it on every rank; with this dim cut so, others as they
  // are; or as it is, but as a sum of what ranks hold.
  [[nodiscard]] Layout whole() const;
  [[nodiscard]] Layout cut(const std::string& dim, Cuts cuts) const;
  [[nodiscard]] Layout sum() const;
  // Stored otherwise: `dim` is the last row dim, so that the rows of a line along it are
  // neighbours.
  [[nodiscard]] Layout along(const std::string& dim) const;
  // Another tensor of the same rows; not partial.
  [[nodiscard]] Layout with_columns(std::int64_t width, Cuts cuts = {}) const;

  friend bool operator==(const Layout&, const Layout&) = default;
};

// A matrix whose rows are called so; its columns are called "columns".  Without cuts: all of it on
// every rank.
Layout matrix(const std::string& rows, Extent whole, Cuts row_cuts = {}, Cuts column_cuts = {});

// Every element is on exactly one rank.
bool is_partition(const Layout& layout, int ranks);

// How the gradient of a tensor that lies like this lies.
Layout gradient(const Layout& layout, int ranks);

// Ranks hold the same elements in the same places: nothing is to be done to get from one to the
// other.
bool lie_alike(const Layout& a, const Layout& b, int ranks);

// "S(tokens)", "S(frames, columns)", "R" or "P": the notation of plans, logs and test names.
std::string to_string(const Layout& layout);

}  // namespace paradyse
