// A batch of documents, or of samples, in groups of different sizes, from the words of who asks to
// the plan: what `paradyse plan batch` and Python's plan_batch() share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/dtype.h"
#include "src/plan/search/grouping/batch.h"

namespace paradyse {

// What a batch is planned on, and how.
struct ClusterRequest {
  Model model;
  Cluster cluster;
  std::string space = "flexsp";        // or "full": ClusterSpaceOptions
  std::string weight_domain = "auto";  // "world", "node", or the faster one
  bool overlapped = false;
  double reserve = 0.05;  // of a device's memory, left free
  Dtype dtype = Dtype::bfloat16;
  std::vector<int> group_sizes = {};  // that groups may have; none: all of the space
};

// What is planned, and what more there is to say of it.
struct BatchQuestion {
  std::vector<GroupSpace> spaces;              // to choose from: a sharding group each
  std::function<std::string()> what_would_do;  // where a document is too long for all of them
  // None: there is no model to simulate.  0: not simulated.
  std::function<double(const Plan& plan)> simulated_seconds;
  // problems() of a plan for these devices; none: the planner's numbers answer for it.
  std::function<std::vector<std::string>(const Plan& plan)> problems = {};
};

// Throws std::invalid_argument for values that are not known, and for overlap and sharding groups
// that the space does not have.
void expect_of_space(const std::string& space, bool overlapped, const std::string& weight_domain);

// Throws std::invalid_argument for a request that expect_of_space() refuses, and like
// cluster_space().
BatchQuestion batch_question(
    const ClusterRequest& request, const std::vector<std::int64_t>& lengths);

// The same of samples of a multi-axis model.  Throws like sample_spaces(), and NoPlan for a sample
// that finds no room.
BatchQuestion samples_question(const ClusterRequest& request, const BatchSizes& samples);

// The answer is no: why, and what would do.
class NoPlan : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// Post: there is a plan, without the seconds of planning, so that the same question has the same
// answer to the last byte wherever it is asked.  Throws NoPlan, and std::logic_error for a plan
// with problems.
PlannedBatch answer(
    const BatchQuestion& question,
    const GroupingPlannerRow& planner,
    const GroupingOptions& options);

// What another planner would take for the same batch; none where it finds no plan.
struct RivalPlan {
  std::string planner;
  std::optional<double> seconds = {};
  std::string why_not = {};
};
// Every planner but `planner`, and without the exact one where it would take seconds.
std::vector<RivalPlan> rivals(
    const BatchQuestion& question,
    const GroupingPlannerRow& planner,
    const GroupingOptions& options);

// The least number from `low` to `high` that will do, of which all above do too; none does: 0.
std::int64_t least(
    std::int64_t low, std::int64_t high, const std::function<bool(std::int64_t)>& does);
// "; it would fit with 12 ranks (--ranks 12), or with --memory 42.1GiB"; no ranks do: 0.
std::string what_would_fit(std::int64_t ranks, double memory_mb);

}  // namespace paradyse
