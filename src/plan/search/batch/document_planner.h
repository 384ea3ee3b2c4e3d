// The planners of batches of documents: each has a row in batch_planners().
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "src/plan/search/batch/document_plans.h"

namespace paradyse {

// Of documents of a language model.
class DocumentPlanner : public BatchPlanner {
 public:
  // Throws like DocumentPlans.
  explicit DocumentPlanner(PlanningTask task) : documents_(std::move(task)) {}

  DocumentPlans& documents() { return documents_; }

 protected:
  virtual Answer make(const std::vector<std::int64_t>& lengths, Caps caps) = 0;

 private:
  Answer make(const BatchSizes& batch, Caps caps) final {
    return documents_.faster_of_both([&] { return make(batch.lengths, caps); });
  }
  [[nodiscard]] const Planning& planning() const final { return documents_; }
  Planning& planning() final { return documents_; }

  DocumentPlans documents_;
};

}  // namespace paradyse
