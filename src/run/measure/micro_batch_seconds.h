// What the ranks took for each micro-batch of a batch, brought together in one exchange.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/run/session.h"
#include "src/run/execute/gather.h"

namespace paradyse {

struct RankNumbers {
  std::int64_t peak_bytes = 0;                           // of the fullest
  std::vector<std::vector<double>> rank_seconds = {};    // [micro-batch][world rank]
  std::vector<std::vector<double>> domain_seconds = {};  // the same: BatchResult::domain_seconds
  std::vector<double> computed_seconds = {};             // [world rank] the same
  // [micro-batch][world rank] BatchResult::part_seconds.
  BatchPlanner::PartSeconds part_seconds = {};

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
  // [micro-batch][world rank] What a rank waited for slower ones, all in one weight domain: its
  // seconds in operations of the domain beyond those of the rank that waited least, which are taken
  // for the sending itself.
  [[nodiscard]] std::vector<std::vector<double>> idle_seconds() const {
    std::vector<std::vector<double>> idle = domain_seconds;
    for (std::vector<double>& of_ranks : idle) {
      const double least = *std::ranges::min_element(of_ranks);
      for (double& seconds : of_ranks) {
        seconds -= least;
      }
    }
    return idle;
  }
};

// Every rank of the session's world calls this and has the numbers of all.
inline RankNumbers numbers_of_ranks(const BatchResult& batch, RankSession& session) {
  std::vector<std::int64_t> mine = {
      session.memory().peak_bytes(), static_cast<std::int64_t>(batch.computed_seconds * 1e9)};
  for (const auto* seconds : {&batch.micro_batch_seconds, &batch.domain_seconds}) {
    for (const double of_micro_batch : *seconds) {
      mine.push_back(static_cast<std::int64_t>(of_micro_batch * 1e9));
    }
  }
  const std::size_t micro_batches = batch.micro_batch_seconds.size();
  const std::size_t parts = batch.part_seconds.empty() ? 0 : batch.part_seconds.front().size();
  for (const std::vector<double>& of_micro_batch : batch.part_seconds) {
    for (const double of_part : of_micro_batch) {
      mine.push_back(static_cast<std::int64_t>(of_part * 1e9));
    }
  }
  RankNumbers numbers;
  numbers.rank_seconds.resize(micro_batches);
  numbers.domain_seconds.resize(micro_batches);
  numbers.part_seconds.resize(batch.part_seconds.size());
  for (const auto& of_rank : gather(mine, session.world())) {
    numbers.peak_bytes = std::max(numbers.peak_bytes, of_rank[0]);
    const auto seconds = [&](std::size_t at) { return static_cast<double>(of_rank[at]) * 1e-9; };
    numbers.computed_seconds.push_back(seconds(1));
    for (std::size_t m = 0; m < micro_batches; ++m) {
      numbers.rank_seconds[m].push_back(seconds(2 + m));
      numbers.domain_seconds[m].push_back(seconds(2 + micro_batches + m));
    }
    std::size_t at = 2 + 2 * micro_batches;
    for (auto& of_micro_batch : numbers.part_seconds) {
      std::vector<double>& mine_of_parts = of_micro_batch.emplace_back();
      for (std::size_t p = 0; p < parts; ++p) {
        mine_of_parts.push_back(seconds(at++));
      }
    }
  }
  return numbers;
}

}  // namespace paradyse
