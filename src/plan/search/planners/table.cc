// The batch planners there are.
#include "src/plan/search/batch/table.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "src/plan/base/known_row.h"
#include "src/plan/base/row_table.h"
#include "src/plan/base/text_match.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/plan/search/layouts/sample_planner.h"

namespace paradyse {

namespace {

// A planner of documents; samples are planned for in groups of its sizes.
BatchPlannerRow for_any_model(BatchPlannerRow row) {
  row.samples = true;
  row.make = [of_documents = std::move(row.make),
              sizes = row.sizes](PlanningTask task) -> std::unique_ptr<BatchPlanner> {
    if (!task.model.of_samples()) {
      return of_documents(std::move(task));
    }
    std::vector<int> ranks = sizes(task.ranks);
    return std::make_unique<SamplePlanner>(std::move(task), std::move(ranks));
  };
  return row;
}

std::vector<BatchPlannerRow> rows_brought() {
  std::vector<BatchPlannerRow> all = {
      for_any_model(borders()), for_any_model(whole_or_split()), for_any_model(flexsp())};
  for (const BatchPlannerRow& one : groups_of_one_size()) {
    all.push_back(for_any_model(one));
  }
  return all;
}

RowTable<BatchPlannerRow>& table() {
  static RowTable<BatchPlannerRow> table(
      rows_brought(), "add_batch_planners", "remove_batch_planner");
  return table;
}

}  // namespace

std::span<const BatchPlannerRow> batch_planners() { return table().rows(); }

void add_batch_planners(const std::vector<BatchPlannerRow>& more) {
  for (const BatchPlannerRow& row : more) {
    if (row.name.empty() || !row.make || !row.sizes) {
      throw std::invalid_argument(
          "add_batch_planners: the row '" + row.name + "' has no " +
          (row.name.empty() ? "name"
           : !row.make      ? "make"
                            : "sizes"));
    }
    if (row_named(batch_planners(), row.name) != nullptr) {
      throw std::logic_error("two batch planners are called " + row.name);
    }
    table().add(row);
  }
}

void remove_batch_planner(const std::string& name) { table().remove(name, &BatchPlannerRow::name); }

const BatchPlannerRow& batch_planner_row(const std::string& name) {
  return known_row(batch_planners(), name, "batch planner");
}

std::unique_ptr<BatchPlanner> batch_planner(PlanningTask task) {
  const BatchPlannerRow& row = batch_planner_row(task.batch_planner);
  if (task.model.of_samples() && !row.samples) {
    std::vector<std::string> others;
    for (const BatchPlannerRow& other : batch_planners()) {
      if (other.samples) {
        others.push_back(other.name);
      }
    }
    throw std::invalid_argument(
        "parallel.batch_planner '" + row.name +
        "' plans documents alone; multi-axis models are planned for by " + joined(others, ", "));
  }
  return row.make(std::move(task));
}

std::unique_ptr<DocumentPlanner> document_planner(PlanningTask task) {
  std::unique_ptr<BatchPlanner> planner = batch_planner(std::move(task));
  if (dynamic_cast<DocumentPlanner*>(planner.get()) == nullptr) {
    throw std::logic_error(
        "batch planner '" + planner->task().batch_planner + "' is no DocumentPlanner");
  }
  return std::unique_ptr<DocumentPlanner>(static_cast<DocumentPlanner*>(planner.release()));
}

}  // namespace paradyse
