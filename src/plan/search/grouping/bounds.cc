#include "src/plan/search/grouping/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/plan/search/grouping/packing.h"

namespace paradyse {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Sums that all bounds use.
struct WorkTotals {
  double area = 0;           // rank seconds, each document where it needs least
  double longest = 0;        // seconds of the document that takes longest where it is fastest
  double micro_batches = 0;  // that their tokens need at least
};

WorkTotals totals(const GroupingTask& task) {
  WorkTotals sum;
  double tokens = 0;
  for (int k = 0; k < task.documents(); ++k) {
    double least_area = kNever;
    double least = kNever;
    for (std::size_t t = 0; t < task.types.size(); ++t) {
      const auto type = static_cast<int>(t);
      if (task.fits(type, task.lengths[idx(k)])) {
        least_area = std::min(least_area, task.types[t].worth() * task.at(type, k));
        least = std::min(least, task.at(type, k) + task.types[t].fixed_seconds);
      }
    }
    sum.area += least_area;
    sum.longest = std::max(sum.longest, least);
    tokens += static_cast<double>(task.lengths[idx(k)]);
  }
  sum.micro_batches = std::max(1.0, std::ceil(tokens / micro_batch_room(task) - 1e-9));
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
  const WorkTotals sum = totals(task);
  return {
      .seconds = with_beside(task, sum.micro_batches, std::max(sum.area / task.ranks, sum.longest)),
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
  const WorkTotals sum = totals(task);
  double tokens = 0;
  for (int k = 0; k < task.documents(); ++k) {
    tokens += static_cast<double>(task.lengths[idx(k)]);
    for (std::size_t t = 0; t < task.types.size(); ++t) {
      const auto type = static_cast<int>(t);
      if (task.fits(type, task.lengths[idx(k)])) {
        events.push_back(
            {.seconds = task.at(type, k) + task.types[t].fixed_seconds,
             .document = k,
             .area = task.types[t].worth() * task.at(type, k)});
      }
    }
  }
  std::ranges::sort(events, {}, &Event::seconds);
  const double ranks = task.ranks;
  const double price = sum.area / tokens;  // of memory, rank seconds a token: any number is valid
  const double memory = micro_batch_room(task) * price;
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
  return {.seconds = with_beside(task, sum.micro_batches, best), .name = "longest micro-batch"};
}

namespace {

// What a document may need of work and memory: no other way needs less of both.
struct Need {
  double area = 0;    // rank seconds
  double memory = 0;  // rank-memories
};

// [document] the needs that some price makes the least, or more.
std::vector<std::vector<Need>> needs(const GroupingTask& task) {
  std::vector<std::vector<Need>> all(task.lengths.size());
  for (std::size_t k = 0; k < all.size(); ++k) {
    std::vector<Need> ways;
    for (std::size_t t = 0; t < task.types.size(); ++t) {
      const GroupType& type = task.types[t];
      if (task.fits(static_cast<int>(t), task.lengths[k])) {
        ways.push_back(
            {.area = type.worth() * task.at(static_cast<int>(t), static_cast<int>(k)),
             .memory = static_cast<double>(type.ranks) * static_cast<double>(task.lengths[k]) /
                       static_cast<double>(type.capacity)});
      }
    }
    std::ranges::sort(ways, {}, &Need::area);
    for (const Need& way : ways) {
      if (all[k].empty() || way.memory < all[k].back().memory * (1 - 1e-9)) {
        all[k].push_back(way);
      }
    }
  }
  return all;
}

double priced(const std::vector<std::vector<Need>>& documents, double price) {
  double sum = 0;
  for (const std::vector<Need>& ways : documents) {
    double least = kNever;
    for (const Need& way : ways) {
      least = std::min(least, way.area + price * way.memory);
    }
    sum += least;
  }
  return sum;
}

}  // namespace

LowerBound memory_bound(const GroupingTask& task) {
  LowerBound bound{.seconds = 0, .name = "work and memory"};
  if (task.documents() == 0) {
    return bound;
  }
  const std::vector<std::vector<Need>> documents = needs(task);
  double all = 0;    // memory where work is least
  double least = 0;  // memory at least
  double area = 0;
  for (const std::vector<Need>& ways : documents) {
    all += ways.front().memory;
    least += ways.back().memory;
    area += ways.front().area;
  }
  const double ranks = task.ranks;
  const double longest = totals(task).longest;
  const auto micro_batches = [&](double memory) {
    return static_cast<int>(std::max(1.0, std::ceil(memory / ranks - 1e-9)));
  };
  double best = kNever;
  for (int m = micro_batches(least); m <= micro_batches(all); ++m) {
    // The sum is concave in the price: thirds close in on its top, and any price is a bound.
    double work = area;
    double low = 0;
    double high = 4 * area / all;
    constexpr int kThirds = 12;
    for (int i = 0; i < kThirds && m < all / ranks; ++i) {
      const double left = low + (high - low) / 3;
      const double right = high - (high - low) / 3;
      const double at_left = priced(documents, left) - left * m * ranks;
      const double at_right = priced(documents, right) - right * m * ranks;
      work = std::max({work, at_left, at_right});
      (at_left < at_right ? low : high) = at_left < at_right ? left : right;
    }
    best = std::min(best, with_beside(task, m, std::max(work / ranks, longest)));
  }
  bound.seconds = best;
  return bound;
}

LowerBound lower_bound(const GroupingTask& task) {
  LowerBound best = area_bound(task);
  for (const LowerBound& bound : {longest_micro_batch_bound(task), memory_bound(task)}) {
    if (bound.seconds > best.seconds) {
      best = bound;
    }
  }
  return best;
}

}  // namespace paradyse
