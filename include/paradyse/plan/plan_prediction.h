// What a plan takes: bytes counted exactly, seconds by a time model and what measurements taught.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "paradyse/plan/correction.h"
#include "paradyse/plan/layer_costs.h"
#include "paradyse/plan/plan.h"

namespace paradyse {

class PlanPrediction {
 public:
  // `all`, `one`: costs on all ranks together and on one of them.  All four live longer.
  PlanPrediction(
      const PlanningTask& task, const Correction& correction, LayerCosts& all, LayerCosts& one);

  // Fills in `predicted` of the plan, its micro-batches and groups.
  void predict(Plan& plan);

  // Of the fullest rank when documents of these lengths run as `program` says.  One group: all
  // ranks together; else one rank each.
  [[nodiscard]] PredictedBytes bytes_of(
      const LayerProgram& program, const std::vector<std::vector<std::int64_t>>& groups) const;

  // Seconds of a micro-batch, given the busy seconds of each of its ranks: ranks share cores.
  [[nodiscard]] double wall_seconds(const std::vector<double>& busy) const;

 private:
  [[nodiscard]] PredictedBytes fullest_rank(
      const Timeline& parts, const std::vector<Seat>& seats) const;
  double group_seconds(
      const Timeline& parts,
      const std::vector<LayerChoice>& layers,
      const std::vector<Seat>& seats,
      const std::vector<std::int64_t>& lengths,
      std::int64_t longest);

  const PlanningTask& task_;
  const Correction& correction_;
  std::shared_ptr<const TimeModel> model_;
  LayerCosts& all_;  // on all ranks together
  LayerCosts& one_;  // on one rank
};

}  // namespace paradyse
