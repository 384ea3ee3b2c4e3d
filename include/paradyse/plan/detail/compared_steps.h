// A run beside the best static plan (static_strategy.h), as measured: the same batches, in turn.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>

namespace paradyse {

// A step whose batch was also played by one strategy for all documents.
struct ComparedStep {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  std::string strategy = {};
  double seconds = kNone;            // of a step by the static plan; NaN: that did not fit
  double predicted_seconds = kNone;  // NaN: no such plan fits the batch
  double ours = 0;                   // seconds of the step as it was trained
};

struct MeasuredComparison {
  std::string strategy = {};
  std::int64_t steps = 0;        // that both have run
  std::int64_t did_not_fit = 0;  // that the static plans have not
  double seconds = 0;            // of the static plans, on `steps`
  double ours = 0;               // of the run's plans, on the same
  // The geometric mean of seconds / ours of the steps, and its interval of 95 %: Student's t on the
  // logarithms.  NaN: of no step; of one step there is no interval.
  double ratio = ComparedStep::kNone;
  double low = ComparedStep::kNone;
  double high = ComparedStep::kNone;

  // The interval leaves no room for plans that are equally fast.
  [[nodiscard]] bool differs() const { return low > 1 || high < 1; }
};

// Of the steps whose strategy is that of the last one; nothing: there are none.
std::optional<MeasuredComparison> measured_comparison(std::span<const ComparedStep> steps);

// "measured beside the best static plan (UlyssesZ, 6 steps): 1.21 times its speed (1.15 to 1.27)"
std::string text_of(const MeasuredComparison& one);

}  // namespace paradyse
