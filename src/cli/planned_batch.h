// What commands that plan a batch in groups of different sizes share: the options, the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"
#include "src/cli/commands.h"
#include "src/plan/search/grouping/planners.h"
#include "src/plan/search/grouping/space.h"

namespace paradyse::cli {

struct BatchOptions {
  std::string lengths;
  std::int64_t context = 192'000;
  std::string space = "flexsp";
  std::int64_t batch = 512;
  std::string planner = "fast";
  bool exact = false;
  int ranks = 0;
  std::string memory;
  bool overlapped = false;
  std::string domain = "auto";
  std::string out;
  bool explain = false;
  GroupingOptions how;
};
void add_batch_options(Command& command, BatchOptions& options);

// Ranks that --ranks may ask for.
inline constexpr int kMostBatchRanks = 1 << 16;

// --memory in bytes; 0: not given.  Throws std::invalid_argument for another text.
std::int64_t memory_of(const BatchOptions& options);
// Throws std::invalid_argument for values of --overlap and --weight-domain that the --space does
// not have.
void expect_of_space(const std::string& space, bool overlapped, const std::string& domain);

// The least number from `low` to `high` that will do, of which all above do too; none does: 0.
std::int64_t least(
    std::int64_t low, std::int64_t high, const std::function<bool(std::int64_t)>& does);
// "; it would fit with 12 ranks (--ranks 12), or with --memory 42.1GiB"; no ranks do: 0.
std::string what_would_fit(std::int64_t ranks, double memory_mb);

struct BatchQuestion {
  std::vector<GroupSpace> spaces;              // to choose from: a sharding group each
  std::function<std::string()> what_would_do;  // where a document is too long for all of them
  // None: there is no model to simulate.  0: not simulated.
  std::function<double(const Plan& plan)> simulated_seconds;
};
// Reads the lengths, plans, writes the plan, prints the answer.  Returns the exit code.
int planned_batch(
    const BatchOptions& options,
    const Common& common,
    const std::function<BatchQuestion(const std::vector<std::int64_t>& lengths)>& question);

}  // namespace paradyse::cli
