// How fast a grouping can be at best.
#pragma once

#include <string>

#include "src/plan/search/grouping/grouping.h"

namespace paradyse {

struct LowerBound {
  double seconds = 0;
  std::string name;  // of the argument that gave it: "area", ...
};

// min over M >= tokens / capacity of  M b + max( (1/N) sum_k min_d d t_k(d), max_k min_d t_k(d) ).
LowerBound area_bound(const GroupingTask& task);
// The largest of all bounds that are known here.
LowerBound lower_bound(const GroupingTask& task);

}  // namespace paradyse
