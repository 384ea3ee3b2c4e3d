// Finds groupings.  Every planner is deterministic, plans with what planners share (grouping.h) and
// is a row of the table.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/plan/search/grouping/grouping.h"

namespace paradyse {

struct GroupingOptions {
  std::uint64_t seed = 1;      // of what a planner draws
  double moves = 1;            // budget of the fast planner, times its default
  bool tiny_exactly = true;    // the fast planner leaves tiny cases to the exact one
  int threads = 1;             // for the fast planner; the answer does not depend on it
  double solver_seconds = 5;   // of the MILP, for a micro-batch
  int more_micro_batches = 4;  // the published planner tries the least number and so many more
};

inline constexpr double kMostMoves = 1000;
inline constexpr int kMostThreads = 1024;
// Of the fast planner, times its default, in training: planning runs beside it.
inline constexpr double kMovesOfTraining = 0.1;

struct GroupingAnswer {
  std::optional<Grouping> grouping = {};  // none: why_not says which document, and of what it lacks
  std::string why_not = {};
  bool optimal = false;    // proved
  std::int64_t tried = 0;  // moves, nodes or groupings, for people
};

struct GroupingPlannerRow {
  const char* name = "";
  const char* old_name = "";  // that is accepted, too
  const char* summary = "";   // one line for people
  std::function<GroupingAnswer(const GroupingTask& task, const GroupingOptions& options)> plan = {};
  bool knows_pools = false;

  // plan(), of a task without its pools where the planner knows none: what it finds is sound all
  // the same.
  [[nodiscard]] GroupingAnswer plan_on(
      const GroupingTask& task, const GroupingOptions& options) const;
};
std::span<const GroupingPlannerRow> grouping_planners();
// Further rows, before the first plan: references to rows do not survive it.  Throws
// std::logic_error for a name that is taken.
void add_grouping_planners(const std::vector<GroupingPlannerRow>& more);
// Takes one that was added away again.  Throws std::invalid_argument for another.
void remove_grouping_planner(const std::string& name);
// Throws std::invalid_argument, with the names there are, for another.
const GroupingPlannerRow& grouping_planner(const std::string& name);

// Each in its own file.
GroupingPlannerRow fast_planner();
GroupingPlannerRow exact_planner();
// Steps that the exact planner takes, about 4 ns each; infinite: more documents or nodes than it
// plans, or pools.
double exact_steps(const GroupingTask& task);

}  // namespace paradyse
