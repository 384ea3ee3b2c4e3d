// Which elements a redistribution copies from which rank to which: the table of a linear map C.
//
// C copies every element of a destination piece from a rank that holds it: an all-gather, a slice,
// an all-to-all, and any change of the order in which dims are stored, in one pass.  Its transpose
// C^T adds every copy up where it came from: a reduce-scatter, and the adjoint of C.  Both use the
// same table, so an adjoint cannot disagree with its forward.  A table is in terms of memory: dims,
// cuts and orders have become offsets and strides, in elements of contiguous pieces.
//
// A Redistribution is one tensor from how it lies to how it shall lie, among the ranks of a group
// or a weight domain: two layouts, and what follows from them when it is asked for.
//
//   copies -> copies     forward C(from, to), adjoint C^T:  keep, slice, all-gather, all-to-all
//   a sum -> a partition forward C^T(to, from), adjoint C:  reduce-scatter
//
// Those are all: a sum that every rank is to have is the second, then an all-gather.  The gradient
// of copies is a sum, carried unsummed until one of these, or the weights' own sum, takes it.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paradyse/plan/detail/layout.h"

namespace paradyse {

inline constexpr std::size_t kMaxDims = 6;  // of a tensor

// At most kMaxDims of them, without an allocation.
template <typename T>
class Few {
 public:
  void push_back(const T& item) { items_.at(count_++) = item; }
  void pop_back() { --count_; }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] T& back() { return items_[count_ - 1]; }
  [[nodiscard]] T* begin() { return items_.data(); }
  [[nodiscard]] T* end() { return items_.data() + count_; }
  [[nodiscard]] const T* begin() const { return items_.data(); }
  [[nodiscard]] const T* end() const { return items_.data() + count_; }
  [[nodiscard]] T& operator[](std::size_t i) { return items_[i]; }
  [[nodiscard]] const T& operator[](std::size_t i) const { return items_[i]; }

  friend bool operator==(const Few&, const Few&) = default;
  friend auto operator<=>(const Few&, const Few&) = default;

 private:
  std::array<T, kMaxDims> items_ = {};
  std::size_t count_ = 0;
};

// `count` steps, so many elements apart on either side.
struct Loop {
  std::int64_t count = 1;
  std::int64_t source = 0;
  std::int64_t destination = 0;

  friend bool operator==(const Loop&, const Loop&) = default;
  friend auto operator<=>(const Loop&, const Loop&) = default;
};

// Elements of `source`'s piece and their places in `destination`'s: loops inside one another,
// outermost first, as few as say it, none of one step; without loops a single element.
struct Box {
  int source = 0;
  int destination = 0;
  std::int64_t source_offset = 0;
  std::int64_t destination_offset = 0;
  Few<Loop> loops = {};

  [[nodiscard]] std::int64_t elements() const;
  friend bool operator==(const Box&, const Box&) = default;
};

// Some elements of a piece, in the order of loops inside one another.
struct Region {
  struct Loop {
    std::int64_t count = 1;
    std::int64_t stride = 0;

    friend bool operator==(const Loop&, const Loop&) = default;
    friend auto operator<=>(const Loop&, const Loop&) = default;
  };
  std::int64_t offset = 0;
  Few<Loop> loops = {};

  [[nodiscard]] std::int64_t elements() const;
  friend bool operator==(const Region&, const Region&) = default;
  friend auto operator<=>(const Region&, const Region&) = default;
};

// The numbers of a box's loops in the order of the source's memory, widest step first.
Few<std::size_t> source_order(const Box& box);
// What a box reads, in the order of memory, as few loops as say it: equal for boxes that read the
// same elements, in whatever order.
Region source_region(const Box& box);

// What one rank hands to others: elements, and one message to each rank that gets any.
struct Sent {
  std::int64_t elements = 0;
  std::int64_t messages = 0;

  friend bool operator==(const Sent&, const Sent&) = default;
};

struct Transfer {
  std::vector<std::int64_t> source = {};       // [rank] elements of its piece
  std::vector<std::int64_t> destination = {};  // [rank]
  std::vector<Box> boxes = {};  // by destination and where they lie in it; none is empty
  // [rank] What is read of its piece is all of it, in boxes that are equal or disjoint: C^T may
  // write where it first comes, and needs no zeros to add to.
  std::vector<bool> covered = {};

  [[nodiscard]] int ranks() const { return static_cast<int>(source.size()); }
  // [rank] Of C, or of its transpose.
  [[nodiscard]] std::vector<Sent> sent(bool transposed) const;
};

// C of two layouts of one tensor, neither a sum; dims are matched by name.  An element that
// several ranks hold is taken from the reader itself if it is one of them, else from the lowest.  A
// pair of ranks has one box for each combination of the intervals that they have in common of each
// dim; p^2 intersections of pieces. Throws std::invalid_argument for other dims, for sums, for an
// element that is on no rank of `from`, and for pieces of `from` that overlap along several dims at
// once without being equal.
Transfer transfer(const Layout& from, const Layout& to, int ranks);
// What transfer(from, to, ranks).sent(transposed) says, without making a box.  Throws like it.
std::vector<Sent> sent(const Layout& from, const Layout& to, int ranks, bool transposed);

// C.  Plans are judged by what they send, and few of those that are judged are run: so its table is
// made when it is first asked for, and kept for all copies of this.
class Redistribution {
 public:
  // Throws std::invalid_argument for other dims and for sums; what else transfer() refuses, when
  // something is asked.
  Redistribution(Layout from, Layout to, int ranks);

  [[nodiscard]] const Layout& from() const;
  [[nodiscard]] const Layout& to() const;
  [[nodiscard]] int ranks() const;
  // Safe on several threads at once, as the next.
  [[nodiscard]] const Transfer& table() const;
  // [rank] What table().sent(transposed) says, without a table.
  [[nodiscard]] const std::vector<Sent>& sent(bool transposed) const;
  // The same elements go from and to the same places.
  [[nodiscard]] bool same_as(const Redistribution& other) const;

 private:
  struct Known;
  std::shared_ptr<Known> known_;
};

// What people call the way from one layout to another: "slice", "all_gather", "all_to_all",
// "reduce_scatter"; "permute" where ranks keep what they have and store it otherwise.
std::string collective(const Layout& from, const Layout& to);

}  // namespace paradyse
