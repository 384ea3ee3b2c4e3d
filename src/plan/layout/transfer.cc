// Words.  A *run* is what a source and a reader have in common of one dim, without a gap on either
// side.  A *portion* is what a reader takes from a source: every combination of a run of each dim.
#include "paradyse/plan/detail/transfer.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

struct Run {
  Interval indices;
  std::int64_t source = 0;  // where it begins in the source's piece
  std::int64_t destination = 0;
};
using Runs = std::vector<Run>;      // ascending
using Portion = std::vector<Runs>;  // [dim]

std::int64_t size(const Runs& runs) {
  std::int64_t sum = 0;
  for (const Run& run : runs) {
    sum += run.indices.size();
  }
  return sum;
}

std::int64_t elements(const Portion& portion) {
  std::int64_t product = 1;
  for (const Runs& runs : portion) {
    product *= size(runs);
  }
  return product;
}

// An interval of a dim and where a rank stores it.
struct Stored {
  Interval indices;
  std::int64_t at = 0;
};

// Ascending, in whatever order the rank stores them.
std::vector<Stored> stored(const Piece& piece) {
  std::vector<Stored> result;
  result.reserve(piece.size());
  std::int64_t at = 0;
  for (const Interval interval : piece) {
    result.push_back({interval, at});
    at += interval.size();
  }
  std::ranges::sort(result, {}, [](const Stored& s) { return s.indices.begin; });
  return result;
}

Runs common(const std::vector<Stored>& has, const std::vector<Stored>& wants) {
  Runs runs;
  for (std::size_t i = 0, j = 0; i < has.size() && j < wants.size();) {
    const std::int64_t begin = std::max(has[i].indices.begin, wants[j].indices.begin);
    const std::int64_t end = std::min(has[i].indices.end, wants[j].indices.end);
    if (begin < end) {
      runs.push_back(
          {{begin, end},
           has[i].at + begin - has[i].indices.begin,
           wants[j].at + begin - wants[j].indices.begin});
    }
    (has[i].indices.end < wants[j].indices.end ? i : j) += 1;
  }
  return runs;
}

// Those of `runs` that are not in `taken`; both ascending.
Runs without(const Runs& runs, const Runs& taken) {
  Runs left;
  for (const Run& run : runs) {
    std::int64_t at = run.indices.begin;
    const auto keep = [&](std::int64_t end) {
      if (at < end) {
        const std::int64_t skipped = at - run.indices.begin;
        left.push_back({{at, end}, run.source + skipped, run.destination + skipped});
      }
    };
    for (const Run& other : taken) {
      if (at < other.indices.end && other.indices.begin < run.indices.end) {
        keep(other.indices.begin);
        at = other.indices.end;
      }
    }
    keep(run.indices.end);
  }
  return left;
}

// Takes out of `portion` what is in `taken`, too: along one dim, since the rest must be a product.
void leave_out(Portion& portion, const Portion& taken) {
  Portion left;
  std::vector<std::size_t> dims;  // along which something is left
  for (std::size_t d = 0; d < portion.size(); ++d) {
    left.push_back(without(portion[d], taken[d]));
    if (size(left[d]) == size(portion[d])) {
      return;  // they do not meet
    }
    if (!left[d].empty()) {
      dims.push_back(d);
    }
  }
  if (dims.size() > 1) {
    throw std::invalid_argument(
        "transfer: pieces of the source overlap along several dims without being equal; the rest "
        "of one is no box");
  }
  const std::size_t d = dims.empty() ? 0 : dims[0];
  portion[d] = std::move(left[d]);
}

// Without loops of one step; what is one loop on both sides is joined.
Few<Loop> joined(const Few<Loop>& loops) {
  Few<Loop> result;
  for (const Loop& inner : loops) {
    if (inner.count == 1) {
      continue;
    }
    const bool one = !result.empty() && result.back().source == inner.count * inner.source &&
                     result.back().destination == inner.count * inner.destination;
    if (one) {
      result.back() = {result.back().count * inner.count, inner.source, inner.destination};
    } else {
      result.push_back(inner);
    }
  }
  return result;
}

// `steps`: [dim] a loop of one step.  Dims before box.loops.size() are settled already.
void add_boxes(
    const Portion& portion, const std::vector<Loop>& steps, Box& box, std::vector<Box>& boxes) {
  const std::size_t d = box.loops.size();
  if (d == portion.size()) {
    boxes.push_back(box);
    boxes.back().loops = joined(box.loops);
    return;
  }
  for (const Run& run : portion[d]) {
    box.source_offset += run.source * steps[d].source;
    box.destination_offset += run.destination * steps[d].destination;
    box.loops.push_back({run.indices.size(), steps[d].source, steps[d].destination});
    add_boxes(portion, steps, box, boxes);
    box.loops.pop_back();
    box.source_offset -= run.source * steps[d].source;
    box.destination_offset -= run.destination * steps[d].destination;
  }
}

// What a rank holds of a tensor, its dims in the order of `as`.
struct Held {
  std::vector<std::vector<Stored>> pieces;
  std::vector<std::int64_t> strides;
};

std::vector<Held> held(const Layout& layout, const Layout& as, int ranks) {
  std::vector<std::size_t> places;
  for (const Dim& dim : as.dims) {
    places.push_back(layout.place(dim.name));
    if (layout.dims[places.back()].size != dim.size) {
      throw std::invalid_argument(
          "transfer: dim " + dim.name + " has " + std::to_string(dim.size) + " indices in one " +
          "layout and " + std::to_string(layout.dims[places.back()].size) + " in the other");
    }
  }
  std::vector<Held> all(idx(ranks));
  for (int r = 0; r < ranks; ++r) {
    const std::vector<std::int64_t> strides = layout.strides(r);
    Held& mine = all[idx(r)];
    for (const std::size_t d : places) {
      mine.pieces.push_back(stored(layout.dims[d].piece(r)));
      mine.strides.push_back(strides[d]);
    }
  }
  return all;
}

// What is read of one source.
class Reads {
 public:
  explicit Reads(std::size_t dims) : runs_(dims) {}

  void add(const Portion& portion) {
    for (std::size_t d = 0; d < portion.size(); ++d) {
      for (const Run& run : portion[d]) {
        runs_[d].emplace(run.indices.begin, run.indices.end);
      }
    }
    elements_ += elements(portion);
  }
  // All of it, in boxes that are equal or disjoint; when in doubt, no.
  [[nodiscard]] bool cover(const std::vector<Box>& boxes, int source, std::int64_t piece) const {
    for (const auto& runs : runs_) {
      std::int64_t end = 0;
      for (const auto& [b, e] : runs) {
        if (b < end) {
          return false;
        }
        end = e;
      }
    }
    if (elements_ < piece) {
      return false;
    }
    std::set<Region> regions;
    std::int64_t sum = 0;
    for (const Box& box : boxes) {
      if (box.source == source && regions.insert(source_region(box)).second) {
        sum += box.elements();
      }
    }
    return sum == piece;
  }

 private:
  std::vector<std::set<std::pair<std::int64_t, std::int64_t>>> runs_;  // [dim] begin, end
  std::int64_t elements_ = 0;
};

// Calls body(source, reader, portion, steps) for what every reader takes of every source that it
// takes anything of, readers ascending; `steps`: [dim] a loop of one step.
template <typename Body>
void for_portions(const Layout& from, const Layout& to, int ranks, Body body) {
  if (from.partial || to.partial || from.dims.size() != to.dims.size() ||
      to.dims.size() > kMaxDims) {
    throw std::invalid_argument(
        "transfer: no copies from " + to_string(from) + " (" + std::to_string(from.dims.size()) +
        " dims) to " + to_string(to) + " (" + std::to_string(to.dims.size()) +
        " dims): both name the same dims, at most " + std::to_string(kMaxDims) +
        ", and neither is a sum");
  }
  const std::vector<Held> sources = held(from, to, ranks);
  const std::vector<Held> readers = held(to, to, ranks);
  const bool each_once = is_partition(from, ranks);
  for (int reader = 0; reader < ranks; ++reader) {
    const Held& wants = readers[idx(reader)];
    const std::int64_t wanted = to.elements(reader);
    std::vector<Portion> taken;
    std::int64_t found = 0;
    const auto take_from = [&](int source) {
      const Held& has = sources[idx(source)];
      Portion portion;
      std::vector<Loop> steps;
      for (std::size_t d = 0; d < to.dims.size(); ++d) {
        portion.push_back(common(has.pieces[d], wants.pieces[d]));
        steps.push_back({1, has.strides[d], wants.strides[d]});
      }
      for (const Portion& before : taken) {
        leave_out(portion, before);
      }
      if (const std::int64_t count = elements(portion); count > 0) {
        found += count;
        body(source, reader, std::as_const(portion), std::as_const(steps));
        if (!each_once) {
          taken.push_back(std::move(portion));
        }
      }
    };
    take_from(reader);
    for (int source = 0; source < ranks; ++source) {
      if (source != reader && found < wanted) {
        take_from(source);
      }
    }
    if (found != wanted) {
      throw std::invalid_argument(
          "transfer: rank " + std::to_string(reader) + " finds " + std::to_string(found) + " of " +
          std::to_string(wanted) + " elements on the ranks of " + to_string(from));
    }
  }
}

}  // namespace

std::int64_t Box::elements() const {
  std::int64_t product = 1;
  for (const Loop& loop : loops) {
    product *= loop.count;
  }
  return product;
}

std::int64_t Region::elements() const {
  std::int64_t product = 1;
  for (const Loop& loop : loops) {
    product *= loop.count;
  }
  return product;
}

Few<std::size_t> source_order(const Box& box) {
  Few<std::size_t> order;
  for (std::size_t i = 0; i < box.loops.size(); ++i) {
    order.push_back(i);
    for (std::size_t at = i; at > 0; --at) {
      if (box.loops[order[at - 1]].source >= box.loops[order[at]].source) {
        break;
      }
      std::swap(order[at - 1], order[at]);
    }
  }
  return order;
}

Region source_region(const Box& box) {
  Region region{.offset = box.source_offset};
  for (const std::size_t i : source_order(box)) {
    const Loop& inner = box.loops[i];
    if (!region.loops.empty() && region.loops.back().stride == inner.count * inner.source) {
      region.loops.back() = {region.loops.back().count * inner.count, inner.source};
    } else {
      region.loops.push_back({inner.count, inner.source});
    }
  }
  return region;
}

std::vector<Sent> Transfer::sent(bool transposed) const {
  std::vector<Sent> all(source.size());
  std::vector<bool> met(source.size() * source.size());  // [from][to]
  for (const Box& box : boxes) {
    if (box.source == box.destination) {
      continue;
    }
    const auto from = idx(transposed ? box.destination : box.source);
    const auto to = idx(transposed ? box.source : box.destination);
    all[from].elements += box.elements();
    all[from].messages += met[from * source.size() + to] ? 0 : 1;
    met[from * source.size() + to] = true;
  }
  return all;
}

Transfer transfer(const Layout& from, const Layout& to, int ranks) {
  Transfer table;
  std::vector<Reads> reads(idx(ranks), Reads(to.dims.size()));
  for_portions(
      from,
      to,
      ranks,
      [&](int source, int reader, const Portion& portion, const std::vector<Loop>& steps) {
        Box box{.source = source, .destination = reader};
        add_boxes(portion, steps, box, table.boxes);
        reads[idx(source)].add(portion);
      });
  std::ranges::sort(table.boxes, {}, [](const Box& box) {
    return std::tuple(box.destination, box.destination_offset);
  });
  for (int r = 0; r < ranks; ++r) {
    table.source.push_back(from.elements(r));
    table.destination.push_back(to.elements(r));
    table.covered.push_back(reads[idx(r)].cover(table.boxes, r, table.source.back()));
  }
  return table;
}

std::vector<Sent> sent(const Layout& from, const Layout& to, int ranks, bool transposed) {
  std::vector<Sent> all(idx(ranks));
  for_portions(
      from,
      to,
      ranks,
      [&](int source, int reader, const Portion& portion, const std::vector<Loop>& /*steps*/) {
        if (source != reader) {
          Sent& mine = all[idx(transposed ? reader : source)];
          mine.elements += elements(portion);
          ++mine.messages;
        }
      });
  return all;
}

}  // namespace paradyse
