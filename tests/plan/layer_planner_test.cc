// The layer planner against enumeration of every count.
#include "src/plan/search/layers/layer_planner.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace paradyse {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::int64_t peak_of(const std::vector<LayerCost>& ways, const std::vector<std::int64_t>& counts) {
  std::int64_t saved = 0;
  std::int64_t transient = 0;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    saved += counts[i] * ways[i].saved_bytes;
    transient = std::max(transient, counts[i] > 0 ? ways[i].transient_bytes : 0);
  }
  return saved + transient;
}

double seconds_of(const std::vector<LayerCost>& ways, const std::vector<std::int64_t>& counts) {
  double seconds = 0;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    seconds += static_cast<double>(counts[i]) * ways[i].seconds;
  }
  return seconds;
}

// Calls body(counts) for all that add up to `layers`.
void for_all_counts(
    std::size_t ways,
    std::int64_t layers,
    const std::function<void(const std::vector<std::int64_t>&)>& body) {
  std::vector<std::int64_t> counts(ways, 0);
  const std::function<void(std::size_t, std::int64_t)> next = [&](std::size_t i,
                                                                  std::int64_t left) {
    if (i + 1 == ways) {
      counts[i] = left;
      body(counts);
      return;
    }
    for (counts[i] = 0; counts[i] <= left; ++counts[i]) {
      next(i + 1, left - counts[i]);
    }
    counts[i] = 0;
  };
  next(0, layers);
}

// Few different numbers: zeros, equal ways and ways on one line are common.
std::vector<LayerCost> random_ways(std::mt19937& random, bool coarse) {
  const auto up_to = [&](std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n)(random);
  };
  std::vector<LayerCost> ways(static_cast<std::size_t>(1 + up_to(5)));
  for (std::size_t i = 0; i < ways.size(); ++i) {
    ways[i] = {
        .name = "way " + std::to_string(i),
        .seconds = coarse ? static_cast<double>(up_to(4))
                          : std::uniform_real_distribution<double>(0, 3)(random),
        .saved_bytes = up_to(coarse ? 4 : 1000),
        .transient_bytes = up_to(coarse ? 5 : 1500)};
  }
  return ways;
}

TEST(LayerPlanner, EqualsEnumeration) {
  std::mt19937 random(1);
  int feasible = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    SCOPED_TRACE(testing::Message() << "trial " << trial);
    const bool coarse = trial % 2 == 0;
    const std::vector<LayerCost> ways = random_ways(random, coarse);
    const std::int64_t layers = std::uniform_int_distribution<std::int64_t>(1, 8)(random);
    const std::int64_t capacity =
        std::uniform_int_distribution<std::int64_t>(-1, coarse ? 36 : 9000)(random);
    double best = kInfinity;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for_all_counts(ways.size(), layers, [&](const std::vector<std::int64_t>& counts) {
      least = std::min(least, peak_of(ways, counts));
      if (peak_of(ways, counts) <= capacity) {
        best = std::min(best, seconds_of(ways, counts));
      }
    });
    const LayerPlan plan = plan_layers(ways, layers, capacity);
    const LayerPlan published = plan_layers_as_published(ways, layers, capacity);
    ASSERT_EQ(plan.feasible, best < kInfinity);
    for (const LayerPlan& one : {plan, published}) {
      ASSERT_EQ(one.counts.size(), ways.size());
      std::int64_t sum = 0;
      for (const std::int64_t count : one.counts) {
        ASSERT_GE(count, 0);
        sum += count;
      }
      ASSERT_EQ(sum, layers);
      ASSERT_EQ(one.peak_bytes, peak_of(ways, one.counts));
      ASSERT_DOUBLE_EQ(one.seconds, seconds_of(ways, one.counts));
      ASSERT_EQ(one.feasible, one.peak_bytes <= capacity);
    }
    if (plan.feasible) {
      ++feasible;
      ASSERT_NEAR(plan.seconds, best, 1e-8 * best);
      if (published.feasible) {
        ASSERT_LE(best, published.seconds + 1e-8 * best);
      }
    } else {
      ASSERT_EQ(plan.peak_bytes, least);
    }
  }
  EXPECT_GT(feasible, 2000);
  EXPECT_LT(feasible, 5500);
}

TEST(LayerPlanner, SaysWhatAnotherWayWouldCost) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 1000; ++trial) {
    const std::vector<LayerCost> ways = random_ways(random, trial % 2 == 0);
    const std::int64_t layers = std::uniform_int_distribution<std::int64_t>(1, 6)(random);
    const std::int64_t capacity = trial % 2 == 0 ? 20 : 5000;
    const LayerPlan plan = plan_layers(ways, layers, capacity);
    for (const RejectedWay& way : rejected_ways(ways, layers, capacity, plan)) {
      ASSERT_EQ(plan.counts[way.way], 0);
      double best = kInfinity;
      for_all_counts(ways.size(), layers, [&](const std::vector<std::int64_t>& counts) {
        if (counts[way.way] > 0 && peak_of(ways, counts) <= capacity) {
          best = std::min(best, seconds_of(ways, counts));
        }
      });
      if (best == kInfinity) {
        ASSERT_EQ(way.with_one_seconds, kInfinity);
      } else {
        ASSERT_NEAR(way.with_one_seconds, best, 1e-8 * best + 1e-12);
      }
      ASSERT_EQ(way.more_seconds, way.with_one_seconds - plan.seconds);
      ASSERT_EQ(way.missing_bytes, way.uniform_peak_bytes - capacity);
    }
  }
}

TEST(LayerPlanner, RunsAreTheOrderWithNeighboursTogether) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<LayerCost> ways = random_ways(random, trial % 2 == 0);
    const LayerPlan plan = plan_layers(ways, 1 + trial % 7, trial % 3 == 0 ? 20 : 5000);
    std::vector<std::size_t> order;
    std::size_t before = ways.size();
    for (const WayRun& run : way_runs(ways, plan)) {
      ASSERT_NE(run.way, before);
      ASSERT_GT(run.layers, 0);
      order.insert(order.end(), static_cast<std::size_t>(run.layers), run.way);
      before = run.way;
    }
    ASSERT_EQ(order, layer_order(ways, plan));
  }
}

// 96 layers and every option of the table: the relaxation is met within one layer's step.
TEST(LayerPlanner, ManyLayersAndWays) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<LayerCost> ways(216);
    for (LayerCost& way : ways) {
      way.saved_bytes = std::uniform_int_distribution<std::int64_t>(1 << 20, 1 << 30)(random);
      way.transient_bytes = std::uniform_int_distribution<std::int64_t>(0, 1 << 30)(random);
      const double share = static_cast<double>(way.saved_bytes) / (1 << 30);
      way.seconds = 1 / (0.2 + share) * std::uniform_real_distribution<double>(1, 1.2)(random);
    }
    const std::int64_t capacity = std::int64_t{40} << 30;
    const LayerPlan plan = plan_layers(ways, 96, capacity);
    ASSERT_TRUE(plan.feasible);
    ASSERT_LE(plan.peak_bytes, capacity);
    const LayerPlan published = plan_layers_as_published(ways, 96, capacity);
    if (published.feasible) {
      EXPECT_LE(plan.seconds, published.seconds * (1 + 1e-9));
    }
    EXPECT_EQ(plan_layers(ways, 96, capacity).counts, plan.counts);  // deterministic
  }
}

// Running the layers in this order, what is kept so far and the running layer's transient never
// exceed what they do in any other order.
TEST(LayerPlanner, OrdersLayersForTheLowestPeak) {
  std::mt19937 random(4);
  const auto peak = [](const std::vector<LayerCost>& ways, const std::vector<std::size_t>& order) {
    std::int64_t kept = 0;
    std::int64_t most = 0;
    for (const std::size_t i : order) {
      kept += ways[i].saved_bytes;
      most = std::max(most, kept + ways[i].transient_bytes);
    }
    return most;
  };
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<LayerCost> ways = random_ways(random, trial % 2 == 0);
    LayerPlan plan{.counts = std::vector<std::int64_t>(ways.size(), 1)};
    const std::vector<std::size_t> order = layer_order(ways, plan);
    std::vector<std::size_t> other = order;
    std::sort(other.begin(), other.end());
    do {
      ASSERT_LE(peak(ways, order), peak(ways, other));
    } while (std::next_permutation(other.begin(), other.end()));
  }
}

TEST(LayerPlanner, RefusesWhatIsNoCost) {
  const std::vector<LayerCost> good = {{"a", 1, 1, 1}};
  EXPECT_THROW(plan_layers({}, 3, 10), std::invalid_argument);
  EXPECT_THROW(plan_layers(good, 0, 10), std::invalid_argument);
  for (const LayerCost& bad : std::vector<LayerCost>{
           {"b", -1, 1, 1},
           {"b", NAN, 1, 1},
           {"b", kInfinity, 1, 1},
           {"b", 1, -1, 1},
           {"b", 1, 1, -1}}) {
    EXPECT_THROW(plan_layers(std::vector<LayerCost>{good[0], bad}, 3, 10), std::invalid_argument);
  }
  // numbers whose products do not fit into 64 bits are a plan that does not fit
  const std::vector<LayerCost> huge = {{"c", 1, std::int64_t{1} << 62, 1}};
  EXPECT_FALSE(plan_layers(huge, 96, std::numeric_limits<std::int64_t>::max() - 1).feasible);
}

}  // namespace
}  // namespace paradyse
