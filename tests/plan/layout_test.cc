// Tables between random layouts of up to four dims: orders, cuts of several dims at once (grids of
// ranks), pieces that overlap along one dim, empty pieces, sums.  Judge: labels, one at a time.
#include "paradyse/plan/detail/layout.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "paradyse/plan/detail/transfer.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using Labels = std::vector<std::int64_t>;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::int64_t below(std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(engine_);
  }
  Cuts partition(std::int64_t n, int ranks) {
    Cuts cuts(at(ranks));
    for (std::int64_t i = 0; i < n;) {
      const std::int64_t end = std::min(n, i + 1 + below(3));
      append(cuts[at(below(ranks))], {i, end});
      i = end;
    }
    return cuts;
  }
  // Every index is on some rank, some on several.
  Cuts cover(std::int64_t n, int ranks) {
    Cuts cuts = partition(n, ranks);
    for (Piece& piece : cuts) {
      std::set<std::int64_t> held = {below(n)};
      for (const Interval interval : piece) {
        for (std::int64_t i = interval.begin; i < interval.end; ++i) {
          held.insert(i);
        }
      }
      piece.clear();
      for (const std::int64_t i : held) {
        append(piece, {i, i + 1});
      }
    }
    return cuts;
  }
  Layout placed(const Layout& whole, int ranks) {
    Layout layout = whole;
    std::shuffle(layout.dims.begin(), layout.dims.end(), engine_);
    Dim& first = layout.dims.front();
    switch (below(5)) {
      case 0:
        break;
      case 1:
        first.cuts = cover(first.size, ranks);
        break;
      case 2: {
        Dim& dim = layout.dims[at(below(static_cast<std::int64_t>(layout.dims.size())))];
        dim.cuts = partition(dim.size, ranks);
        break;
      }
      case 3:  // some elements are nowhere, or pieces overlap both ways
        first.cuts = cover(first.size, ranks);
        layout.dims.back().cuts = cover(layout.dims.back().size, ranks);
        break;
      default: {  // a grid of ranks; perhaps with copies along its second axis
        int rows = 1;
        for (int k = 1; k <= ranks; ++k) {
          rows = ranks % k == 0 && below(2) == 0 ? k : rows;
        }
        const int cols = ranks / rows;
        const Cuts outer = partition(first.size, rows);
        for (int r = 0; r < ranks; ++r) {
          first.cuts.push_back(outer[at(r / cols)]);
        }
        if (layout.dims.size() > 1 && below(3) > 0) {
          Dim& second = layout.dims[1];
          const Cuts inner =
              below(2) == 0 ? cover(second.size, cols) : partition(second.size, cols);
          for (int r = 0; r < ranks; ++r) {
            second.cuts.push_back(inner[at(r % cols)]);
          }
        }
      }
    }
    return layout;
  }

 private:
  std::mt19937 engine_;
};

// The numbers, in `whole`, of the elements that a rank holds, in its order.
Labels labels(const Layout& layout, const Layout& whole, int rank) {
  Labels found;
  const std::vector<std::int64_t> strides = whole.strides(0);
  const std::function<void(std::size_t, std::int64_t)> go = [&](std::size_t d, std::int64_t label) {
    if (d == layout.dims.size()) {
      found.push_back(label);
      return;
    }
    const std::int64_t stride = strides[whole.place(layout.dims[d].name)];
    for (const Interval interval : layout.dims[d].piece(rank)) {
      for (std::int64_t i = interval.begin; i < interval.end; ++i) {
        go(d + 1, label + i * stride);
      }
    }
  };
  go(0, 0);
  return found;
}

void for_elements(const Box& box, const std::function<void(std::size_t, std::size_t)>& body) {
  const std::function<void(std::size_t, std::int64_t, std::int64_t)> go =
      [&](std::size_t d, std::int64_t from, std::int64_t to) {
        if (d == box.loops.size()) {
          body(at(from), at(to));
          return;
        }
        const Loop& loop = box.loops[d];
        for (std::int64_t i = 0; i < loop.count; ++i) {
          go(d + 1, from + i * loop.source, to + i * loop.destination);
        }
      };
  go(0, box.source_offset, box.destination_offset);
}

Layout random_whole(Random& random) {
  Layout whole;
  const std::int64_t dims = 1 + random.below(4);
  for (std::int64_t d = 0; d < dims; ++d) {
    whole.dims.push_back({std::string(1, static_cast<char>('a' + d)), 1 + random.below(6)});
  }
  return whole;
}

TEST(Transfer, MovesEveryElementBetweenRandomLayouts) {
  Random random(11);
  int made = 0;
  int refused = 0;
  for (int n = 0; n < 6000; ++n) {
    const int p = 1 + static_cast<int>(random.below(8));
    const Layout whole = random_whole(random);
    const Layout from = random.placed(whole, p);
    const Layout to = random.placed(whole, p);
    SCOPED_TRACE(to_string(from) + " -> " + to_string(to) + ", ranks " + std::to_string(p));
    std::vector<std::set<int>> holders(at(whole.elements()));
    std::vector<Labels> held;
    std::vector<Labels> wanted;
    for (int r = 0; r < p; ++r) {
      held.push_back(labels(from, whole, r));
      wanted.push_back(labels(to, whole, r));
      for (const std::int64_t label : held.back()) {
        holders[at(label)].insert(r);
      }
    }
    bool there = true;
    for (const Labels& mine : wanted) {
      for (const std::int64_t label : mine) {
        there = there && !holders[at(label)].empty();
      }
    }
    Transfer table;
    try {
      table = transfer(from, to, p);
    } catch (const std::invalid_argument& error) {
      ++refused;
      ASSERT_TRUE(!there || std::string(error.what()).find("several dims") != std::string::npos)
          << error.what();
      continue;
    }
    ASSERT_TRUE(there);
    ++made;
    std::vector<Labels> got;
    for (const Labels& mine : wanted) {
      got.emplace_back(mine.size(), -1);
    }
    std::vector<std::vector<int>> reads(at(p));  // how often each element of a source is read
    for (int r = 0; r < p; ++r) {
      reads[at(r)].resize(held[at(r)].size());
    }
    std::vector<std::map<std::set<std::size_t>, Region>> regions(at(p));
    for (const Box& box : table.boxes) {
      std::set<std::size_t> read;
      for_elements(box, [&](std::size_t source, std::size_t destination) {
        const std::int64_t label = held[at(box.source)].at(source);
        ASSERT_EQ(got[at(box.destination)].at(destination), -1) << "written twice";
        got[at(box.destination)][destination] = label;
        const std::set<int>& holds = holders[at(label)];
        ASSERT_EQ(box.source, holds.contains(box.destination) ? box.destination : *holds.begin());
        ++reads[at(box.source)][source];
        read.insert(source);
      });
      const auto [known, fresh] = regions[at(box.source)].emplace(read, source_region(box));
      ASSERT_EQ(known->second, source_region(box)) << "the same elements";
    }
    ASSERT_EQ(got, wanted);
    for (int r = 0; r < p; ++r) {
      if (table.covered[at(r)]) {  // the sets of what boxes read are a partition of the piece
        std::size_t elements = 0;
        for (const auto& [read, region] : regions[at(r)]) {
          elements += read.size();
        }
        ASSERT_EQ(elements, held[at(r)].size());
        ASSERT_EQ(std::count(reads[at(r)].begin(), reads[at(r)].end(), 0), 0);
      }
    }
  }
  EXPECT_GT(made, 3000);
  EXPECT_GT(refused, 0);
}

// Where pieces of the destination are a partition, everything that is read is all there is.
TEST(Transfer, KnowsWhatIsCovered) {
  const Layout whole{.dims = {{"frames", 6}, {"tokens", 8}, {"columns", 3}}};
  for (const int p : {1, 2, 3, 4, 6}) {
    const Layout frames = whole.cut("frames", even_cuts(6, p));
    const Layout tokens = whole.along("frames").cut("tokens", even_cuts(8, p));
    const std::vector<bool> all(at(p), true);
    EXPECT_EQ(transfer(frames, tokens, p).covered, all);
    EXPECT_EQ(transfer(tokens, frames, p).covered, all);
    EXPECT_EQ(transfer(frames, whole, p).covered, all);  // read by all: equal boxes
    EXPECT_EQ(transfer(whole, frames, p).covered, std::vector<bool>(at(p), p == 1));
  }
}

TEST(Layout, SaysWhereItIsCut) {
  const Layout whole{.dims = {{"frames", 4}, {"tokens", 6}, {"columns", 3}}};
  EXPECT_EQ(to_string(whole), "R");
  EXPECT_EQ(to_string(whole.sum()), "P");
  EXPECT_EQ(to_string(whole.cut("frames", even_cuts(4, 2))), "S(frames)");
  EXPECT_EQ(
      to_string(whole.cut("frames", even_cuts(4, 2)).cut("columns", even_cuts(3, 2))),
      "S(frames, columns)");
  EXPECT_EQ(whole.along("frames").dims[1].name, "frames");
  EXPECT_EQ(whole.extent(), (Extent{24, 3}));
  EXPECT_EQ(whole.cut("tokens", even_cuts(6, 4)).extent(1), (Extent{4 * 2, 3}));
  EXPECT_THAT(
      test::refusal([&] { static_cast<void>(whole.cut("words", {})); }),
      testing::HasSubstr("frames, tokens, columns"));
}

// Copies have a sum as gradient, a sum copies, a partition itself.
TEST(Layout, HasAGradientThatLies) {
  const Layout whole{.dims = {{"tokens", 6}, {"columns", 3}}};
  const Layout cut = whole.cut("tokens", even_cuts(6, 3));
  EXPECT_EQ(gradient(whole, 3), whole.sum());
  EXPECT_EQ(gradient(whole.sum(), 3), whole);
  EXPECT_EQ(gradient(cut, 3), cut);
  EXPECT_EQ(gradient(whole, 1), whole);
  EXPECT_FALSE(is_partition(whole.cut("tokens", {{{0, 4}}, {{3, 6}}}), 2));
  EXPECT_FALSE(is_partition(whole.cut("tokens", {{{0, 4}}, {{5, 6}}}), 2));
  EXPECT_TRUE(is_partition(whole.cut("tokens", {{{4, 6}, {0, 1}}, {{1, 4}}}), 2));
}

}  // namespace
}  // namespace paradyse
