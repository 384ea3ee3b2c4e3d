#include <array>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/transfer.h"

namespace paradyse {

struct Redistribution::Known {
  Layout from;
  Layout to;
  int ranks;
  std::once_flag made = {};
  Transfer table = {};
  std::array<std::once_flag, 2> counted = {};  // [transposed]
  std::array<std::vector<Sent>, 2> sent = {};
};

Redistribution::Redistribution(Layout from, Layout to, int ranks) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument(
        "redistribution: from " + to_string(from) + " to " + to_string(to) + ": " + why);
  };
  if (from.partial || to.partial) {
    refuse("copies of a sum are no copies of the tensor");
  }
  if (from.dims.size() != to.dims.size()) {
    refuse("layouts of different dims");
  }
  for (const Dim& dim : to.dims) {
    if (from.dims[from.place(dim.name)].size != dim.size) {
      refuse("dim " + dim.name + " has another size");
    }
  }
  known_ = std::make_shared<Known>(std::move(from), std::move(to), ranks);
}

const Layout& Redistribution::from() const { return known_->from; }
const Layout& Redistribution::to() const { return known_->to; }
int Redistribution::ranks() const { return known_->ranks; }

const Transfer& Redistribution::table() const {
  Known& known = *known_;
  std::call_once(known.made, [&] { known.table = transfer(known.from, known.to, known.ranks); });
  return known.table;
}

const std::vector<Sent>& Redistribution::sent(bool transposed) const {
  Known& known = *known_;
  const std::size_t way = transposed ? 1 : 0;
  std::call_once(known.counted[way], [&] {
    known.sent[way] = paradyse::sent(known.from, known.to, known.ranks, transposed);
  });
  return known.sent[way];
}

bool Redistribution::same_as(const Redistribution& other) const {
  if (known_ == other.known_ ||
      (ranks() == other.ranks() && from() == other.from() && to() == other.to())) {
    return true;
  }
  return ranks() == other.ranks() && table().source == other.table().source &&
         table().destination == other.table().destination && table().boxes == other.table().boxes;
}

std::string collective(const Layout& from, const Layout& to) {
  const auto cut = [](const Layout& layout) { return layout.cuts_rows() || layout.cuts_columns(); };
  if (from.partial) {
    return "reduce_scatter";
  }
  if (!cut(from)) {
    return cut(to) ? "slice" : "permute";
  }
  if (!cut(to)) {
    return "all_gather";
  }
  for (const Dim& dim : to.dims) {
    if (from.dims[from.place(dim.name)].cuts != dim.cuts) {
      return "all_to_all";
    }
  }
  return "permute";
}

}  // namespace paradyse
