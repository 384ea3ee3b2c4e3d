#include "src/plan/search/grouping/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace paradyse {

LowerBound area_bound(const GroupingTask& task) {
  double area = 0;     // rank seconds
  double longest = 0;  // seconds
  std::int64_t tokens = 0;
  for (int k = 0; k < task.documents(); ++k) {
    double least_area = std::numeric_limits<double>::infinity();
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t t = 0; t < task.types.size(); ++t) {
      const auto type = static_cast<int>(t);
      if (task.fits(type, task.lengths[idx(k)])) {
        least_area = std::min(least_area, task.types[t].ranks * task.at(type, k));
        least = std::min(least, task.at(type, k) + task.types[t].fixed_seconds);
      }
    }
    area += least_area;
    longest = std::max(longest, least);
    tokens += task.lengths[idx(k)];
  }
  if (task.documents() == 0) {
    return {.seconds = 0, .name = "area"};
  }
  // Room of a rank, at best.
  double room = 0;
  for (const GroupType& type : task.types) {
    room = std::max(room, static_cast<double>(type.capacity) / type.ranks);
  }
  const double least_micro_batches = std::max(1.0, std::ceil(static_cast<double>(tokens) / (room * task.ranks) - 1e-9));
  const double work = std::max(area / task.ranks, longest);
  const double beside = least_micro_batches * task.micro_batch_seconds;
  return {.seconds = task.overlapped ? std::max(work, beside) : work + beside, .name = "area"};
}

LowerBound lower_bound(const GroupingTask& task) { return area_bound(task); }

}  // namespace paradyse
