// Planners of batches and of groups that a program adds, and takes away again.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "src/plan/search/batch/document_planner.h"
#include "src/plan/search/batch/table.h"
#include "src/plan/search/grouping/planners.h"
#include "src/plan/search/grouping/table.h"

namespace paradyse {
namespace {

template <typename Rows>
std::vector<std::string> names_of(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) {
    names.emplace_back(row.name);
  }
  return names;
}

TEST(BatchPlanners, AreAddedAndRemoved) {
  const std::vector<std::string> brought = names_of(batch_planners());
  BatchPlannerRow own = batch_planner_row("borders");
  own.name = "own";
  own.old_name = "";
  BatchPlannerRow other = own;
  other.name = "other";
  add_batch_planners({own, other});
  EXPECT_EQ(batch_planner_row("own").name, "own");
  EXPECT_THROW(add_batch_planners({own}), std::logic_error);
  remove_batch_planner("own");
  EXPECT_THROW(batch_planner_row("own"), std::invalid_argument);
  EXPECT_EQ(batch_planner_row("other").name, "other");
  EXPECT_THROW(remove_batch_planner("own"), std::invalid_argument);
  EXPECT_THROW(remove_batch_planner("borders"), std::invalid_argument);
  add_batch_planners({own});  // its name is free again
  remove_batch_planner("own");
  remove_batch_planner("other");
  EXPECT_EQ(names_of(batch_planners()), brought);
}

// One that lacks something is refused when it is added, not when it is asked.
TEST(BatchPlanners, AreAddedWhole) {
  const std::vector<std::string> brought = names_of(batch_planners());
  BatchPlannerRow own = batch_planner_row("borders");
  own.name = "own";
  for (const auto& spoil : std::vector<void (*)(BatchPlannerRow&)>{
           [](BatchPlannerRow& row) { row.name = ""; },
           [](BatchPlannerRow& row) { row.make = {}; },
           [](BatchPlannerRow& row) { row.sizes = {}; }}) {
    BatchPlannerRow less = own;
    spoil(less);
    EXPECT_THROW(add_batch_planners({less}), std::invalid_argument);
  }
  EXPECT_EQ(names_of(batch_planners()), brought);
}

TEST(GroupingPlanners, AreAddedAndRemoved) {
  const std::vector<std::string> brought = names_of(grouping_planners());
  GroupingPlannerRow own = grouping_planner("fast");
  own.name = "own";
  own.old_name = "";
  add_grouping_planners({own});
  EXPECT_EQ(std::string(grouping_planner("own").name), "own");
  remove_grouping_planner("own");
  EXPECT_THROW(grouping_planner("own"), std::invalid_argument);
  EXPECT_THROW(remove_grouping_planner("own"), std::invalid_argument);
  EXPECT_THROW(remove_grouping_planner("fast"), std::invalid_argument);
  EXPECT_EQ(names_of(grouping_planners()), brought);
}

}  // namespace
}  // namespace paradyse
