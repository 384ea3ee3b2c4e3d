#include "paradyse/plan/transfer.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <tuple>

namespace paradyse {
namespace {

// An interval of a dim and where a rank stores it.
struct Stored {
  Interval global;
  std::int64_t local = 0;
  int rank = 0;
};

// The pieces of one rank along rows and along columns; the dim that is not cut is whole.
struct Rectangle {
  Piece rows;
  Piece cols;
};

Rectangle rectangle(Extent whole, const Placement& placement, int rank) {
  using Kind = Placement::Kind;
  Rectangle result;
  append(result.rows, {0, whole.rows});
  append(result.cols, {0, whole.cols});
  if (placement.kind == Kind::shard) {
    const Piece& piece = placement.cuts.at(static_cast<std::size_t>(rank));
    (placement.dim == 0 ? result.rows : result.cols) = piece;
    if (!placement.across.empty()) {
      (placement.dim == 0 ? result.cols : result.rows) =
          placement.across.at(static_cast<std::size_t>(rank));
    }
  }
  return result;
}

std::vector<Stored> stored(const Piece& piece, int rank) {
  std::vector<Stored> result;
  std::int64_t local = 0;
  for (const Interval interval : piece) {
    result.push_back({interval, local, rank});
    local += interval.size();
  }
  return result;
}

// A run of a destination's interval and where it comes from.
struct Run {
  int source_rank = 0;
  std::int64_t source = 0;
  std::int64_t destination = 0;
  std::int64_t size = 0;
};

// All intervals of one dim by begin; lookups go through a sorted list, so that many documents stay
// cheap.
class Index {
 public:
  explicit Index(std::vector<Stored> all) : all_(std::move(all)) {
    std::sort(all_.begin(), all_.end(), [](const Stored& a, const Stored& b) {
      return std::pair(a.global.begin, a.rank) < std::pair(b.global.begin, b.rank);
    });
    std::int64_t furthest = 0;
    for (const Stored& s : all_) {
      furthest = std::max(furthest, s.global.end);
      furthest_.push_back(furthest);
    }
  }

  // Cuts `wanted` of rank `reader` into runs, each from one source: the reader itself where it
  // holds the index, else the lowest rank that does.
  void find(const Stored& wanted, int reader, std::vector<Run>& runs) const {
    std::int64_t at = wanted.global.begin;
    while (at < wanted.global.end) {
      const Stored* best = nullptr;
      std::int64_t end = wanted.global.end;
      // first interval that could still cover `at`
      auto i = static_cast<std::size_t>(
          std::upper_bound(furthest_.begin(), furthest_.end(), at) - furthest_.begin());
      for (; i < all_.size() && all_[i].global.begin <= at; ++i) {
        const Stored& s = all_[i];
        if (s.global.end <= at) {
          continue;
        }
        const bool better =
            best == nullptr || (best->rank != reader && (s.rank == reader || s.rank < best->rank));
        if (better) {
          best = &s;
        }
      }
      if (best == nullptr) {
        throw std::invalid_argument(
            "transfer: index " + std::to_string(at) + " of the destination is on no source rank");
      }
      end = std::min(end, best->global.end);
      if (best->rank != reader) {  // stop where a better copy begins
        for (std::size_t j = i; j < all_.size() && all_[j].global.begin < end; ++j) {
          if (all_[j].rank == reader || all_[j].rank < best->rank) {
            end = all_[j].global.begin;
          }
        }
      }
      runs.push_back(
          {.source_rank = best->rank,
           .source = best->local + at - best->global.begin,
           .destination = wanted.local + at - wanted.global.begin,
           .size = end - at});
      at = end;
    }
  }

 private:
  std::vector<Stored> all_;
  std::vector<std::int64_t> furthest_;  // furthest end among all_[0..i]
};

// What two ranks both hold of a dim.
std::vector<Run> common(std::vector<Stored> source, std::vector<Stored> destination) {
  const auto begin_of = [](const Stored& stored) { return stored.global.begin; };
  std::ranges::sort(source, {}, begin_of);
  std::ranges::sort(destination, {}, begin_of);
  std::vector<Run> runs;
  for (std::size_t i = 0, j = 0; i < source.size() && j < destination.size();) {
    const Stored& s = source[i];
    const Stored& d = destination[j];
    const std::int64_t begin = std::max(s.global.begin, d.global.begin);
    const std::int64_t end = std::min(s.global.end, d.global.end);
    if (begin < end) {
      runs.push_back(
          {.source_rank = s.rank,
           .source = s.local + begin - s.global.begin,
           .destination = d.local + begin - d.global.begin,
           .size = end - begin});
    }
    (s.global.end < d.global.end ? i : j) += 1;
  }
  return runs;
}

std::vector<Run> runs_of(const std::vector<Stored>& wanted, const Index& index, int reader) {
  std::vector<Run> runs;
  for (const Stored& w : wanted) {
    index.find(w, reader, runs);
  }
  return runs;
}

}  // namespace

Extent local_extent(Extent whole, const Placement& placement, int rank) {
  const Rectangle r = rectangle(whole, placement, rank);
  return {size(r.rows), size(r.cols)};
}

Sent Transfer::sent(int rank) const {
  Sent sent;
  std::set<int> readers;
  for (const Block& block : blocks) {
    if (block.source == rank && block.destination != rank) {
      sent.elements += block.elements();
      readers.insert(block.destination);
    }
  }
  sent.messages = static_cast<std::int64_t>(readers.size());
  return sent;
}

Sent Transfer::sent_transposed(int rank) const {
  Sent sent;
  std::set<int> readers;
  for (const Block& block : blocks) {
    if (block.destination == rank && block.source != rank) {
      sent.elements += block.elements();
      readers.insert(block.source);
    }
  }
  sent.messages = static_cast<std::int64_t>(readers.size());
  return sent;
}

std::vector<Sent> Transfer::sent_by_all(bool transposed) const {
  std::vector<Sent> all(source.size());
  std::vector<bool> met(source.size() * source.size());  // [from][to]
  for (const Block& block : blocks) {
    if (block.source == block.destination) {
      continue;
    }
    const auto from = static_cast<std::size_t>(transposed ? block.destination : block.source);
    const auto to = static_cast<std::size_t>(transposed ? block.source : block.destination);
    all[from].elements += block.elements();
    if (!met[from * source.size() + to]) {
      met[from * source.size() + to] = true;
      ++all[from].messages;
    }
  }
  return all;
}

bool Transfer::identity() const {
  return source == destination && std::all_of(blocks.begin(), blocks.end(), [](const Block& b) {
           return b.source == b.destination && b.source_row == b.destination_row &&
                  b.source_col == b.destination_col;
         });
}

namespace {

// From sources that are cut both ways: rectangle by rectangle; `from` must be a partition.
void copy_rectangles(Extent whole, const Placement& from, const Placement& to, Transfer& result) {
  for (int r = 0; r < result.ranks(); ++r) {
    const Rectangle wanted = rectangle(whole, to, r);
    std::int64_t found = 0;
    for (int s = 0; s < result.ranks(); ++s) {
      const Rectangle has = rectangle(whole, from, s);
      const std::vector<Run> cols = common(stored(has.cols, s), stored(wanted.cols, r));
      for (const Run& row : common(stored(has.rows, s), stored(wanted.rows, r))) {
        for (const Run& col : cols) {
          result.blocks.push_back(
              {.source = s,
               .destination = r,
               .source_row = row.source,
               .source_col = col.source,
               .destination_row = row.destination,
               .destination_col = col.destination,
               .rows = row.size,
               .cols = col.size});
          found += row.size * col.size;
        }
      }
    }
    const std::int64_t elements = result.destination[static_cast<std::size_t>(r)].elements();
    if (found != elements) {
      throw std::invalid_argument(
          "transfer: rank " + std::to_string(r) + " wants " + std::to_string(elements) +
          " elements and finds " + std::to_string(found) +
          "; pieces cut both ways must be a partition to be copied from");
    }
  }
}

// From sources that are cut one way.  Where `from` and `to` cut the same dim the other one is whole
// or the destination's; a source is chosen along its cut dim, so the other dim's runs are whole.
void copy_runs(Extent whole, const Placement& from, const Placement& to, Transfer& result) {
  std::vector<Stored> all;
  const bool cuts_cols = from.kind == Placement::Kind::shard && from.dim == 1;
  for (int r = 0; r < result.ranks(); ++r) {
    const Rectangle rect = rectangle(whole, from, r);
    for (const Stored& s : stored(cuts_cols ? rect.cols : rect.rows, r)) {
      all.push_back(s);
    }
  }
  const Index index(std::move(all));
  for (int r = 0; r < result.ranks(); ++r) {
    const Rectangle wanted = rectangle(whole, to, r);
    const std::vector<Stored> rows = stored(wanted.rows, r);
    const std::vector<Stored> cols = stored(wanted.cols, r);
    // Along the dim that the source does not cut, every source stores index i at i.
    for (const Run& run : runs_of(cuts_cols ? cols : rows, index, r)) {
      for (const Stored& other : cuts_cols ? rows : cols) {
        Block block{.source = run.source_rank, .destination = r};
        if (cuts_cols) {
          block.source_col = run.source;
          block.destination_col = run.destination;
          block.cols = run.size;
          block.source_row = other.global.begin;
          block.destination_row = other.local;
          block.rows = other.global.size();
        } else {
          block.source_row = run.source;
          block.destination_row = run.destination;
          block.rows = run.size;
          block.source_col = other.global.begin;
          block.destination_col = other.local;
          block.cols = other.global.size();
        }
        result.blocks.push_back(block);
      }
    }
  }
}

}  // namespace

Transfer transfer(Extent whole, const Placement& from, const Placement& to, int ranks) {
  const auto movable = [](const Placement& placement) {
    return placement.kind == Placement::Kind::shard || placement.kind == Placement::Kind::replicate;
  };
  if (!movable(from) || !movable(to)) {
    throw std::invalid_argument(
        "transfer: copies go from S or R to S or R, not from " + to_string(from) + " to " +
        to_string(to));
  }
  Transfer result;
  for (int r = 0; r < ranks; ++r) {
    result.source.push_back(local_extent(whole, from, r));
    result.destination.push_back(local_extent(whole, to, r));
  }
  (from.across.empty() ? copy_runs : copy_rectangles)(whole, from, to, result);
  std::sort(result.blocks.begin(), result.blocks.end(), [](const Block& a, const Block& b) {
    return std::tuple(a.destination, a.destination_row, a.destination_col) <
           std::tuple(b.destination, b.destination_row, b.destination_col);
  });
  return result;
}

}  // namespace paradyse
