// One tensor from how it lies to how it shall lie, among the ranks of a group or a weight domain:
// two layouts, and what follows from them when it is asked for.
//
//   copies -> copies     forward C(from, to), adjoint C^T:  keep, slice, all-gather, all-to-all
//   a sum -> a partition forward C^T(to, from), adjoint C:  reduce-scatter
//
// Those are all: a sum that every rank is to have is the second, then an all-gather.  The gradient
// of copies is a sum, carried unsummed until one of these, or the weights' own sum, takes it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "paradyse/plan/layout.h"
#include "paradyse/plan/transfer.h"

namespace paradyse {

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
