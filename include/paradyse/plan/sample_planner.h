// Plans batches of samples of a model of several dims: the layout that sends least, and within
// memory what takes least time: so many samples at once, and of each part of each layer what is
// made again and in how many tiles it runs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/cost.h"
#include "paradyse/plan/grid_models.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/strategy.h"

namespace paradyse {

struct SampleTask {
  GridShape model;
  std::map<std::string, std::int64_t> dims;  // of every sample: Plan::dims
  int ranks = 1;
  std::vector<int> mesh = {};  // of the ranks, as in PlanGroup
  MachineNumbers machine;      // for predicted seconds
  Precision precision = {};
  std::int64_t memory_per_rank = 0;              // bytes; 0: no limit
  bool training = true;                          // else forward passes alone: nothing is saved
  bool offload = false;                          // what parts save may wait in host memory
  std::optional<LayerRecompute> recompute = {};  // of all layers; none: the least that fits
};

// The same for the same task on every machine.  A list of lengths says how many samples there are;
// each is the rows of one.
class SamplePlanner final : public BatchPlanner {
 public:
  explicit SamplePlanner(SampleTask task);

  // Of all samples at once, half of them, and so on down to one, the plan that takes least by the
  // closed form, whose layers are those of plan_layers() and whose bytes are counted; without a
  // limit all at once, and nothing made again.
  // Throws std::invalid_argument where a part has no way to run.
  Answer plan(const std::vector<std::int64_t>& lengths) override;
  // Layouts are counted, not measured: steps teach nothing.
  std::optional<std::string> observe(const Plan& plan, const RankSeconds& seconds) override;
  std::optional<Plan> leaner(const Plan& plan) override;
  [[nodiscard]] Learned learned() const override { return {.caps = caps_}; }
  void learn(const Learned& learned) override;

 private:
  // So many samples at once, all layers made again alike.
  [[nodiscard]] Plan alike(
      const std::vector<std::int64_t>& lengths, std::size_t at_once, LayerRecompute level) const;
  // The same with layers that fit; nothing where none do, and `least`, unless it was less, the
  // bytes of what needs least.
  [[nodiscard]] std::optional<Plan> within(
      std::int64_t budget, const Plan& alike, std::size_t at_once, PredictedBytes& least) const;
  void predict(Plan& plan) const;

  SampleTask task_;
  Model model_;
  DocumentPlans::HeldTo caps_;                       // by the rows of a sample
  std::map<std::vector<std::int64_t>, Plan> plans_;  // forgotten whenever something is learned
};

}  // namespace paradyse
