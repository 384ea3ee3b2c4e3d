// Which elements a redistribution copies from which rank to which: the copy table.
//
// One linear map C serves all collectives: every element of a destination piece is copied from the
// rank that holds it.  C is an all-gather, a slice, an all-to-all (uneven or overlapping pieces
// included); its transpose C^T adds every copy up at the element's source and is a reduce-scatter
// or the adjoint of an all-to-all.  Both use the same table, so an adjoint cannot disagree with its
// forward.  All tensors are matrices [rows, cols]; a 3-D tensor is seen with its last dims merged.
#pragma once

#include <cstdint>
#include <vector>

#include "paradyse/plan/placement.h"

namespace paradyse {

// A rectangle of elements that lies in `source`'s local matrix at (source_row, source_col) and in
// `destination`'s at (destination_row, destination_col).
struct Block {
  int source = 0;
  int destination = 0;
  std::int64_t source_row = 0;
  std::int64_t source_col = 0;
  std::int64_t destination_row = 0;
  std::int64_t destination_col = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  [[nodiscard]] std::int64_t elements() const { return rows * cols; }
  friend bool operator==(const Block&, const Block&) = default;
};

// The shape of a rank's local matrix.
struct Extent {
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  [[nodiscard]] std::int64_t elements() const { return rows * cols; }
  friend bool operator==(const Extent&, const Extent&) = default;
};

// What one rank hands to others: elements, and one message to each rank that gets any.
struct Sent {
  std::int64_t elements = 0;
  std::int64_t messages = 0;

  friend bool operator==(const Sent&, const Sent&) = default;
};

// The map C of a group.  `blocks` are sorted by (destination, destination_row, destination_col).
struct Transfer {
  std::vector<Extent> source;       // [rank]
  std::vector<Extent> destination;  // [rank]
  std::vector<Block> blocks;

  [[nodiscard]] int ranks() const { return static_cast<int>(source.size()); }
  // Elements that leave `rank` in C, and in its transpose.
  [[nodiscard]] Sent sent(int rank) const;
  [[nodiscard]] Sent sent_transposed(int rank) const;
  // [rank] The same for all ranks in one pass over the blocks.
  [[nodiscard]] std::vector<Sent> sent_by_all(bool transposed) const;
  // C leaves everything where it is (as on a group of one).
  [[nodiscard]] bool identity() const;
};

// A rank's piece of a whole [rows, cols] matrix placed like this.
Extent local_extent(Extent whole, const Placement& placement, int rank);

// C for `from` -> `to`, both shard or replicate (a replicated tensor is a shard whose every piece
// is the whole); an element that several ranks hold is taken from the reader itself if it is one of
// them, else from the lowest.
// Throws std::invalid_argument when an element of `to` is on no rank of `from`.
Transfer transfer(Extent whole, const Placement& from, const Placement& to, int ranks);

}  // namespace paradyse
