#include "src/plan/search/grouping/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace paradyse {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Sums that all bounds use.
struct Totals {
  double area = 0;          // rank seconds, each document where it needs least
  double longest = 0;       // seconds of the document that takes longest where it is fastest
  double micro_batches = 0; // that their tokens need at least
};

// Tokens that find room in a micro-batch, at best.
double room(const GroupingTask& task) {
  double most = 0;  // of a rank
  for (const GroupType& type : task.types) {
    most = std::max(most, static_cast<double>(type.capacity) / type.ranks);
  }
  return most * task.ranks;
}

Totals totals(const GroupingTask& task) {
  Totals sum;
  double tokens = 0;
  for (int k = 0; k < task.documents(); ++k) {
    double least_area = kNever;
    double least = kNever;
    for (std::size_t t = 0; t < task.types.size(); ++t) {
      const auto type = static_cast<int>(t);
      if (task.fits(type, task.lengths[idx(k)])) {
        least_area = std::min(least_area, task.types[t].ranks * task.at(type, k));
        least = std::min(least, task.at(type, k) + task.types[t].fixed_seconds);
      }
    }
    sum.area += least_area;
    sum.longest = std::max(sum.longest, least);
    tokens += static_cast<double>(task.lengths[idx(k)]);
  }
  sum.micro_batches = std::max(1.0, std::ceil(tokens / room(task) - 1e-9));
  return sum;
}

// Of micro-batches that take `work` seconds together beside b.
double with_beside(const GroupingTask& task, double micro_batches, double work) {
  const double beside = micro_batches * task.micro_batch_seconds;
  return task.overlapped ? std::max(work, beside) : work + beside;
}

}  // namespace

LowerBound area_bound(const GroupingTask& task) {
  if (task.documents() == 0) {
    return {.seconds = 0, .name = "area"};
  }
  const Totals sum = totals(task);
  return {
      .seconds = with_beside(
          task, sum.micro_batches, std::max(sum.area / task.ranks, sum.longest)),
      .name = "area"};
}

LowerBound longest_micro_batch_bound(const GroupingTask& task) {
  if (task.documents() == 0) {
    return {.seconds = 0, .name = "longest micro-batch"};
  }
  // A document under a type, which it can have once the longest micro-batch takes `seconds`.
  struct Event {
    double seconds = 0;
    int document = 0;
    double area = 0;
  };
  std::vector<Event> events;
  const Totals sum = totals(task);
  double tokens = 0;
  for (int k = 0; k < task.documents(); ++k) {
    tokens += static_cast<double>(task.lengths[idx(k)]);
    for (std::size_t t = 0; t < task.types.size(); ++t) {
      const auto type = static_cast<int>(t);
      if (task.fits(type, task.lengths[idx(k)])) {
        events.push_back(
            {.seconds = task.at(type, k) + task.types[t].fixed_seconds,
             .document = k,
             .area = task.types[t].ranks * task.at(type, k)});
      }
    }
  }
  std::ranges::sort(events, {}, &Event::seconds);
  const double ranks = task.ranks;
  const double price = sum.area / tokens;  // of memory, rank seconds a token: any number is valid
  const double memory = room(task) * price;
  std::vector<double> area(task.lengths.size(), kNever);
  int missing = task.documents();  // documents that no type runs within the time
  double work = 0;                 // sum of areas
  double dense = 0;                // sum of what areas are above the price of their tokens
  double best = kNever;
  for (std::size_t e = 0; e < events.size(); ++e) {
    const Event& event = events[e];
    double& mine = area[idx(event.document)];
    if (event.area < mine) {
      const double floor = price * static_cast<double>(task.lengths[idx(event.document)]);
      if (mine == kNever) {
        --missing;
      } else {
        work -= mine;
        dense -= std::max(0.0, mine - floor);
      }
      mine = event.area;
      work += mine;
      dense += std::max(0.0, mine - floor);
    }
    if (missing == 0 && (e + 1 == events.size() || events[e + 1].seconds > event.seconds)) {
      const double longest = event.seconds;
      const double inside = std::min(ranks * longest, memory + dense);  // work that it can do
      best = std::min(best, longest + std::max(0.0, work - inside) / ranks);
    }
  }
  return {
      .seconds = with_beside(task, sum.micro_batches, best), .name = "longest micro-batch"};
}

LowerBound lower_bound(const GroupingTask& task) {
  const LowerBound area = area_bound(task);
  const LowerBound longest = longest_micro_batch_bound(task);
  return longest.seconds > area.seconds ? longest : area;
}

}  // namespace paradyse
