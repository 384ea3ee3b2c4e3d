// The stack of a part as a run of elements, and the terms that builders take out of it.
#include "paradyse/plan/detail/part_weights.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/writer.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::HasSubstr;

// Nothing divides anything.
const TextShape kModel = {
    .layers = 1, .hidden = 10, .heads = 6, .kv_heads = 3, .head_dim = 2, .ffn = 7, .vocab = 11};

// A rank's elements are those of its rows, matrix after matrix; together they are all.
TEST(PartWeights, AreOneRunOfElements) {
  for (const int domain : {1, 2, 3, 4}) {
    const PartWeights weights = text_model(kModel).part("attention")->weights(domain);
    const Layout stack = weights.stack();
    EXPECT_EQ(stack.elements(), (12 + 6 + 6 + 12) * 10);
    EXPECT_TRUE(is_partition(stack, domain));
    for (int r = 0; r < domain; ++r) {
      Piece rows;
      for (const char* name : {"q", "k", "v", "o"}) {
        for (const Interval run : weights.own(name, name, r).elements) {
          append(rows, run);
        }
      }
      EXPECT_EQ(stack.columns().piece(r), rows);
      for (std::size_t m = 0; m < weights.matrices.size(); ++m) {
        EXPECT_EQ(
            weights.elements_of(m, r).size(),
            size(weights.matrices[m].cuts[static_cast<std::size_t>(r)]) * 10);
      }
      EXPECT_EQ(weights.elements_of(3, r).end, stack.elements(r));
    }
  }
}

TEST(PartWeights, NameTheirMatrices) {
  const PartWeights weights = text_model(kModel).part("attention")->weights(2);
  EXPECT_EQ(weights.matrix("k").rows, 6);
  EXPECT_EQ(weights.rows("k").elements, (Piece{{120, 180}}));
  EXPECT_EQ(weights.rows("v", {1, 3}).elements, (Piece{{190, 210}}));
  EXPECT_EQ(weights.between("q", "v").elements, (Piece{{0, 240}}));
  EXPECT_EQ(weights.between("k", "v", {1, 3}).elements, (Piece{{130, 150}, {190, 210}}));
  EXPECT_EQ(weights.between("k", "v", {1, 3}).rows(), 4);
  EXPECT_THAT(
      test::refusal([&] { static_cast<void>(weights.rows("gate")); }),
      HasSubstr("attention: no matrix 'gate'; there are q, k, v, o"));
}

// A term is where its rows lie in what the rank has, whatever else it has; rows that are not there,
// or not one after the other, are no term.
TEST(Writer, FindsTheRowsOfATerm) {
  Writer w(task_of(text_model(kModel), "attention", packed({5}, 2, true), 2));
  const PartWeights& weights = w.weights();
  const ValueId held = w.hold();
  const ValueId some = w.gather({weights.rows("o", {4, 8}), weights.between("k", "v", {2, 4})});
  const auto at = [&](ValueId value, const WeightRows& rows, int rank) {
    return w.term(value, rows, rank).first;
  };
  // rank 1 holds 6 rows of q, 3 of k, 3 of v, 6 of o
  EXPECT_EQ(at(held, weights.own("o", "o", 1), 1), (6 + 3 + 3) * 10);
  EXPECT_EQ(w.term(held, weights.own("q", "v", 1), 1).rows, 12);
  EXPECT_EQ(at(some, weights.rows("o", {5, 6}), 0), 10);
  EXPECT_EQ(at(some, weights.between("k", "v", {2, 4}), 1), 40);
  EXPECT_EQ(at(some, weights.rows("v", {3, 4}), 1), 70);
  EXPECT_EQ(w.terms(some, weights.rows("o", {4, 8})).size(), 2U);

  EXPECT_THROW(at(held, weights.rows("q"), 1), std::logic_error);
  EXPECT_THROW(at(some, weights.rows("q", {0, 1}), 0), std::logic_error);
  EXPECT_THROW(at(some, weights.between("k", "v", {3, 4}), 0), std::logic_error);
  EXPECT_EQ(w.term(some, weights.rows("q", {3, 3}), 0).elements(), 0);
}

}  // namespace
}  // namespace paradyse
