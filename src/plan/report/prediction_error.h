// How far predicted seconds of steps are from measured ones: a step that takes three times its
// prediction is as far off as one that takes a third.
#pragma once

#include <cmath>
#include <cstdint>

namespace paradyse {

class PredictionError {
 public:
  // Seconds; of a step for which either is not above 0 nothing is known.
  void add(double predicted, double measured) {
    if (predicted > 0 && measured > 0) {
      const double log = std::log(measured / predicted);
      signed_ += log;
      absolute_ += std::abs(log);
      ++steps_;
    }
  }
  // Measured / predicted, or its inverse where that is above 1: the geometric mean, less 1.
  [[nodiscard]] double error() const { return std::expm1(mean(absolute_)); }
  // Measured / predicted: the geometric mean; 1 where nothing is known.
  [[nodiscard]] double ratio() const { return std::exp(mean(signed_)); }

 private:
  [[nodiscard]] double mean(double sum) const {
    return steps_ == 0 ? 0 : sum / static_cast<double>(steps_);
  }

  double signed_ = 0;  // of natural logarithms, as the next
  double absolute_ = 0;
  std::int64_t steps_ = 0;
};

// Whether predictions that are off by so much do not say which of two is faster.
inline bool within_error(double ratio, double error) {
  return std::abs(std::log(ratio)) <= std::log1p(error);
}

}  // namespace paradyse
