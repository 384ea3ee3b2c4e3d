// Groups on ranks that compute at unlike speeds, as types of a grouping.
#pragma once

#include <vector>

#include "src/plan/search/grouping/grouping.h"

namespace paradyse {

// Groups of so many ranks, all of speed 1.
struct GroupsOfAKind {
  GroupType type = {};
  std::vector<double> seconds = {};  // [document of the task]
};

// Adds types of such groups to a task of these ranks: those that lie anywhere, as fast as the
// slowest rank, but of all ranks of speed `whole`; and, in each run of ranks of one speed, those
// that it has room for.  `kinds`: ranks ascend.  `speeds`: [rank], 1 where nothing slows it; empty:
// all are alike.
void add_types(
    const std::vector<GroupsOfAKind>& kinds,
    const std::vector<double>& speeds,
    double whole,
    GroupingTask& task);

// Of ranks whose groups of all are cut by their speeds; 1 where all are alike.
double mean_speed(const std::vector<double>& speeds);
// Of ranks whose groups are cut evenly.
double least_speed(const std::vector<double>& speeds);

}  // namespace paradyse
