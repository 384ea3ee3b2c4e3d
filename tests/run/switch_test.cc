// Switching strategies from batch to batch: weights stay where they are, and a plan sends what it
// sends whatever ran before it.
#include <map>
#include <random>

#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/session.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/support/equality.h"
#include "tests/support/models.h"
#include "tests/support/plans.h"

namespace paradyse {
namespace {

TEST(Switch, MovesNoWeightsAndSendsNothingMore) {
  const TextShape model = test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31});
  const std::vector<std::int64_t> lengths = {5, 1, 12, 3, 8};
  const auto documents = test::random_documents(lengths, 31, 5);
  const std::vector<Item> items = items_of(documents);
  const test::Weights weights = test::random_weights(model, 5);
  std::vector<Plan> plans;
  for (const auto& [attention, mlp] : test::pure_strategies()) {
    const LayerChoice layer = text_layer(attention, mlp);
    plans.push_back(test::uniform_plan(model, lengths, 3, layer));
  }
  run_local_ranks(3, {}, [&](Communicators& communicators) {
    RankSession session(communicators, text_model(model));
    Parameters& parameters = session.parameters();
    test::fill(parameters, weights);
    const auto places = [&] {
      std::vector<const void*> all;
      for (const PartParameters& part : parameters.parts()) {
        all.push_back(part.stack.defined() ? part.stack.const_data_ptr() : nullptr);
        for (const at::Tensor& vector : part.vectors) {
          all.push_back(vector.const_data_ptr());
        }
      }
      return all;
    };
    const auto before = places();
    const std::int64_t held = session.memory().live_bytes();
    std::map<std::size_t, Counters> sent;  // by a plan, after whatever came before it
    std::mt19937_64 random(7);             // all ranks alike
    for (int round = 0; round < 4; ++round) {
      for (std::size_t i = 0; i < plans.size(); ++i) {
        const std::size_t which = random() % plans.size();
        parameters.zero_gradients();
        const Counters from = communicators.counters();
        session.play(plans[which], {.items = items}, /*backward=*/true);
        communicators.world().barrier({.op = "all sent", .part = ""});
        const Counters to = communicators.counters();
        const Counters more{
            .bytes_sent = to.bytes_sent - from.bytes_sent, .messages = to.messages - from.messages};
        const auto [known, first] = sent.try_emplace(which, more);
        EXPECT_EQ(more.bytes_sent, known->second.bytes_sent)
            << plans[which].programs.begin()->first;
        EXPECT_EQ(more.messages, known->second.messages);
        EXPECT_EQ(places(), before);
        EXPECT_EQ(session.memory().live_bytes(), held);
      }
    }
    EXPECT_GT(sent.size(), plans.size() / 2);
  });
}

}  // namespace
}  // namespace paradyse
