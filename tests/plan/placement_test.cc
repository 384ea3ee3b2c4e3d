// The redistribution table of docs/strategies.md, row by row, and what it refuses.
#include "paradyse/plan/placement.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paradyse {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using enum Collective;

const Placement by_rows = shard(0, even_cuts(8, 2));
const Placement by_cols = shard(1, even_cuts(8, 2));

const std::vector<Placement>& all_placements() {
  static const std::vector<Placement> all = {
      by_rows, shard(0, {{{0, 6}}, {{6, 8}}}), by_cols, replicate(), invariant(), partial()};
  return all;
}

struct Row {
  Placement from;
  Placement to;
  Redistribution row;
};

const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {by_rows, replicate(), {all_gather, reduce_scatter}},
      {by_rows, invariant(), {all_gather, slice}},
      {replicate(), by_rows, {slice, pad}},
      {invariant(), by_rows, {slice, all_gather}},
      {partial(), by_rows, {reduce_scatter, all_gather}},
      {partial(), replicate(), {all_reduce, all_reduce}},
      {partial(), invariant(), {all_reduce, none}},
      {invariant(), replicate(), {none, all_reduce}},
      {by_rows, by_cols, {all_to_all, all_to_all}},
      {by_rows, all_placements()[1], {all_to_all, all_to_all}},  // other cuts of the same dim
  };
  return rows;
}

TEST(Redistribution, IsTheTable) {
  for (const auto& [from, to, row] : table()) {
    EXPECT_EQ(redistribution(from, to), row) << to_string(from) << " -> " << to_string(to);
  }
}

TEST(Redistribution, OfAPlacementToItselfIsNothing) {
  for (const Placement& placement : all_placements()) {
    EXPECT_EQ(redistribution(placement, placement), (Redistribution{none, none}))
        << to_string(placement);
  }
}

bool in_table(const Placement& from, const Placement& to) {
  if (from == to || (from.kind == Placement::Kind::shard && to.kind == Placement::Kind::shard)) {
    return true;
  }
  for (const Row& row : table()) {
    if (row.from.kind == from.kind && row.to.kind == to.kind) {
      return true;
    }
  }
  return false;
}

// All other pairs are refused by an error that names both.
TEST(Redistribution, RefusesWhatIsNotInTheTable) {
  int refused = 0;
  for (const Placement& from : all_placements()) {
    for (const Placement& to : all_placements()) {
      if (in_table(from, to)) {
        EXPECT_NO_THROW(redistribution(from, to)) << to_string(from) << " -> " << to_string(to);
        continue;
      }
      ++refused;
      try {
        redistribution(from, to);
        ADD_FAILURE() << to_string(from) << " -> " << to_string(to) << " was accepted";
      } catch (const std::invalid_argument& error) {
        EXPECT_THAT(
            error.what(),
            AllOf(HasSubstr(to_string(from) + " into " + to_string(to)), HasSubstr("docs/")));
      }
    }
  }
  EXPECT_EQ(refused, 3 + 3);  // S -> P three times; R -> I, R -> P, I -> P
}

// The backward of from -> to is a redistribution of gradients: gradient(to) -> gradient(from).
// Where the table has that pair, it names the same collective; slices and zero-pads are local.
TEST(Redistribution, BackwardIsTheForwardOfTheGradients) {
  for (const Placement& from : all_placements()) {
    for (const Placement& to : all_placements()) {
      if (!in_table(from, to) || !in_table(gradient(to), gradient(from))) {
        continue;
      }
      EXPECT_EQ(
          redistribution(gradient(to), gradient(from)).forward, redistribution(from, to).backward)
          << to_string(from) << " -> " << to_string(to);
    }
  }
}

TEST(Gradient, OfTheGradientIsThePlacement) {
  for (const Placement& placement : all_placements()) {
    EXPECT_EQ(gradient(gradient(placement)), placement) << to_string(placement);
  }
  EXPECT_EQ(gradient(replicate()), partial());
  EXPECT_EQ(gradient(invariant()), invariant());
  EXPECT_EQ(gradient(by_rows), by_rows);
}

TEST(Placement, IsPrintedAsInLogs) {
  EXPECT_EQ(to_string(by_rows), "S(0)");
  EXPECT_EQ(to_string(by_cols), "S(1)");
  EXPECT_EQ(to_string(replicate()), "R");
  EXPECT_EQ(to_string(invariant()), "I");
  EXPECT_EQ(to_string(partial()), "P");
  EXPECT_EQ(to_string(reduce_scatter), "reduce_scatter");
}

}  // namespace
}  // namespace paradyse
