// The planners of batches of documents there are, each in its file; all that there are, of samples
// too, are rows of src/plan/search/planners/table.cc.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "src/plan/search/batch/document_plans.h"
#include "src/plan/search/grouping/planners.h"

namespace paradyse {

BatchPlannerRow borders();
BatchPlannerRow whole_or_split();
BatchPlannerRow flexsp();
// Every document over 1, 2, 4, 8 or all ranks: one size for all, and all else as flexsp has it.
std::array<BatchPlannerRow, 5> groups_of_one_size();

// Groups as a planner of groupings finds them, all else as flexsp has it, without the borders'
// plan.
BatchPlannerRow groups_by(std::string name, const GroupingPlannerRow& planner);

// One rank and all of them; those between, too, of more than eight ranks the powers of two, and
// what divides them and shares nodes of so many evenly or fills them.
std::vector<int> one_or_all(int ranks);
std::vector<int> sizes_over_nodes(int ranks, int node);
std::vector<int> any_size(int ranks);  // on one node

// What the first of them answers, for others that begin from it.
BatchPlanner::Answer plan_by_borders(
    DocumentPlans& documents, const std::vector<std::int64_t>& lengths, Caps caps);

}  // namespace paradyse
