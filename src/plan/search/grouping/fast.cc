// The fast planner: micro-batches one after the other by a beam search, their durations reshaped,
// pairs of them solved again (fast/).  It begins from several starts, among them the best plans
// of groups of one size, so it is never worse than those; tiny cases are solved to the optimum.
//
// All it does is packing (fast/packer.h): the budget counts the items that it goes through.
#include <algorithm>
#include <cstdint>
#include <future>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "src/plan/search/grouping/fast/beam.h"
#include "src/plan/search/grouping/fast/improve.h"
#include "src/plan/search/grouping/fast/polish.h"
#include "src/plan/search/grouping/packing.h"
#include "src/plan/search/grouping/table.h"

namespace paradyse {
namespace {

using fast::BeamOptions;
using fast::Items;
using fast::Packed;
using fast::Packer;

// Found by trying, on 20 batches of each source of lengths: wider beams gain nothing, other prices
// find other plans.
constexpr BeamOptions kStarts[] = {
    {.width = 2, .price = 1.05, .fill = 1.0}, {.width = 2, .price = 1.25, .fill = 0.9}};
// Steps of the exact planner, a third of a second: 14 documents on 8 ranks.  Packing misses such
// optima by up to 4 %, however often it is tried.
constexpr double kTiny = 8e7;
// Documents, of which no second plan of groups of one size is tried.
constexpr int kMany = 4096;
// Budgets: how often each item is packed, and packings in all, of a start and of the pairs.
constexpr double kReshaped = 200;
constexpr double kPaired = 400;
constexpr double kMostWork = 2e6;

std::vector<BeamOptions> starts_of(const GroupingOptions& options) {
  std::vector<BeamOptions> starts(std::begin(kStarts), std::end(kStarts));
  std::mt19937_64 draw(options.seed);
  const auto between = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(draw() >> 11) * 0x1p-53;
  };
  for (int more = static_cast<int>(options.moves) - 1; more > 0; --more) {
    starts.push_back({.width = 3, .price = between(1.0, 1.4), .fill = between(0.85, 1.0)});
  }
  return starts;
}

Grouping grouping_of(const Items& items, const std::vector<Packed>& micro_batches) {
  Grouping grouping;
  for (const Packed& packed : micro_batches) {
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

std::vector<Packed> packed_of(const Items& items, const Grouping& grouping) {
  std::vector<int> item_of(idx(items.size()));
  for (int item = 0; item < items.size(); ++item) {
    item_of[idx(items.document(item))] = item;
  }
  std::vector<Packed> micro_batches;
  for (const Grouping::MicroBatch& micro_batch : grouping.micro_batches) {
    Packed& packed = micro_batches.emplace_back();
    for (std::size_t g = 0; g < micro_batch.size(); ++g) {
      packed.types.push_back(micro_batch[g].type);
      for (const int document : micro_batch[g].documents) {
        packed.items.push_back(item_of[idx(document)]);
        packed.groups.push_back(static_cast<int>(g));
      }
    }
    packed.slowest = slowest_group(items.task(), micro_batch);
  }
  return micro_batches;
}

// A start and what became of it.
struct Found {
  std::vector<Packed> micro_batches;
  double seconds = std::numeric_limits<double>::infinity();
  std::int64_t work = 0;
};

std::int64_t budget(const Items& items, double moves, double times) {
  return static_cast<std::int64_t>(moves * std::min(times * items.size(), kMostWork));
}

Found begun(const Items& items, const BeamOptions& start) {
  Packer packer(items);
  Found found{.micro_batches = fast::beam(packer, start)};
  if (!found.micro_batches.empty()) {
    squeeze(packer, found.micro_batches);
    reshape(packer, found.micro_batches, packer.work() + budget(items, 1, kReshaped));
    found.seconds = fast::seconds_of(items.task(), found.micro_batches);
  }
  found.work = packer.work();
  return found;
}

GroupingAnswer plan_fast(const GroupingTask& task, const GroupingOptions& options) {
  check(task);
  if (std::string why = why_none_fits(task); !why.empty()) {
    return {.why_not = std::move(why)};
  }
  if (options.tiny_exactly && exact_steps(task) <= kTiny * std::min(1.0, options.moves)) {
    return exact_planner().plan(task, options);
  }
  const Items items(task);
  Found best;
  for (const GroupingPlannerRow& one : {homogeneous_planner(), longest_first_planner()}) {
    if (best.micro_batches.size() > 1 && task.documents() > kMany) {
      break;
    }
    const GroupingAnswer answer = one.plan_on(task, options);
    if (answer.grouping && answer.grouping->seconds < best.seconds) {
      best.micro_batches = packed_of(items, *answer.grouping);
      best.seconds = answer.grouping->seconds;
    }
  }
  const std::vector<BeamOptions> starts = starts_of(options);
  const auto threads = static_cast<std::size_t>(std::max(1, options.threads));
  std::int64_t work = 0;
  for (std::size_t first = 0; first < starts.size(); first += threads) {
    std::vector<std::future<Found>> running;
    for (std::size_t s = first; s < std::min(first + threads, starts.size()); ++s) {
      running.push_back(std::async(
          threads > 1 ? std::launch::async : std::launch::deferred,
          [&items, &start = starts[s]] { return begun(items, start); }));
    }
    for (std::future<Found>& one : running) {
      Found found = one.get();
      work += found.work;
      if (found.seconds < best.seconds) {
        best = std::move(found);
      }
    }
  }
  Packer packer(items);
  improve(packer, best.micro_batches, budget(items, options.moves, kPaired));
  for (Packed& micro_batch : best.micro_batches) {
    polish(items, micro_batch);
  }
  return {
      .grouping = grouping_of(items, best.micro_batches),
      .why_not = {},
      .optimal = false,
      .tried = work + packer.work()};
}

}  // namespace

GroupingPlannerRow fast_planner() {
  return {
      .name = "fast",
      .summary = "beam search, then pairs of micro-batches are improved",
      .plan = plan_fast,
      .knows_pools = true};
}

}  // namespace paradyse
