// What a redistribution knows, when it is known, and what people call it.
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/transfer.h"
#include "paradyse/plan/writer.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::HasSubstr;

const Layout kWhole = matrix("tokens", {8, 6});
const Layout kByTokens = kWhole.cut("tokens", even_cuts(8, 2));
const Layout kByColumns = kWhole.cut("columns", even_cuts(6, 2));

TEST(Redistribution, SendsWhatItsTableSends) {
  for (const Layout& from : {kWhole, kByTokens, kByColumns}) {
    for (const Layout& to : {kWhole, kByTokens, kByColumns}) {
      const Redistribution copy(from, to, 2);
      for (const bool transposed : {false, true}) {
        EXPECT_EQ(copy.sent(transposed), transfer(from, to, 2).sent(transposed));
        EXPECT_EQ(copy.sent(transposed), copy.table().sent(transposed));
      }
    }
  }
}

// Copies of it share one table, which the first that asks makes, whatever thread that is.
TEST(Redistribution, MakesOneTableForAllCopies) {
  const Redistribution first(kByTokens, kByColumns, 2);
  std::vector<const Transfer*> seen(8);
  std::vector<std::thread> threads;
  for (const Transfer*& mine : seen) {
    threads.emplace_back([&mine, copy = first] { mine = &copy.table(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Transfer* table : seen) {
    EXPECT_EQ(table, &first.table());
  }
  EXPECT_EQ(first.table().boxes, transfer(kByTokens, kByColumns, 2).boxes);
}

TEST(Redistribution, IsTheSameWhereTheSameElementsMove) {
  const Redistribution copy(kByTokens, kWhole, 2);
  EXPECT_TRUE(copy.same_as(Redistribution(kByTokens, kWhole, 2)));
  EXPECT_TRUE(copy.same_as(Redistribution(kByTokens, kWhole.cut("tokens", whole_cuts(8, 2)), 2)));
  EXPECT_FALSE(copy.same_as(Redistribution(kByTokens, kByColumns, 2)));
  EXPECT_FALSE(copy.same_as(Redistribution(kWhole.cut("tokens", even_cuts(8, 4)), kWhole, 4)));
}

TEST(Redistribution, RefusesSumsAndOtherDims) {
  const auto why_not = [](const Layout& from, const Layout& to) -> std::string {
    return test::refusal([&] { const Redistribution copy(from, to, 2); });
  };
  EXPECT_THAT(why_not(kWhole.sum(), kByTokens), HasSubstr("from P to S(tokens)"));
  EXPECT_THAT(why_not(kByTokens, kWhole.sum()), HasSubstr("from S(tokens) to P"));
  EXPECT_THAT(why_not(kWhole, matrix("rows", {8, 6})), HasSubstr("no dim 'rows'"));
  EXPECT_THAT(why_not(kWhole, matrix("tokens", {8, 5})), HasSubstr("dim columns has another size"));
  EXPECT_EQ(why_not(kByColumns, kByTokens), "");
}

TEST(Redistribution, IsCalledByItsCollective) {
  EXPECT_EQ(collective(kByTokens, kWhole), "all_gather");
  EXPECT_EQ(collective(kWhole, kByTokens), "slice");
  EXPECT_EQ(collective(kByTokens, kByColumns), "all_to_all");
  EXPECT_EQ(collective(kWhole.sum(), kByTokens), "reduce_scatter");
  const Layout frames{.dims = {{"frames", 4}, {"tokens", 6}, {"columns", 3}}};
  EXPECT_EQ(collective(frames, frames.along("frames")), "permute");
}

// lie_alike(): what ranks hold decides, not how that is said.
TEST(Layouts, LieAlikeWhereRanksHoldTheSame) {
  EXPECT_TRUE(lie_alike(kWhole, kWhole.cut("tokens", whole_cuts(8, 2)), 2));
  EXPECT_FALSE(lie_alike(kWhole, kByTokens, 2));
  EXPECT_FALSE(lie_alike(kWhole, kWhole.sum(), 2));
  EXPECT_TRUE(lie_alike(kWhole, kWhole.sum(), 1));
  EXPECT_TRUE(lie_alike(kWhole.cut("tokens", even_cuts(8, 1)), kWhole, 1));
  EXPECT_FALSE(lie_alike(kWhole, matrix("tokens", {8, 5}), 1));
  // an order of storage that only one rank sees is one, too
  const Layout frames{.dims = {{"frames", 4}, {"tokens", 6}, {"columns", 3}}};
  EXPECT_FALSE(lie_alike(frames, frames.along("frames"), 1));
}

// A writer adds no op for what lies alike, and refuses to leave copies of a sum.
TEST(Writer, RedistributesWhatLiesOtherwise) {
  TextShape model;
  model.layers = 1;
  model.hidden = 12;
  model.heads = 4;
  model.kv_heads = 4;
  model.head_dim = 3;
  model.ffn = 6;
  model.vocab = 16;
  Writer w(task_of(text_model(model), "mlp", packed({6, 3}, 3, true), 3));
  const ValueId x = w.input();
  EXPECT_EQ(w.redistribute(x, w.layout(x), "same"), x);
  const ValueId all = w.redistribute(x, w.layout(x).whole(), "all");
  EXPECT_NE(all, x);
  EXPECT_EQ(w.redistribute(all, w.layout(x).whole(), "again"), all);
  const ValueId stack = w.gather();
  const WeightRows up = w.weights().rows("up", {0, 4});
  const ValueId sum = w.linear(
      all, {stack}, w.terms(stack, up), "sum", w.layout(all).with_columns(up.rows()).sum());
  EXPECT_THROW(w.redistribute(sum, w.layout(sum).whole(), "no"), std::invalid_argument);
  const Layout by_tokens = w.own_rows(4);
  const Program program = w.finish(w.redistribute(sum, by_tokens, "mine"));
  EXPECT_FALSE(program.ops[0].transposed);
  EXPECT_TRUE(program.ops.back().transposed);
  EXPECT_EQ(program.ops.back().copies[0].from(), by_tokens);
  EXPECT_EQ(program.ops.back().copies[0].to(), by_tokens.whole());
}

}  // namespace
}  // namespace paradyse
