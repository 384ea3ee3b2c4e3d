// What planners say of parts of a plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/cost/node_cores.h"
#include "src/plan/plan/programs.h"
#include "src/plan/search/batch/planning.h"

namespace paradyse {

// Tokens of a micro-batch: of its fullest group.
std::int64_t fullest(const Plan& plan, const PlanMicroBatch& micro);
// Of the longest document of these lengths; 0: there is none.
std::int64_t longest_of(const std::vector<std::int64_t>& lengths);

// A plan for the task's model and ranks that has no micro-batches yet.
Plan empty_plan(
    const PlanningTask& task, const std::vector<std::int64_t>& lengths, const std::string& space);

// Whether what is predicted of every group finds room.
bool all_fit(const Planning& planning, const Plan& plan, Caps caps);
// Predicts a plan, cut by the speeds of ranks and with messages beside work where all fit so;
// whether all fit.
bool predicted_to_fit(Planning& planning, Plan& plan, Caps caps);

// Where weights are whole a rank waits for those of its groups alone: the groups of a micro-batch,
// of many ranks and of many seconds first, go to the ranks that are done first with those before;
// where ranks share cores, to the node whose cores are.  In a plan whose groups lie on one node or
// have whole nodes they do so afterwards.  Powers of two and sizes that divide a node, or all
// ranks, begin at a multiple of themselves there.  False: they do not find room side by side.
bool spread_over_ranks(const NodeCores& cores, Plan& plan);

// Where ranks of a node share cores, the groups of a micro-batch that lie on one node each change
// places with others of their size: those that keep cores busy longest go first, to the node that
// is least busy.  False: there is nothing to change.
bool spread_over_nodes(const NodeCores& cores, Plan& plan);

// Predicted seconds until the last rank is done, where a rank waits for those of its groups alone.
double until_last_rank(const Plan& plan);

}  // namespace paradyse
