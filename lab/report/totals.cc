#include "lab/report/totals.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

namespace paradyse {

namespace {

struct Prediction {
  double predicted;
  double measured;
};

// Median of every second repeat from `first` on; NaN: there is none.
double half(const SwitchingStep& step, std::size_t first) {
  std::vector<double> seconds;
  for (std::size_t i = first; i < step.seconds.size(); i += 2) {
    seconds.push_back(step.seconds[i]);
  }
  return median(std::move(seconds));
}

SwitchingError error_of(const std::vector<Prediction>& predictions) {
  SwitchingError error{.steps = predictions.size()};
  for (const Prediction& one : predictions) {
    const double off = one.predicted / one.measured - 1;
    error.absolute += std::abs(off);
    error.mean += off;
    if (std::abs(off) > std::abs(error.worst)) {
      error.worst = off;
    }
  }
  const auto count = static_cast<double>(predictions.size());
  error.absolute /= count;
  error.mean /= count;
  if (predictions.empty()) {
    error.worst = kNone;
  }
  return error;
}

}  // namespace

StepNumbers fitting_steps(const SwitchingRun& run) {
  StepNumbers steps;
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    if (run.steps[i].fits) {
      steps.push_back(i);
    }
  }
  return steps;
}

StepNumbers shared(const StepNumbers& a, const StepNumbers& b) {
  StepNumbers both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

StepNumbers common_steps(const SwitchingCorpus& corpus) {
  StepNumbers steps(corpus.runs.empty() ? 0 : corpus.runs.front().steps.size());
  std::iota(steps.begin(), steps.end(), std::size_t{0});
  for (const SwitchingRun& run : corpus.runs) {
    if (run.kind == "static") {
      steps = shared(steps, fitting_steps(run));
    }
  }
  return steps;
}

double over_fastest(const SwitchingRun& run, const SwitchingCorpus& corpus) {
  double sum = 0;
  std::size_t judged = 0;
  for (const std::size_t i : fitting_steps(run)) {
    if (run.steps[i].seconds.size() < 2) {
      continue;
    }
    for (const std::size_t first : {0U, 1U}) {
      const SwitchingRun* fastest = &run;
      double least = half(run.steps[i], first);
      for (const SwitchingRun& other : corpus.runs) {
        const double its = half(other.steps[i], first);  // NaN: it has none
        if (its < least) {
          least = its;
          fastest = &other;
        }
      }
      const double theirs = half(fastest->steps[i], 1 - first);
      if (std::isnan(theirs)) {
        continue;  // picked by its only repeat
      }
      sum += half(run.steps[i], 1 - first) / theirs - 1;
      ++judged;
    }
  }
  return judged == 0 ? kNone : sum / static_cast<double>(judged);
}

bool fits_all(const SwitchingRun& run, const StepNumbers& steps) {
  return !steps.empty() &&
         std::all_of(steps.begin(), steps.end(), [&](std::size_t i) { return run.steps[i].fits; });
}

std::vector<double> sums(const SwitchingRun& run, const StepNumbers& steps) {
  std::size_t repeats = std::numeric_limits<std::size_t>::max();
  for (const std::size_t i : fitting_steps(run)) {
    repeats = std::min(repeats, run.steps[i].seconds.size());
  }
  std::vector<double> sums(fitting_steps(run).empty() ? 0 : repeats);
  for (const std::size_t i : steps) {
    for (std::size_t repeat = 0; repeat < sums.size(); ++repeat) {
      sums[repeat] += run.steps[i].seconds[repeat];
    }
  }
  return sums;
}

Spread total(const SwitchingRun& run, const StepNumbers& steps) {
  const std::vector<double> all = sums(run, steps);
  if (all.empty()) {
    return {.median = kNone, .least = kNone, .most = kNone};
  }
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  return {.median = median(all), .least = *least, .most = *most};
}

SwitchingError time_error(const SwitchingRun& run) {
  std::vector<Prediction> predictions;
  for (const SwitchingStep& step : run.steps) {
    if (step.fits && step.predicted_seconds > 0) {
      predictions.push_back(
          {.predicted = step.predicted_seconds, .measured = median(step.seconds)});
    }
  }
  return error_of(predictions);
}

SwitchingError memory_error(const SwitchingRun& run) {
  std::vector<Prediction> predictions;
  for (const SwitchingStep& step : run.steps) {
    if (step.fits && step.predicted_peak_bytes > 0 && step.peak_bytes > 0) {
      predictions.push_back(
          {.predicted = static_cast<double>(step.predicted_peak_bytes),
           .measured = static_cast<double>(step.peak_bytes)});
    }
  }
  return error_of(predictions);
}

const SwitchingRun* run_named(const SwitchingCorpus& corpus, const std::string& name) {
  const auto found = std::find_if(
      corpus.runs.begin(), corpus.runs.end(), [&](const auto& run) { return run.name == name; });
  return found == corpus.runs.end() ? nullptr : &*found;
}

}  // namespace paradyse
