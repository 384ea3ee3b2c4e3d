// Random grouping tasks, and the plain truth about them, for the tests of planners of groups.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lab/flexsp/presets.h"
#include "paradyse/plan/detail/index.h"
#include "src/plan/search/grouping/bounds.h"
#include "src/plan/search/grouping/grouping.h"
#include "src/plan/search/grouping/planners.h"
#include "tests/support/random_lengths.h"

namespace paradyse {

// Any ranks, several types of as many, capacities that rise with ranks or do not, seconds that
// follow no rule, a fixed part and overlap in some; the longest document always fits somewhere.
inline GroupingTask random_task(std::mt19937& random, int most_ranks, int most_documents) {
  const auto up_to = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  const auto real = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  GroupingTask task;
  task.ranks = 1 + up_to(most_ranks - 1);
  const int types = 1 + up_to(3);
  std::vector<int> ranks;
  for (int t = 0; t < types; ++t) {
    ranks.push_back(1 + up_to(task.ranks - 1));
  }
  std::ranges::sort(ranks);
  std::int64_t most = 0;
  const bool rule = up_to(1) == 0;  // as a real cluster: more ranks have more room and are faster
  for (int t = 0; t < types; ++t) {
    const std::int64_t capacity = rule ? ranks[idx(t)] * (20 + up_to(20)) : 10 + up_to(200);
    task.types.push_back(
        {.name = "type " + std::to_string(t),
         .ranks = ranks[idx(t)],
         .capacity = capacity,
         .fixed_seconds = up_to(2) == 0 ? real(0, 0.5) : 0});
    most = std::max(most, capacity);
  }
  const int documents = up_to(most_documents);
  for (int k = 0; k < documents; ++k) {
    task.lengths.push_back(1 + up_to(static_cast<int>(up_to(2) == 0 ? most - 1 : most / 8)));
  }
  for (const GroupType& type : task.types) {
    const double speed = real(0.7, 1);
    for (const std::int64_t n : task.lengths) {
      const auto s = static_cast<double>(n);
      task.seconds.push_back(
          rule ? (0.01 * s + 0.001 * s * s) / (type.ranks * speed) : real(0.01, 3));
    }
  }
  task.micro_batch_seconds = up_to(3) == 0 ? 0 : real(0, 3);
  task.overlapped = up_to(3) == 0;
  check(task);
  return task;
}

// Few types of any ranks, in up to three pools and anywhere, as many documents as enumeration
// takes; the longest fits somewhere.
inline GroupingTask random_pooled_task(std::mt19937& random, int most_documents) {
  const auto up_to = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  const auto real = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  GroupingTask task;
  const int pools = 2 + up_to(1);
  std::vector<double> speed;
  double all = 0;
  for (int pool = 0; pool < pools; ++pool) {
    task.pools.push_back(1 + up_to(3));
    speed.push_back(real(0.5, 2));
    all += task.pools.back() * speed.back();
  }
  task.ranks = std::accumulate(task.pools.begin(), task.pools.end(), 0);
  for (int k = 1 + up_to(most_documents - 1); k > 0; --k) {
    task.lengths.push_back(1 + up_to(up_to(2) == 0 ? 60 : 15));
  }
  const auto add = [&](int pool, int ranks, double price) {
    task.types.push_back(
        {.name = std::to_string(ranks) + " in pool " + std::to_string(pool),
         .ranks = ranks,
         .capacity = ranks * 20,
         .fixed_seconds = up_to(1) == 0 ? 0 : real(0, 0.2),
         .pool = pool,
         .price = price});
    for (const std::int64_t n : task.lengths) {
      task.seconds.push_back(static_cast<double>(n) / (ranks * price * real(0.8, 1)));
    }
  };
  const double price = task.ranks / all;  // of speed 1
  add(-1, task.ranks, price * *std::ranges::min_element(speed));
  for (int pool = 0; pool < pools; ++pool) {
    add(pool, 1, price * speed[idx(pool)]);
    if (const int most = task.pools[idx(pool)]; most > 1) {
      add(pool, most, price * speed[idx(pool)]);
    }
  }
  const std::int64_t room = task.ranks * 20;
  for (std::int64_t& n : task.lengths) {
    n = std::min(n, room);
  }
  task.micro_batch_seconds = up_to(2) == 0 ? 0 : real(0, 3);
  task.overlapped = up_to(3) == 0;
  check(task);
  return task;
}

// The published models with documents as they come, mostly short, few long; fewer ranks have as
// much more memory as their share of the states grows.
inline GroupingTask random_flexsp_task(std::mt19937& random, int ranks, int documents) {
  FlexspSetting setting{.model = &flexsp_models()[random() % 3], .ranks = ranks};
  setting.memory_mb +=
      16 * 1024 * setting.model->parameters_192k * (1.0 / ranks - 1.0 / kFlexspRanks);
  const std::int64_t most =
      std::min<std::int64_t>(setting.context, ranks * flexsp_tokens_per_rank(setting));
  return flexsp_task(setting, test::random_lengths(random, documents, 1200, 1.66, most));
}

// Documents of d ranks take length / d seconds, d from the list; room for so many tokens a rank.
inline GroupingTask plain_task(
    int ranks,
    const std::vector<int>& sizes,
    std::int64_t room,
    double micro_batch_seconds,
    std::vector<std::int64_t> lengths) {
  GroupingTask task{
      .ranks = ranks,
      .lengths = std::move(lengths),
      .types = {},
      .seconds = {},
      .micro_batch_seconds = micro_batch_seconds};
  for (const int d : sizes) {
    task.types.push_back({.name = std::to_string(d) + " ranks", .ranks = d, .capacity = d * room});
    for (const std::int64_t n : task.lengths) {
      task.seconds.push_back(static_cast<double>(n) / d);
    }
  }
  check(task);
  return task;
}

// An answer is sound and no better than the bound; it is none only where a document fits nowhere.
inline void expect_sound(const GroupingTask& task, const GroupingAnswer& answer) {
  if (!answer.grouping) {
    EXPECT_NE(answer.why_not, "");
    EXPECT_FALSE(too_long(task).empty()) << answer.why_not;
    return;
  }
  EXPECT_EQ(answer.why_not, "");
  EXPECT_EQ(problems(task, *answer.grouping), std::vector<std::string>{});
  const double bound = area_bound(task).seconds;
  EXPECT_GE(answer.grouping->seconds, bound * (1 - 1e-9));
}

}  // namespace paradyse
