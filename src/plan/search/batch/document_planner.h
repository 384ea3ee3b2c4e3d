// The planners of batches of documents.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "src/plan/search/batch/document_plans.h"

namespace paradyse {

// Of documents of a language model.
class DocumentPlanner : public BatchPlanner {
 public:
  // Throws like DocumentPlans.
  explicit DocumentPlanner(PlanningTask task)
      : DocumentPlanner(std::make_unique<DocumentPlans>(std::move(task))) {}

  DocumentPlans& documents() { return documents_; }

 protected:
  virtual Answer make(const std::vector<std::int64_t>& lengths, Caps caps) = 0;

 private:
  explicit DocumentPlanner(std::unique_ptr<DocumentPlans> documents)
      : BatchPlanner(std::move(documents)), documents_(static_cast<DocumentPlans&>(planning())) {}

  Answer make(const BatchSizes& batch, Caps caps) final {
    return documents_.faster_of_both([&] { return make(batch.lengths, caps); });
  }

  DocumentPlans& documents_;
};

// batch_planner() of documents.  Throws std::logic_error where that is no DocumentPlanner.
std::unique_ptr<DocumentPlanner> document_planner(PlanningTask task);

}  // namespace paradyse
