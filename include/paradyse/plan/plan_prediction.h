// What a plan takes: bytes counted exactly, seconds by a time model and what measurements taught.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "paradyse/plan/correction.h"
#include "paradyse/plan/group_costs.h"
#include "paradyse/plan/plan.h"

namespace paradyse {

// Seconds of a group that has its cores to itself.
struct GroupSeconds {
  int ranks = 1;
  double seconds = 0;
};

class PlanPrediction {
 public:
  // All three live longer.
  PlanPrediction(const PlanningTask& task, const Correction& correction, GroupCosts& costs);

  // Fills in `predicted` of the plan, its micro-batches and groups.
  void predict(Plan& plan);
  // Of a micro-batch, by the time model alone: what measurements are held against.
  [[nodiscard]] double uncorrected_seconds(const Plan& plan, const PlanMicroBatch& micro);

  // Of the fullest rank when groups of `ranks` ranks, side by side, run documents of these lengths
  // as `program` says.
  [[nodiscard]] PredictedBytes bytes_of(
      const LayerRuns& program,
      const std::vector<std::vector<std::int64_t>>& groups,
      int ranks) const;

  // Of a micro-batch: its slowest group; where ranks share cores, no less than all of them keep
  // the cores busy together.
  [[nodiscard]] double wall_seconds(const std::vector<GroupSeconds>& groups) const;

 private:
  [[nodiscard]] PredictedBytes fullest_rank(
      const Timeline& parts, const std::vector<Seat>& seats) const;
  double group_seconds(
      const Timeline& parts,
      const std::vector<LayerChoice>& layers,
      const std::vector<Seat>& seats,
      const std::vector<std::int64_t>& lengths,
      const Correction& correction);

  const PlanningTask& task_;
  const Correction& correction_;
  const Model& model_;
  std::shared_ptr<const TimeModel> seconds_;
  GroupCosts& costs_;
};

}  // namespace paradyse
