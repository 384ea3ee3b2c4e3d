#include "src/run/kernels/cpu/sum_rows.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "src/run/kernels/cpu/vectors.h"

namespace paradyse {
namespace {

using kernels::put;
using kernels::wide;

// Element by element over stretches that stay in the first cache.
template <typename To, typename Source, typename Sum>
inline __attribute__((always_inline)) void sum(
    To* to, const std::vector<const void*>& sources, std::int64_t count, bool accumulate) {
  constexpr std::int64_t kStretch = 1024;
  Sum part[kStretch];
  for (std::int64_t begin = 0; begin < count; begin += kStretch) {
    const std::int64_t n = std::min(kStretch, count - begin);
    if (accumulate) {
      for (std::int64_t i = 0; i < n; ++i) {
        part[i] = wide(to[begin + i]);
      }
    } else {
      std::fill(part, part + n, Sum{0});
    }
    for (const void* source : sources) {
      const Source* from = static_cast<const Source*>(source) + begin;
      for (std::int64_t i = 0; i < n; ++i) {
        part[i] += wide(from[i]);
      }
    }
    for (std::int64_t i = 0; i < n; ++i) {
      put(to[begin + i], part[i]);
    }
  }
}

}  // namespace

PARADYSE_CLONES void sum_into(
    void* to,
    at::ScalarType to_type,
    const std::vector<const void*>& sources,
    at::ScalarType source_type,
    std::int64_t count,
    bool accumulate) {
  using at::BFloat16;
  using at::Half;
  if (to_type == at::kFloat && source_type == at::kFloat) {
    sum<float, float, float>(static_cast<float*>(to), sources, count, accumulate);
  } else if (to_type == at::kDouble && source_type == at::kDouble) {
    sum<double, double, double>(static_cast<double*>(to), sources, count, accumulate);
  } else if (to_type == at::kBFloat16 && source_type == at::kBFloat16) {
    sum<BFloat16, BFloat16, float>(static_cast<BFloat16*>(to), sources, count, accumulate);
  } else if (to_type == at::kFloat && source_type == at::kBFloat16) {
    sum<float, BFloat16, float>(static_cast<float*>(to), sources, count, accumulate);
  } else if (to_type == at::kHalf && source_type == at::kHalf) {
    sum<Half, Half, float>(static_cast<Half*>(to), sources, count, accumulate);
  } else if (to_type == at::kFloat && source_type == at::kHalf) {
    sum<float, Half, float>(static_cast<float*>(to), sources, count, accumulate);
  } else if (to_type == at::kLong && source_type == at::kLong) {
    sum<std::int64_t, std::int64_t, std::int64_t>(
        static_cast<std::int64_t*>(to), sources, count, accumulate);
  } else {
    throw std::invalid_argument(
        std::string("sum of ") + c10::toString(source_type) + " into " + c10::toString(to_type) +
        " is not supported");
  }
}

}  // namespace paradyse
