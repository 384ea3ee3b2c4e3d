// Draws that are the same on every machine, which std's distributions do not promise.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>

namespace paradyse {

class Draw {
 public:
  Draw(std::uint64_t seed, std::uint64_t draw) {
    std::seed_seq words{seed, seed >> 32U, draw, draw >> 32U};
    random_.seed(words);
  }

  // In [0, 1).
  double uniform() { return static_cast<double>(random_() >> 11U) * 0x1p-53; }
  std::int64_t below(std::int64_t count) {
    return std::min(count - 1, static_cast<std::int64_t>(uniform() * static_cast<double>(count)));
  }
  double normal() {  // Box and Muller 1958
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }
  void skip_normal(std::int64_t count) {
    random_.discard(2 * static_cast<unsigned long long>(count));
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace paradyse
