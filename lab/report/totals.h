// Sums over steps of what `paradyse-lab switching` measured; what summaries and the page stand
// on.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "lab/report/switching.h"
#include "paradyse/plan/profile.h"
#include "src/plan/base/median.h"

namespace paradyse {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();  // of no steps

using StepNumbers = std::vector<std::size_t>;  // ascending, into SwitchingRun::steps

// The steps that the run fits.
StepNumbers fitting_steps(const SwitchingRun& run);

// The steps that stand in both.
StepNumbers shared(const StepNumbers& a, const StepNumbers& b);

// The steps that every static run fits; all, where there is no static run.
StepNumbers common_steps(const SwitchingCorpus& corpus);

// Mean over the run's steps of its seconds over those of the fastest run of that step, less one.
// The fastest is picked by every second repeat and both are judged by the others, then the other
// way round; all numbers are medians of such repeats, and the mean is of both.  NaN where the run
// fits no step or has one repeat.
double over_fastest(const SwitchingRun& run, const SwitchingCorpus& corpus);

// Whether the run fits each of these steps, and there are any.
bool fits_all(const SwitchingRun& run, const StepNumbers& steps);

// For each repeat the seconds of these steps, which the run has to fit.
std::vector<double> sums(const SwitchingRun& run, const StepNumbers& steps);

// Of sums(); all NaN where the run has no repeat.
Spread total(const SwitchingRun& run, const StepNumbers& steps);

// How far predictions were off over the steps that fit and are predicted: of predicted / measured
// - 1 the mean of the absolute values, the mean, and the one that is farthest from 0.
struct SwitchingError {
  std::size_t steps = 0;  // predicted; else all NaN
  double absolute = 0;
  double mean = 0;
  double worst = 0;
};
SwitchingError time_error(const SwitchingRun& run);
SwitchingError memory_error(const SwitchingRun& run);

// The run of this name, or nullptr.
const SwitchingRun* run_named(const SwitchingCorpus& corpus, const std::string& name);

}  // namespace paradyse
