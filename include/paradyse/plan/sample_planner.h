// Plans batches of samples of a model of several dims: the layout that sends least, and within
// memory what takes least time: so many samples at once, and of each part of each layer what is
// made again and in how many tiles it runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/cost.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/strategy.h"

namespace paradyse {

struct SecondsTask;

// The same for the same task on every machine.  Samples of unlike sizes run after each other, those
// of one size by one program.
class SamplePlanner final : public BatchPlanner {
 public:
  // `task.recompute`: of all layers; "": the least that fits.
  explicit SamplePlanner(PlanningTask task);

  using BatchPlanner::plan;
  // Of all samples of a size at once, half of them, and so on down to one, the plan that takes
  // least by the closed form, whose layers are those of plan_layers() and whose bytes are counted;
  // without a limit all at once, and nothing made again. Throws std::invalid_argument where a part
  // has no way to run.
  Answer plan(const BatchSizes& batch) override;
  // Layouts are counted, not measured: steps teach nothing.
  std::optional<std::string> observe(const Plan& plan, const RankSeconds& seconds) override;
  std::optional<Plan> leaner(const Plan& plan) override;
  [[nodiscard]] Learned learned() const override { return {.caps = caps_}; }
  void learn(const Learned& learned) override;

 private:
  // Of samples of one size.
  Answer plan_alike(const std::vector<std::int64_t>& lengths, const DimSizes& dims);
  // The same, so many at once, all layers made again alike.
  [[nodiscard]] Plan alike(
      const std::vector<std::int64_t>& lengths,
      const DimSizes& dims,
      std::size_t at_once,
      LayerRecompute level) const;
  // The same with layers that fit; nothing where none do, and `least`, unless it was less, the
  // bytes of what needs least.
  [[nodiscard]] std::optional<Plan> within(
      std::int64_t budget, const Plan& alike, std::size_t at_once, PredictedBytes& least) const;
  void predict(Plan& plan) const;
  [[nodiscard]] SecondsTask seconds_task() const;

  PlanningTask task_;
  const Model& model_;  // of the task
  std::optional<LayerRecompute> recompute_;
  DocumentPlans::HeldTo caps_;        // by the rows of a sample
  std::map<BatchSizes, Plan> plans_;  // of one size each; forgotten whenever something is learned
};

// The planner of samples, or of documents as the task names it, as the model has them.  Throws like
// batch_planner().
std::unique_ptr<BatchPlanner> planner_for(PlanningTask task);

}  // namespace paradyse
