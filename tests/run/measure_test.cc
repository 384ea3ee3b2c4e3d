// What measurements are made of: how they sum up, what they run, and that ranks tell one another.
// No time is held against another.
#include "src/run/measure/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/run/session.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/data/synthetic_items.h"
#include "src/run/device/cores.h"
#include "src/run/device/device.h"
#include "src/run/measure/bench_comm.h"
#include "src/run/measure/device_speeds.h"
#include "src/run/measure/machine.h"
#include "src/run/measure/measured_cluster.h"
#include "src/run/measure/micro_batch_seconds.h"
#include "src/run/measure/played_layer.h"
#include "src/run/measure/trials.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/models.h"

namespace paradyse {
namespace {

using testing::ElementsAre;

MATCHER(IsASpeed, "") { return std::isfinite(arg) && arg > 0; }

TEST(Spread, IsOfAllRepeats) {
  EXPECT_EQ(spread_of({3, 1, 2}), (Spread{.median = 2, .least = 1, .most = 3}));
  EXPECT_EQ(spread_of({4}), (Spread{.median = 4, .least = 4, .most = 4}));
  EXPECT_EQ(spread_of({4, 1, 3, 2}), (Spread{.median = 2.5, .least = 1, .most = 4}));
}

// Two machines of which one has two processes on a core each, and one shares all its cores.
TEST(Cores, AreCountedOnceOverAllMachines) {
  using Own = std::vector<std::int64_t>;
  EXPECT_EQ(cores_of_all(std::vector<Own>{{7, 1, 0}, {7, 2, 0}}), 2);
  EXPECT_EQ(cores_of_all(std::vector<Own>{{7, 3, 0}, {7, 3, 0}}), 2);
  EXPECT_EQ(cores_of_all(std::vector<Own>{{7, 3, 1}, {9, 3, 1}, {9, 3, 1}}), 6);
  EXPECT_EQ(cores_of_all(std::vector<Own>{{7, -1, 0}}), 64);
  EXPECT_EQ(cores_of_all(std::vector<Own>{own_cores(), own_cores()}), usable_cores());
}

TEST(SyntheticItems, AreAlwaysTheSameAndWithinTheVocabulary) {
  Model model = text_model(test::llama({.vocab = 7}));
  const auto tokens_of = [&] {
    std::vector<Tokens> tokens;
    for (const OwnedItem& one : synthetic_items(model, {.lengths = {500, 500, 0, 2}})) {
      EXPECT_FALSE(std::get<Document>(one).labels);
      tokens.push_back(std::get<Document>(one).tokens);
    }
    return tokens;
  };
  const std::vector<Tokens> documents = tokens_of();
  ASSERT_EQ(documents.size(), 4U);
  std::set<std::int32_t> ids;
  for (const Tokens& document : documents) {
    ids.insert(document.begin(), document.end());
  }
  EXPECT_THAT(ids, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(tokens_of(), documents);
  EXPECT_EQ(documents[0].size(), 500U);
  EXPECT_NE(documents[0], documents[1]);
  EXPECT_EQ(documents[2].size(), 0U);
  EXPECT_EQ(documents[3].size(), 2U);

  model.masked_lm = true;
  const std::vector<OwnedItem> masked = synthetic_items(model, {.lengths = {5}});
  const Item item = items_of(masked).front();
  EXPECT_TRUE(std::ranges::equal(item.labels, item.tokens));
  EXPECT_EQ(item.tokens.size(), 5U);
}

// Each of its own size, whatever comes before it.
TEST(SyntheticItems, AreSamplesOfTheSizesGiven) {
  const Model model = test::small_stdit(1);
  const DimSizes small = {{"frames", 2}, {"patches", 3}};
  const DimSizes large = {{"frames", 4}, {"patches", 3}};
  const std::vector<DimSizes> dims = {small, small, large, small};
  const std::vector<OwnedItem> samples = synthetic_items(model, {.lengths = {}, .dims = dims});
  const std::vector<Item> items = items_of(samples);
  ASSERT_EQ(items.size(), dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    EXPECT_NO_THROW(check_sample(items[i], model, dims[i])) << i;
  }
  EXPECT_FALSE(at::equal(
      items[0].inputs->begin()->second.tensor(), items[1].inputs->begin()->second.tensor()));
}

TEST(RankNumbers, SayWhatRanksWaited) {
  const RankNumbers numbers{
      .peak_bytes = 0,
      .rank_seconds = {{1, 2, 6}, {4, 4, 4}},
      .domain_seconds = {{5, 3, 3}, {0, 2, 1}}};
  EXPECT_THAT(numbers.mean_seconds(), ElementsAre(3, 4));
  EXPECT_THAT(numbers.idle_seconds(), ElementsAre(ElementsAre(2, 0, 0), ElementsAre(0, 2, 1)));
}

// On every rank the same: in its own place what each rank said, to the nanosecond, and the fullest.
TEST(RankNumbers, AreToldToAllRanks) {
  const Model model = text_model(test::llama({}));
  for (const int ranks : {1, 2, 3, 4}) {
    std::vector<std::int64_t> peaks(idx(ranks));
    std::vector<RankNumbers> found(idx(ranks));
    run_local_ranks(ranks, {}, [&](Communicators& communicators) {
      RankSession session(communicators, model);
      const int me = session.rank();
      const at::Tensor unlike = at::zeros({1000 * (me + 1)});
      BatchResult mine;
      mine.micro_batch_seconds = {1.5 + me, 2.25 * me};
      mine.domain_seconds = {0.5 * me, 0.125};
      mine.part_seconds = {{0.25 * me, 1}, {2, 0.5 + me}};
      peaks[idx(me)] = session.memory().peak_bytes();
      found[idx(me)] = numbers_of_ranks(mine, session);
    });
    for (const RankNumbers& numbers : found) {
      EXPECT_GE(numbers.peak_bytes, std::ranges::max(peaks));
      EXPECT_EQ(numbers.peak_bytes, found[0].peak_bytes);
      ASSERT_EQ(numbers.rank_seconds.size(), 2U);
      ASSERT_EQ(numbers.domain_seconds.size(), 2U);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_DOUBLE_EQ(numbers.rank_seconds[0].at(idx(rank)), 1.5 + rank);
        EXPECT_DOUBLE_EQ(numbers.rank_seconds[1].at(idx(rank)), 2.25 * rank);
        EXPECT_DOUBLE_EQ(numbers.domain_seconds[0].at(idx(rank)), 0.5 * rank);
        EXPECT_DOUBLE_EQ(numbers.domain_seconds[1].at(idx(rank)), 0.125);
        EXPECT_THAT(numbers.part_seconds[0].at(idx(rank)), ElementsAre(0.25 * rank, 1));
        EXPECT_THAT(numbers.part_seconds[1].at(idx(rank)), ElementsAre(2, 0.5 + rank));
      }
    }
  }
}

// Every collective at every size, what a rank receives counted; a group of the ranks as well.
TEST(BenchComm, TimesEveryCollective) {
  struct Case {
    int ranks;
    int group;
  };
  const std::set<std::string> pairs = {"shift", "broadcast"};  // a message, even to oneself
  for (const Case& c : {Case{1, 0}, Case{2, 0}, Case{3, 0}, Case{4, 3}}) {
    const auto rows =
        bench_comm({.ranks = c.ranks, .group = c.group, .bytes = {1, 4096}, .seconds = 0.002});
    const int p = c.group > 0 ? c.group : c.ranks;
    std::map<std::string, std::vector<std::int64_t>> sizes;
    for (const BenchCommRow& row : rows) {
      SCOPED_TRACE(row.collective + " of " + std::to_string(p));
      sizes[row.collective].push_back(row.bytes);
      EXPECT_THAT(row.seconds, IsASpeed());
      EXPECT_LE(row.least_seconds, row.seconds);
      EXPECT_LE(row.seconds, row.most_seconds);
      const double received = row.bytes_per_s * row.seconds;
      const int messages = pairs.contains(row.collective)   ? 1
                           : row.collective == "all_reduce" ? 2 * (p - 1)
                                                            : p - 1;
      EXPECT_NEAR(received, static_cast<double>(messages * row.bytes), 1e-6 * received);
      EXPECT_EQ(row.memcpy_seconds > 0, messages * row.bytes > 0);
    }
    for (const char* const name :
         {"all_gather", "reduce_scatter", "all_to_all", "all_reduce", "shift", "broadcast"}) {
      const bool among_others = pairs.contains(name) || p > 1;  // else nothing is sent
      EXPECT_THAT(sizes[name], among_others ? ElementsAre(4, 4096) : ElementsAre(0, 0)) << name;
    }
    EXPECT_THAT(sizes["barrier"], ElementsAre(0));  // once, whatever the sizes
    EXPECT_EQ(sizes.size(), 7U);
  }
}

TEST(Trials, FindThisMachineRight) {
  const ProductTrial product = try_product();
  EXPECT_TRUE(product.right);
  EXPECT_THAT(product.flops_per_second, IsASpeed());
  const ExchangeTrial exchange = try_exchange();
  EXPECT_EQ(exchange.failure, "");
  EXPECT_THAT(exchange.barrier_seconds, IsASpeed());
  EXPECT_THAT(exchange.bytes_per_second, IsASpeed());
}

TEST(DeviceSpeeds, AreMeasuredInAnyType) {
  const DeviceScope computing(c10::kCPU);
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
    EXPECT_THAT(large_product_flops_per_second(dtype, c10::kCPU, 64), IsASpeed());
  }
  EXPECT_THAT(copied_bytes_per_second(c10::kCPU, 1 << 16), IsASpeed());
  EXPECT_THAT(kernel_seconds(c10::kCPU), IsASpeed());
}

TEST(PlayedLayer, CountsWhatTheMathematicsSay) {
  TextShape model;
  model.layers = 3;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.ffn = 96;
  model.vocab = 100;
  constexpr double T = 48;
  constexpr double kWeights = 64 * (4 + 2 * 2) * 16 + 4 * 16 * 64 + 3 * 64 * 96 + 100 * 64;
  constexpr double kPairs = T * (T + 1) / 2;
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
    for (const bool backward : {false, true}) {
      const PlayedLayer layer = play_layer(model, dtype, 48, c10::kCPU, backward);
      EXPECT_EQ(layer.matmul_flops, (backward ? 6 : 2) * T * kWeights);
      EXPECT_EQ(layer.attention_flops, (backward ? 14 : 4) * kPairs * 4 * 16);
      EXPECT_GT(layer.touched_bytes, 0);
      EXPECT_GE(layer.products.median, 0);
    }
  }
}

TEST(Machine, IsMeasuredInTheRunsType) {
  TextShape model;
  model.hidden = 64;
  model.head_dim = 16;
  for (const Dtype dtype : {Dtype::float32, Dtype::float64, Dtype::bfloat16, Dtype::float16}) {
    const MachineNumbers machine = measure_machine(model, dtype, 2, *local_backend());
    for (const double number :
         {machine.matmul_flops_per_second,
          machine.attention_flops_per_second,
          machine.touched_bytes_per_second,
          machine.call_seconds,
          machine.sent_bytes_per_second}) {
      EXPECT_GT(number, 0) << to_string(dtype);
      EXPECT_TRUE(std::isfinite(number)) << to_string(dtype);
    }
  }
}

// One node, whatever the ranks; a link only where there is another rank.
TEST(MeasuredCluster, IsOneNodeOfTheRanks) {
  const Model model = text_model(test::llama({}));
  for (const int ranks : {1, 3}) {
    const Cluster cluster = measured_cluster(model, ranks, local_backend());
    EXPECT_EQ(cluster.ranks(), ranks);
    EXPECT_EQ(cluster.ranks_per_node, ranks);
    EXPECT_GT(cluster.device(0).memory_bytes, 0);
    if (ranks > 1) {
      EXPECT_THAT(cluster.inside_node.bytes_per_second, IsASpeed());
      EXPECT_GE(cluster.inside_node.latency_seconds, 0);
    }
  }
}

}  // namespace
}  // namespace paradyse
