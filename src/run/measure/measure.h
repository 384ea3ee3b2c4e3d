// What measurements share.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "paradyse/plan/profile.h"
#include "src/plan/base/median.h"

namespace paradyse {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Pre: there are some.
inline Spread spread_of(const std::vector<double>& values) {
  return {
      .median = median(values),
      .least = *std::min_element(values.begin(), values.end()),
      .most = *std::max_element(values.begin(), values.end())};
}

}  // namespace paradyse
