#include "src/run/kernels/cpu/regions.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>

#include "paradyse/plan/detail/index.h"
#include "src/run/kernels/cpu/vectors.h"

namespace paradyse::kernels {
namespace {

// Goes over the elements of a region in stretches of neighbours.
class Cursor {
 public:
  explicit Cursor(const Region& region) : region_(region), at_(region.offset) {
    if (!region_.loops.empty() && region_.loops.back().stride == 1) {
      stretch_ = region_.loops.back().count;
      outer_ = region_.loops.size() - 1;
    } else {
      outer_ = region_.loops.size();
    }
    left_ = stretch_;
  }

  [[nodiscard]] std::int64_t offset() const { return at_ + stretch_ - left_; }
  [[nodiscard]] std::int64_t left() const { return left_; }  // of the stretch
  void advance(std::int64_t count) {
    left_ -= count;
    if (left_ > 0) {
      return;
    }
    left_ = stretch_;
    for (std::size_t d = outer_; d-- > 0;) {
      const Region::Loop& loop = region_.loops[d];
      at_ += loop.stride;
      if (++index_[d] < loop.count) {
        return;
      }
      at_ -= loop.count * loop.stride;
      index_[d] = 0;
    }
  }

 private:
  Region region_;
  std::int64_t at_;  // of the stretch
  std::int64_t stretch_ = 1;
  std::int64_t left_ = 1;
  std::size_t outer_ = 0;  // loops around the stretch
  std::array<std::int64_t, kMaxDims> index_ = {};
};

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

// to[i] = (accumulate ? to[i] : 0) + sources[0][i] + sources[1][i] + ...  Sums of bfloat16 are made
// in float32 and rounded once.
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

}  // namespace

void copy_region(
    char* to,
    const Region& to_region,
    const char* from,
    const Region& from_region,
    std::int64_t item) {
  Cursor source(from_region);
  Cursor destination(to_region);
  for (std::int64_t left = from_region.elements(); left > 0;) {
    const std::int64_t count = std::min(source.left(), destination.left());
    std::memcpy(to + destination.offset() * item, from + source.offset() * item, idx(count * item));
    source.advance(count);
    destination.advance(count);
    left -= count;
  }
}

void copy_region(
    const at::Tensor& to, const Region& to_region, const at::Tensor& from, const Region& region) {
  copy_region(
      static_cast<char*>(to.mutable_data_ptr()),
      to_region,
      static_cast<const char*>(from.const_data_ptr()),
      region,
      static_cast<std::int64_t>(to.element_size()));
}

void sum_regions(
    const at::Tensor& to,
    const Region& region,
    const std::vector<Summand>& sources,
    bool accumulate) {
  if (sources.empty()) {
    return;
  }
  char* const data = static_cast<char*>(to.mutable_data_ptr());
  const auto to_item = static_cast<std::int64_t>(to.element_size());
  const at::ScalarType type = sources.front().tensor.scalar_type();
  const auto item = static_cast<std::int64_t>(c10::elementSize(type));
  Cursor mine(region);
  std::vector<const char*> begins;
  std::vector<Cursor> cursors;
  for (const auto& [tensor, at] : sources) {
    begins.push_back(static_cast<const char*>(tensor.const_data_ptr()));
    cursors.emplace_back(at);
  }
  std::vector<const void*> parts(sources.size());
  for (std::int64_t left = region.elements(); left > 0;) {
    std::int64_t count = mine.left();
    for (std::size_t b = 0; b < cursors.size(); ++b) {
      count = std::min(count, cursors[b].left());
      parts[b] = begins[b] + cursors[b].offset() * item;
    }
    sum_into(data + mine.offset() * to_item, to.scalar_type(), parts, type, count, accumulate);
    mine.advance(count);
    for (Cursor& cursor : cursors) {
      cursor.advance(count);
    }
    left -= count;
  }
}

}  // namespace paradyse::kernels
