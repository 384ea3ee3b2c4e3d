// Finds plans of whole batches, of documents of a language model and of samples of several dims.
// Deterministic, all on the plan side.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/detail/correction.h"
#include "paradyse/plan/detail/costed_parts.h"
#include "paradyse/plan/detail/planning_task.h"
#include "paradyse/plan/detail/rank_speeds.h"
#include "paradyse/plan/plan.h"

namespace paradyse {

class Planning;  // what planners of one task share

// The bytes that plans for such lengths are held to, after plans that were within their count ran
// out of memory (BatchPlanner::leaner).
enum class Caps {
  held,   // they count
  passed  // they do not: nothing fits below them
};

// Of one document under one option of a layer, for people.
struct OptionRow {
  std::int64_t length = 0;  // tokens
  std::string option = {};
  double seconds = 0;           // predicted
  std::int64_t peak_bytes = 0;  // estimated
  bool fits = false;
};

// Who plans the steps of a run, whatever is trained.  A planner writes make(); what it learned,
// what it remembers and what a lack of memory teaches is the base's.
class BatchPlanner {
 public:
  explicit BatchPlanner(PlanningTask task);
  virtual ~BatchPlanner();
  BatchPlanner(const BatchPlanner&) = delete;
  BatchPlanner& operator=(const BatchPlanner&) = delete;

  // The plan, or why there is none: the document that fits nowhere, what it needs and of what, the
  // budget, and the longest document that fits.
  struct Answer {
    std::optional<Plan> plan = {};
    std::string why_not = {};
  };
  // Remembered until the planner learns something; the last 1,024 batches.
  Answer plan(const BatchSizes& batch);
  Answer plan(const std::vector<std::int64_t>& lengths) {
    return plan(BatchSizes{.lengths = lengths});
  }
  // Whether the last answer was there already.
  [[nodiscard]] bool was_cached() const { return cached_; }

  // What every rank took for every micro-batch of a plan, so that later plans know better; says so
  // when the machine has changed.  A group that waits for a slower one tells nothing of itself.
  // [micro-batch][world rank] Seconds of each of costed_parts() of its group's program, those in
  // which it waited for other ranks included.
  using PartSeconds = std::vector<std::vector<std::vector<double>>>;
  std::optional<std::string> observe(const Plan& plan, const PartSeconds& seconds);
  // [world rank] Seconds that it computes for a plan by the closed form, alone on a core: what
  // RankSpeeds holds measured ones against.
  [[nodiscard]] std::vector<double> work_of_ranks(const Plan& plan);

  // After `plan` ran out of memory in spite of what was counted: a plan for the same documents that
  // is held to 95 % of what its fullest micro-batch was to take, as are all plans for such lengths
  // from now on (but where none would fit that).  Nothing when none fits that.
  std::optional<Plan> leaner(const Plan& plan);

  // What it has learned in a run, for the run that goes on from a checkpoint: of observe(), the
  // speeds of ranks, and bytes that leaner() holds plans to, by log2 of the tokens.
  struct Learned {
    Correction::Ratios ratios = {};
    double machine = 1;  // its factor: Correction::machine()
    std::map<int, std::int64_t> caps = {};
    RankSpeeds::Ratios speeds = {};             // of ranks: RankSpeeds::ratios()
    std::vector<std::int64_t> slow_since = {};  // likewise

    friend bool operator==(const Learned&, const Learned&) = default;
  };
  [[nodiscard]] Learned learned() const;
  void learn(const Learned& learned);

  [[nodiscard]] const PlanningTask& task() const;
  // Fills in what a plan is expected to take by what is known by now.
  void expect(Plan& plan);

 protected:
  explicit BatchPlanner(std::unique_ptr<Planning> planning);

  // A plan that predicted_to_fit(), or why there is none.
  virtual Answer make(const BatchSizes& batch, Caps caps) = 0;
  // Fills in what a plan is predicted to take, cut by the speeds of ranks and with messages beside
  // work where that is faster and has room; whether all of it fits.
  bool predicted_to_fit(Plan& plan, Caps caps);
  [[nodiscard]] const Planning& planning() const { return *planning_; }
  Planning& planning() { return *planning_; }

 private:
  std::unique_ptr<Planning> planning_;
  std::map<BatchSizes, Plan> plans_;  // forgotten whenever something is learned
  bool cached_ = false;
};

struct BatchPlannerRow {
  std::string name = {};
  std::string old_name = {};  // that is accepted, too
  std::string summary = {};   // one line for people
  std::function<std::unique_ptr<BatchPlanner>(PlanningTask task)> make = {};
  // Of groups that it tries, on so many ranks; ascending.
  std::function<std::vector<int>(int ranks)> sizes = {};
  bool samples = false;  // it plans samples of several dims, too, not documents alone
};
std::span<const BatchPlannerRow> batch_planners();
// Further rows, before the first plan: references to rows do not survive it.  Throws
// std::logic_error for a name that is taken, and std::invalid_argument for a row without a name,
// make or sizes.
void add_batch_planners(const std::vector<BatchPlannerRow>& more);
// Takes one that was added away again.  Throws std::invalid_argument for another.
void remove_batch_planner(const std::string& name);
// Throws std::invalid_argument, with the names there are, for another.
const BatchPlannerRow& batch_planner_row(const std::string& name);
// The one that the task names.  Throws like batch_planner_row(), and std::invalid_argument where no
// strategy is left, and for samples by a planner of documents alone.
std::unique_ptr<BatchPlanner> batch_planner(PlanningTask task);

}  // namespace paradyse
