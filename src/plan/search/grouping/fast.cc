// The fast planner: a beam search over micro-batches, then pairs of them solved again.
#include <algorithm>
#include <cstdio>
#include <limits>

#include "src/plan/search/grouping/fast/beam.h"
#include "src/plan/search/grouping/fast/improve.h"
#include "src/plan/search/grouping/planners.h"

namespace paradyse {
namespace {

Grouping grouping_of(const fast::Items& items, const std::vector<fast::Packed>& micro_batches) {
  Grouping grouping;
  for (const fast::Packed& packed : micro_batches) {
    Grouping::MicroBatch& micro_batch = grouping.micro_batches.emplace_back();
    for (const int type : packed.types) {
      micro_batch.push_back({.type = type, .documents = {}});
    }
    for (std::size_t i = 0; i < packed.items.size(); ++i) {
      micro_batch[idx(packed.groups[i])].documents.push_back(items.document(packed.items[i]));
    }
    for (Grouping::Group& group : micro_batch) {
      std::ranges::sort(group.documents);
    }
  }
  grouping.seconds = seconds_of(items.task(), grouping);
  return grouping;
}

constexpr fast::BeamOptions kStarts[] = {
    {.width = 2, .price = 1.05, .fill = 1.0}, {.width = 2, .price = 1.25, .fill = 0.9}};
// Budgets, as times that each item is looked at.
constexpr double kReshaped = 300;
constexpr double kPaired = 300;

GroupingAnswer plan(const GroupingTask& task, const GroupingOptions& options) {
  const fast::Items items(task);
  fast::Packer packer(items);
  std::vector<fast::Packed> best;
  double least = std::numeric_limits<double>::infinity();
  const auto visits = [&](double of_each) {
    return packer.work() + static_cast<std::int64_t>(options.moves * of_each * items.size());
  };
  for (const fast::BeamOptions& start : kStarts) {
    std::vector<fast::Packed> found = fast::beam(packer, start);
    squeeze(packer, found);
    reshape(packer, found, visits(kReshaped));
    const double seconds = fast::seconds_of(task, found);
    if (seconds < least) {
      least = seconds;
      best = std::move(found);
    }
  }
  improve(packer, best, visits(kPaired));
  return {.grouping = grouping_of(items, best), .tried = packer.work()};
}

}  // namespace

GroupingPlannerRow fast_planner() { return {.name = "fast", .summary = "", .plan = plan}; }

}  // namespace paradyse
