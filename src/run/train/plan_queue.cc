#include "src/run/train/plan_queue.h"

#include <algorithm>
#include <utility>

#include "src/run/measure/measure.h"
#include "src/run/train/behind_training.h"
#include "src/run/train/plan_or_throw.h"

namespace paradyse {

PlanQueue::PlanQueue(std::unique_ptr<BatchPlanner> planner) : planner_(std::move(planner)) {}

PlanQueue::~PlanQueue() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void PlanQueue::ask(std::size_t step, BatchSizes sizes, BatchPlanner::Learned learned) {
  {
    const std::lock_guard lock(mutex_);
    batches_.push_back(std::make_shared<Batch>(Batch{
        .step = step,
        .sizes = std::move(sizes),
        .learned = std::move(learned),
        .asked = Clock::now()}));
  }
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

bool PlanQueue::ready(std::size_t step, double seconds) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Batch> batch = *find(step);
  const auto until = batch->asked + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(seconds));
  return changed_.wait_until(lock, until, [&] { return batch->over; });
}

Plan PlanQueue::take(std::size_t step) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Batch> batch = *find(step);
  changed_.wait(lock, [&] { return batch->over; });
  batches_.erase(find(step));
  if (batch->error) {
    std::rethrow_exception(batch->error);
  }
  return *std::move(batch->plan);
}

void PlanQueue::forget(std::size_t step) {
  const std::lock_guard lock(mutex_);
  batches_.erase(find(step));
}

void PlanQueue::forget_all() {
  const std::lock_guard lock(mutex_);
  batches_.clear();
}

BatchPlanner& PlanQueue::at_rest() {
  std::unique_lock lock(mutex_);
  batches_.clear();
  changed_.wait(lock, [&] { return !under_way_; });
  learned_.reset();
  return *planner_;
}

PlanQueue::Batches::iterator PlanQueue::find(std::size_t step) {
  const auto found =
      std::ranges::find(batches_, step, [](const auto& batch) { return batch->step; });
  if (found == batches_.end()) {
    throw std::logic_error("PlanQueue: step " + std::to_string(step) + " was not asked for");
  }
  return found;
}

void PlanQueue::run() {
  run_behind_training(Behind::soon);
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<Batch> next;
    changed_.wait(lock, [&] {
      const auto found = std::ranges::find(batches_, false, [](const auto& b) { return b->begun; });
      next = found == batches_.end() ? nullptr : *found;
      return ending_ || next != nullptr;
    });
    if (ending_) {
      return;
    }
    next->begun = true;
    under_way_ = true;
    lock.unlock();
    plan(*next);
    lock.lock();
    next->over = true;
    under_way_ = false;
    changed_.notify_all();
  }
}

// Nobody looks at the batch or the planner meanwhile.
void PlanQueue::plan(Batch& batch) {
  try {
    if (learned_ != batch.learned) {  // else what the planner remembers still holds
      planner_->learn(batch.learned);
      learned_ = batch.learned;
    }
    const auto begin = Clock::now();
    batch.plan = plan_or_throw(*planner_, batch.sizes);
    batch.plan->planner_seconds = seconds_since(begin);
  } catch (...) {
    batch.error = std::current_exception();
  }
}

}  // namespace paradyse
