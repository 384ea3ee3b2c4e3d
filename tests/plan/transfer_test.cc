// Transfers against a slow obvious judge: elements with labels, moved one at a time.
#include "paradyse/plan/detail/transfer.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace paradyse {
namespace {

// Labels of a rank's local matrix: element (i, j) of the whole is i * cols + j.
struct Local {
  Extent extent;
  std::vector<std::int64_t> labels;

  std::int64_t& at(std::int64_t row, std::int64_t col) {
    EXPECT_TRUE(row >= 0 && row < extent.rows && col >= 0 && col < extent.cols)
        << row << "," << col << " is outside " << extent.rows << " x " << extent.cols;
    return labels.at(static_cast<std::size_t>(row * extent.cols + col));
  }
};

std::vector<std::int64_t> indices(const Dim& dim, int rank) {
  std::vector<std::int64_t> result;
  if (dim.cuts.empty()) {
    for (std::int64_t i = 0; i < dim.size; ++i) {
      result.push_back(i);
    }
    return result;
  }
  for (const Interval interval : dim.cuts[static_cast<std::size_t>(rank)]) {
    for (std::int64_t i = interval.begin; i < interval.end; ++i) {
      result.push_back(i);
    }
  }
  return result;
}

// Of a matrix.
Local labelled(const Layout& layout, int rank) {
  const auto rows = indices(layout.dims[0], rank);
  const auto cols = indices(layout.dims[1], rank);
  Local local{
      .extent = {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(cols.size())},
      .labels = {}};
  for (const std::int64_t i : rows) {
    for (const std::int64_t j : cols) {
      local.labels.push_back(i * layout.dims[1].size + j);
    }
  }
  return local;
}

// Cut along its rows (dim 0) or its columns (1).
Layout cut_along(int dim, Extent whole, Cuts cuts) {
  return dim == 0 ? matrix("rows", whole, std::move(cuts))
                  : matrix("rows", whole, {}, std::move(cuts));
}

constexpr std::int64_t kNothing = -1;

// body(place in the source's piece, place in the destination's) for every element of the box.
void for_elements(const Box& box, const std::function<void(std::size_t, std::size_t)>& body) {
  const std::function<void(std::size_t, std::int64_t, std::int64_t)> go =
      [&](std::size_t d, std::int64_t from, std::int64_t to) {
        if (d == box.loops.size()) {
          body(static_cast<std::size_t>(from), static_cast<std::size_t>(to));
          return;
        }
        for (std::int64_t i = 0; i < box.loops[d].count; ++i) {
          go(d + 1, from + i * box.loops[d].source, to + i * box.loops[d].destination);
        }
      };
  go(0, box.source_offset, box.destination_offset);
}

// The contract of transfer(), element by element.
void expect_moves_every_element(const Layout& from, const Layout& to, int ranks) {
  const auto described = [](const Layout& layout) {
    return to_string(layout) + " {" + to_string(layout.dims[0].cuts) + "} {" +
           to_string(layout.dims[1].cuts) + "}";
  };
  SCOPED_TRACE(
      testing::Message() << from.extent().rows << " x " << from.extent().cols << ", "
                         << described(from) << " -> " << described(to));
  const Transfer table = transfer(from, to, ranks);
  ASSERT_EQ(table.ranks(), ranks);

  std::vector<Local> source;
  std::vector<Local> wanted;
  std::vector<Local> got;
  for (int r = 0; r < ranks; ++r) {
    source.push_back(labelled(from, r));
    wanted.push_back(labelled(to, r));
    got.push_back(wanted.back());
    std::fill(got.back().labels.begin(), got.back().labels.end(), kNothing);
    const auto at = static_cast<std::size_t>(r);
    ASSERT_EQ(table.source[at], source[at].extent.elements());
    ASSERT_EQ(table.destination[at], wanted[at].extent.elements());
    ASSERT_EQ(from.extent(r), source[at].extent);
  }

  // C, and with it: each destination element is written once, from the reader itself or else the
  // lowest rank that holds it.  C^T: each copy of an element is added up at that rank.
  std::vector<std::map<std::int64_t, std::int64_t>> added(source.size());
  std::vector<std::int64_t> elements_out(source.size(), 0);
  std::vector<std::int64_t> elements_back(source.size(), 0);
  std::vector<std::set<int>> readers(source.size());
  std::vector<std::set<int>> givers(source.size());
  for (std::size_t b = 0; b < table.boxes.size(); ++b) {
    const Box& block = table.boxes[b];
    ASSERT_GT(block.elements(), 0);
    if (b > 0) {
      const Box& last = table.boxes[b - 1];
      ASSERT_LT(
          std::tuple(last.destination, last.destination_offset),
          std::tuple(block.destination, block.destination_offset));
    }
    Local& give = source.at(static_cast<std::size_t>(block.source));
    Local& take = got.at(static_cast<std::size_t>(block.destination));
    for_elements(block, [&](std::size_t from_place, std::size_t to_place) {
      const std::int64_t label = give.labels.at(from_place);
      std::int64_t& place = take.labels.at(to_place);
      ASSERT_EQ(place, kNothing) << "written twice";
      place = label;
      ++added[static_cast<std::size_t>(block.source)][label];

      int holder = block.destination;
      const auto holds = [&](int rank) {
        const auto& labels = source[static_cast<std::size_t>(rank)].labels;
        return std::find(labels.begin(), labels.end(), label) != labels.end();
      };
      if (!holds(holder)) {
        holder = 0;
        while (!holds(holder)) {
          ++holder;
        }
      }
      ASSERT_EQ(block.source, holder) << "element " << label;
      if (block.source != block.destination) {
        ++elements_out[static_cast<std::size_t>(block.source)];
        ++elements_back[static_cast<std::size_t>(block.destination)];
        readers[static_cast<std::size_t>(block.source)].insert(block.destination);
        givers[static_cast<std::size_t>(block.destination)].insert(block.source);
      }
    });
  }
  std::map<std::int64_t, std::int64_t> copies;  // of each element on all destinations
  std::map<std::int64_t, std::int64_t> summed;  // what C^T adds up at all sources together
  for (std::size_t r = 0; r < source.size(); ++r) {
    ASSERT_EQ(got[r].labels, wanted[r].labels) << "on rank " << r;
    for (const std::int64_t label : wanted[r].labels) {
      ++copies[label];
    }
    for (const auto& [label, times] : added[r]) {
      summed[label] += times;
    }
    EXPECT_EQ(
        table.sent(false)[r],
        (Sent{elements_out[r], static_cast<std::int64_t>(readers[r].size())}));
    EXPECT_EQ(
        table.sent(true)[r], (Sent{elements_back[r], static_cast<std::int64_t>(givers[r].size())}));
  }
  EXPECT_EQ(summed, copies);  // each copy exactly once
  EXPECT_EQ(sent(from, to, ranks, false), table.sent(false));
  EXPECT_EQ(sent(from, to, ranks, true), table.sent(true));
}

// Cuts that partition [0, size): contiguous pieces of random sizes, or tokens of random documents.
Cuts random_partition(std::mt19937& random, std::int64_t size, int ranks) {
  const auto up_to = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n)(random);
  };
  if (up_to(1) == 0) {
    std::vector<std::int64_t> lengths;
    for (std::int64_t rest = size; rest > 0; rest -= lengths.back()) {
      lengths.push_back(up_to(rest));
    }
    return token_cuts(lengths, ranks, up_to(1) == 0);
  }
  std::vector<std::int64_t> ends;
  for (int r = 1; r < ranks; ++r) {
    ends.push_back(up_to(size));
  }
  ends.push_back(size);
  std::sort(ends.begin(), ends.end());
  Cuts cuts(static_cast<std::size_t>(ranks));
  std::int64_t begin = 0;
  for (std::size_t r = 0; r < cuts.size(); ++r) {
    append(cuts[r], {begin, ends[r]});
    begin = ends[r];
  }
  std::shuffle(cuts.begin(), cuts.end(), random);
  return cuts;
}

// Any intervals at all: overlapping between ranks, empty, in any order, but disjoint on a rank.
Cuts random_cuts(std::mt19937& random, std::int64_t size, int ranks) {
  Cuts cuts;
  for (int r = 0; r < ranks; ++r) {
    Piece piece = random_partition(random, size, 4)[0];
    const Piece more = random_partition(random, size, 3)[1];
    for (const Interval interval : more) {
      const bool apart = std::all_of(piece.begin(), piece.end(), [&](Interval other) {
        return interval.end <= other.begin || other.end <= interval.begin;
      });
      if (apart) {
        append(piece, interval);
      }
    }
    std::shuffle(piece.begin(), piece.end(), random);
    cuts.push_back(piece);
  }
  return cuts;
}

// Cuts that cover [0, size), with some indices on several ranks.
Cuts random_cover(std::mt19937& random, std::int64_t size, int ranks) {
  Cuts cuts = random_partition(random, size, ranks);
  for (Piece& piece : cuts) {
    if (std::bernoulli_distribution(0.3)(random)) {
      piece = whole_cuts(size, 1)[0];
    }
  }
  return cuts;
}

TEST(Transfer, MovesEveryElementBetweenRandomCuts) {
  std::mt19937 random(7);
  const auto pick = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  for (int trial = 0; trial < 1500; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    const int ranks = 1 + pick(4);
    const Extent whole{pick(9), pick(7)};
    const auto size = [&](int dim) { return dim == 0 ? whole.rows : whole.cols; };
    Layout from = matrix("rows", whole);
    if (pick(5) > 0) {
      const int dim = pick(1);
      from = cut_along(
          dim,
          whole,
          pick(1) == 0 ? random_partition(random, size(dim), ranks)
                       : random_cover(random, size(dim), ranks));
    }
    Layout to = matrix("rows", whole);
    if (pick(4) > 0) {
      const int dim = pick(1);
      to = cut_along(
          dim,
          whole,
          pick(1) == 0 ? random_partition(random, size(dim), ranks)
                       : random_cuts(random, size(dim), ranks));
    }
    expect_moves_every_element(from, to, ranks);
    if (HasFatalFailure()) {
      return;
    }
  }
}

// Rank i u + j has piece i of the rows and piece j of the columns.
Layout random_grid(std::mt19937& random, Extent whole, int rows, int u) {
  const Cuts of_row = random_partition(random, whole.rows, rows);
  const Cuts of_member = random_partition(random, whole.cols, u);
  Cuts row_cuts;
  Cuts col_cuts;
  for (int r = 0; r < rows * u; ++r) {
    row_cuts.push_back(of_row[static_cast<std::size_t>(r / u)]);
    col_cuts.push_back(of_member[static_cast<std::size_t>(r % u)]);
  }
  return matrix("rows", whole, row_cuts, col_cuts);
}

TEST(Transfer, MovesEveryElementToAndFromPiecesCutBothWays) {
  std::mt19937 random(11);
  const auto pick = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  for (int trial = 0; trial < 1000; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    const int rows = 1 + pick(2);
    const int u = 1 + pick(2);
    const int ranks = rows * u;
    const Extent whole{pick(9), pick(7)};
    const Layout by_rows = matrix("rows", whole, random_partition(random, whole.rows, ranks));
    const Layout any = matrix(
        "rows",
        whole,
        random_cuts(random, whole.rows, ranks),
        random_cuts(random, whole.cols, ranks));
    const Layout grid = random_grid(random, whole, rows, u);
    expect_moves_every_element(by_rows, any, ranks);
    expect_moves_every_element(
        matrix("rows", whole, {}, random_cover(random, whole.cols, ranks)), any, ranks);
    expect_moves_every_element(grid, by_rows, ranks);
    expect_moves_every_element(grid, any, ranks);
    expect_moves_every_element(grid, matrix("rows", whole), ranks);
    if (HasFatalFailure()) {
      return;
    }
  }
}

// The shapes that the strategies use: zigzag tokens -> heads and back, tokens -> all, weights ->
// all.
TEST(Transfer, MovesEveryElementOfTheStrategies) {
  const std::vector<std::vector<std::int64_t>> batches = {
      {}, {0}, {1}, {2}, {3}, {13}, {5, 0, 1, 9}, {1, 1, 1, 1, 1, 1, 1}};
  for (const auto& lengths : batches) {
    std::int64_t tokens = 0;
    for (const std::int64_t n : lengths) {
      tokens += n;
    }
    for (int p = 1; p <= 5; ++p) {
      for (const bool causal : {false, true}) {
        const Extent whole{tokens, 8};
        const Layout by_tokens = matrix("rows", whole, token_cuts(lengths, p, causal));
        // 3 query heads and 1 key/value head of width 2: heads that p does not divide, keys on many
        Cuts heads;
        for (std::int64_t r = 0; r < p; ++r) {
          Piece piece;
          append(piece, {r * 3 / p * 2, (r + 1) * 3 / p * 2});
          if (!piece.empty()) {
            append(piece, {6, 8});
          }
          heads.push_back(piece);
        }
        const Layout by_heads = matrix("rows", whole, {}, heads);
        expect_moves_every_element(by_tokens, by_heads, p);
        expect_moves_every_element(
            matrix("rows", {tokens, 6}, {}, scaled(even_cuts(3, p), 2)),
            matrix("rows", {tokens, 6}, by_tokens.dims[0].cuts),
            p);
        expect_moves_every_element(by_tokens, matrix("rows", whole), p);
        expect_moves_every_element(matrix("rows", whole), by_tokens, p);
      }
    }
  }
}

TEST(Transfer, OnOneRankLeavesEverythingWhereItIs) {
  const Extent whole{6, 4};
  const std::vector<Layout> all = {
      matrix("rows", whole, even_cuts(6, 1)),
      matrix("rows", whole, {}, even_cuts(4, 1)),
      matrix("rows", whole)};
  for (const Layout& from : all) {
    for (const Layout& to : all) {
      const Transfer table = transfer(from, to, 1);
      Box stays;
      stays.loops.push_back({24, 1, 1});
      EXPECT_EQ(table.boxes, std::vector<Box>{stays}) << to_string(from) << " -> " << to_string(to);
      EXPECT_EQ(table.sent(false)[0], Sent{});
      EXPECT_EQ(table.sent(true)[0], Sent{});
    }
  }
  // but not where the rank stores its rows in another order
  EXPECT_EQ(
      transfer(matrix("rows", whole, {{{3, 6}, {0, 3}}}), matrix("rows", whole, even_cuts(6, 1)), 1)
          .boxes.size(),
      2U);
}

// The volumes of the table in strategy_costs.md: f = (p-1)/p of the elements a rank gives or takes.
TEST(Transfer, SendsTheClosedForms) {
  for (const int p : {1, 2, 4, 8}) {
    const Extent whole{16, 24};
    const Layout rows = matrix("rows", whole, even_cuts(16, p));
    const Layout cols = matrix("rows", whole, {}, even_cuts(24, p));
    for (int r = 0; r < p; ++r) {
      const std::int64_t mine = whole.elements() / p;
      const Transfer gather = transfer(rows, matrix("rows", whole), p);
      const auto at = static_cast<std::size_t>(r);
      EXPECT_EQ(gather.sent(false)[at], (Sent{mine * (p - 1), p - 1}));
      EXPECT_EQ(gather.sent(true)[at], (Sent{mine * (p - 1), p - 1}));
      const Transfer exchange = transfer(rows, cols, p);
      EXPECT_EQ(exchange.sent(false)[at], (Sent{mine / p * (p - 1), p - 1}));
      EXPECT_EQ(exchange.sent(true)[at], (Sent{mine / p * (p - 1), p - 1}));
    }
  }
}

TEST(Transfer, RefusesWhatNoRankHolds) {
  const Layout first_half = matrix("rows", {5, 2}, {{{0, 2}}, {{2, 3}}});
  EXPECT_THROW(transfer(first_half, matrix("rows", {5, 2}), 2), std::invalid_argument);
  EXPECT_THROW(
      transfer(first_half, matrix("rows", {5, 2}, {}, even_cuts(2, 2)), 2), std::invalid_argument);
  EXPECT_NO_THROW(transfer(first_half, matrix("rows", {5, 2}, {{{1, 3}}, {}}), 2));
  const Cuts all = whole_cuts(2, 2);
  const Layout both_ways = matrix("rows", {5, 2}, {{{0, 2}}, {{2, 3}}}, all);
  EXPECT_THROW(transfer(both_ways, matrix("rows", {5, 2}), 2), std::invalid_argument);
  // what two ranks hold alike is taken from either; where they overlap both ways, the rest of one
  // is no box
  EXPECT_NO_THROW(
      transfer(matrix("rows", {2, 2}, all, all), matrix("rows", {2, 2}, even_cuts(2, 2)), 2));
  const Layout crossing = matrix("rows", {3, 3}, {{{0, 2}}, {{1, 3}}}, {{{0, 2}}, {{1, 3}}});
  const Layout wanted = matrix("rows", {3, 3}, {{{0, 2}}, {{0, 3}}}, {{{0, 2}}, {{0, 3}}});
  EXPECT_THROW(transfer(crossing, wanted, 2), std::invalid_argument);
}

TEST(Transfer, RefusesSumsAndOtherDims) {
  const Layout copies = matrix("rows", {4, 4});
  EXPECT_THROW(transfer(copies.sum(), copies, 2), std::invalid_argument);
  EXPECT_THROW(transfer(copies, copies.sum(), 2), std::invalid_argument);
  EXPECT_THROW(transfer(copies, matrix("tokens", {4, 4}), 2), std::invalid_argument);
  EXPECT_THROW(transfer(copies, matrix("rows", {4, 5}), 2), std::invalid_argument);
}

}  // namespace
}  // namespace paradyse
