// Which indices of a tensor dim each rank of a group holds, as lists of intervals.
//
// Zigzag, uneven, empty, overlapping and whole pieces are all the same thing: a list of half-open
// intervals a rank, in the order in which the rank stores them.  Next: layout.h.
#pragma once

#include <cstdint>
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

}  // namespace paradyse
