// Finds plans of whole batches.  Deterministic, all on the plan side.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/document_plans.h"

namespace paradyse {

// Who plans the steps of a run, whatever is trained.
class BatchPlanner {
 public:
  BatchPlanner() = default;
  virtual ~BatchPlanner() = default;
  BatchPlanner(const BatchPlanner&) = delete;
  BatchPlanner& operator=(const BatchPlanner&) = delete;

  // The plan, or why there is none: the document that fits nowhere, what it needs and of what, the
  // budget, and the longest document that fits.
  struct Answer {
    std::optional<Plan> plan = {};
    std::string why_not = {};
  };
  virtual Answer plan(const BatchSizes& batch) = 0;
  Answer plan(const std::vector<std::int64_t>& lengths) {
    return plan(BatchSizes{.lengths = lengths});
  }

  // What every rank took for every micro-batch of a plan, so that later plans know better; says so
  // when the machine has changed.  A group that waits for a slower one tells nothing of itself.
  using RankSeconds = std::vector<std::vector<double>>;  // [micro-batch][world rank]
  virtual std::optional<std::string> observe(const Plan& plan, const RankSeconds& seconds) = 0;

  // After `plan` ran out of memory in spite of what was counted: a plan for the same documents that
  // is held to 95 % of what its fullest micro-batch was to take, as are all plans for such lengths
  // from now on (but where none would fit that).  Nothing when none fits that.
  virtual std::optional<Plan> leaner(const Plan& plan) = 0;

  // What it has learned in a run, for the run that goes on from a checkpoint: of observe(),
  // and bytes that leaner() holds plans to, by log2 of the tokens.
  struct Learned {
    Correction::Ratios ratios = {};
    double machine = 1;  // its factor: Correction::machine()
    DocumentPlans::HeldTo caps = {};

    friend bool operator==(const Learned&, const Learned&) = default;
  };
  [[nodiscard]] virtual Learned learned() const = 0;
  virtual void learn(const Learned& learned) = 0;
};

// Of documents of a language model.  A planner writes make() and a row of the table; what it
// learned, what it remembers and what a lack of memory teaches is the base's.
class DocumentPlanner : public BatchPlanner {
 public:
  // Throws like DocumentPlans.
  explicit DocumentPlanner(PlanningTask task) : documents_(std::move(task)) {}

  // Remembered until the planner learns something; the last 1,024 lists of lengths.
  using BatchPlanner::plan;
  Answer plan(const BatchSizes& batch) final;
  // Whether the last answer was there already.
  [[nodiscard]] bool was_cached() const { return cached_; }
  std::optional<std::string> observe(const Plan& plan, const RankSeconds& seconds) final;
  std::optional<Plan> leaner(const Plan& plan) final;
  [[nodiscard]] Learned learned() const final;
  void learn(const Learned& learned) final;

  DocumentPlans& documents() { return documents_; }
  [[nodiscard]] const PlanningTask& task() const { return documents_.task(); }

 protected:
  // A plan that fits, or why there is none.
  virtual Answer make(const std::vector<std::int64_t>& lengths, Caps caps) = 0;

 private:
  DocumentPlans documents_;
  std::map<std::vector<std::int64_t>, Plan> plans_;  // forgotten whenever something is learned
  bool cached_ = false;
};

struct BatchPlannerRow {
  const char* name = "";
  const char* old_name = "";  // that is accepted, too
  const char* summary = "";   // one line for people
  std::unique_ptr<DocumentPlanner> (*make)(PlanningTask task) = nullptr;
};
std::span<const BatchPlannerRow> batch_planners();
// The one that the task names.  Throws std::invalid_argument, with the names there are, for
// another, and like DocumentPlans.
std::unique_ptr<DocumentPlanner> batch_planner(PlanningTask task);

}  // namespace paradyse
