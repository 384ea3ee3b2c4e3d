#include "src/run/execute/kept_programs.h"

#include <algorithm>
#include <utility>

namespace paradyse {

const Timeline& KeptPrograms::of(const GroupTask& task, const Model& model) {
  if (const auto found = std::ranges::find(kept_, task, &Kept::task); found != kept_.end()) {
    found->batch = batch_;
    kept_.splice(kept_.end(), kept_, found);
    return found->programs;
  }
  Timeline programs = timeline(task, model);
  ++built_;
  if (kept_.size() == kMost) {
    if (kept_.front().batch == batch_) {
      passing_ = std::move(programs);
      return passing_;
    }
    kept_.pop_front();
  }
  kept_.push_back({.task = task, .programs = std::move(programs), .batch = batch_});
  return kept_.back().programs;
}

}  // namespace paradyse
