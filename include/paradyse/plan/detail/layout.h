// How a tensor lies over a group of ranks: its named dims, in the order in which ranks store them,
// and of each dim the indices that each rank holds.
//
// A rank's piece is the product of its pieces of all dims, stored row-major.  Ops see it as a
// matrix [rows, cols]: all dims but the last, merged, and the last (extent()).  Where several ranks
// hold an element they hold copies of it, or, of a `partial` tensor, terms of its sum.
//
// The gradient of copies is a sum (`partial`) and that of a sum is copies; a partition is its own
// gradient; so there is no place where a factor p can be lost or gained.  Next: transfer.h.
//
// Zigzag, uneven, empty, overlapping and whole pieces are all the same thing: a list of half-open
// intervals a rank, in the order in which the rank stores them (Cuts).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace paradyse {

// The indices begin, begin + 1, ..., end - 1.
struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] constexpr std::int64_t size() const { return end - begin; }
  [[nodiscard]] constexpr bool empty() const { return end <= begin; }
  friend constexpr bool operator==(Interval, Interval) = default;
};

// What one rank holds of a dim: non-empty intervals, stored one after the other.
using Piece = std::vector<Interval>;

// One piece for each rank of a group.
using Cuts = std::vector<Piece>;

// Indices that `piece` holds.
std::int64_t size(const Piece& piece);

// Appends `interval`, joined with the last one where they touch; an empty one is dropped.
void append(Piece& piece, Interval interval);

// Where the stored indices [stored.begin, stored.end) of `piece` are.
Piece slice(const Piece& piece, Interval stored);

// What the pieces of several ranks hold together, ascending.
Piece together(std::span<const Piece> pieces);

// Every rank holds all of [0, size).
Cuts whole_cuts(std::int64_t size, int ranks);

// Rank r holds [floor(r n / p), floor((r + 1) n / p)).
Cuts even_cuts(std::int64_t size, int ranks);

// Every interval stretched from heads to the `width` rows (or columns) of each head.
Cuts scaled(const Cuts& cuts, std::int64_t width);

// The tokens of packed documents (x_TH, no padding) over `ranks` ranks, cut document by document.
//
// Piece i of a document of n tokens cut into m is [floor((i n + phi)/m), floor(((i+1) n + phi)/m));
// phi starts at 0 and grows by n modulo m from document to document, so that the odd tokens of many
// short documents spread evenly.  Causal: m = 2p, and rank r holds pieces r and 2p-1-r (zigzag: all
// ranks do equal attention work); otherwise m = p and rank r holds piece r.
// Post: the pieces partition [0, sum of lengths).
//
// `shares`: rank r gets shares[r] of every document, to within two tokens and a millionth of it,
// instead of an equal part (causal: in two pieces that lie like those above, so its attention work
// is that share, too), and of many short documents its share of all tokens.  None, or all equal:
// the cuts above, exactly. Throws std::invalid_argument for another number of shares than ranks, a
// negative one or none that is positive.
Cuts token_cuts(
    std::span<const std::int64_t> lengths,
    int ranks,
    bool causal,
    std::span<const double> shares = {});

// "0:[0,3)[9,12) 1:[3,9)"
std::string to_string(const Cuts& cuts);

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
