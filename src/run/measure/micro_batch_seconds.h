// What the ranks took for each micro-batch of a batch, brought together in one exchange.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "paradyse/run/session.h"
#include "src/run/execute/gather.h"

namespace paradyse {

struct RankNumbers {
  std::int64_t peak_bytes = 0;                         // of the fullest
  std::vector<std::vector<double>> rank_seconds = {};  // [micro-batch][world rank]

  // [micro-batch] The mean over the ranks.
  [[nodiscard]] std::vector<double> mean_seconds() const {
    std::vector<double> means;
    for (const std::vector<double>& of_ranks : rank_seconds) {
      double& mean = means.emplace_back(0);
      for (const double seconds : of_ranks) {
        mean += seconds / static_cast<double>(of_ranks.size());
      }
    }
    return means;
  }
};

// Every rank of the session's world calls this and has the numbers of all.
inline RankNumbers numbers_of_ranks(const BatchResult& batch, RankSession& session) {
  std::vector<std::int64_t> mine = {session.memory().peak_bytes()};
  for (const double seconds : batch.micro_batch_seconds) {
    mine.push_back(static_cast<std::int64_t>(seconds * 1e9));
  }
  RankNumbers numbers{.rank_seconds = std::vector<std::vector<double>>(mine.size() - 1)};
  for (const auto& of_rank : gather(mine, session.world())) {
    numbers.peak_bytes = std::max(numbers.peak_bytes, of_rank[0]);
    for (std::size_t m = 0; m < numbers.rank_seconds.size(); ++m) {
      numbers.rank_seconds[m].push_back(static_cast<double>(of_rank[m + 1]) * 1e-9);
    }
  }
  return numbers;
}

}  // namespace paradyse
