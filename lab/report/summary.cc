// What each run took, and which static run the others are judged by.
#include <algorithm>

#include "lab/report/totals.h"

namespace paradyse {

std::vector<SwitchingSummary> summaries(const SwitchingCorpus& corpus) {
  const StepNumbers common = common_steps(corpus);
  std::vector<SwitchingSummary> summaries;
  for (const SwitchingRun& run : corpus.runs) {
    const StepNumbers fitting = fitting_steps(run);
    const Spread all = fitting.empty() ? Spread{} : total(run, fitting);
    const Spread shared = fits_all(run, common)
                              ? total(run, common)
                              : Spread{.median = kNone, .least = kNone, .most = kNone};
    summaries.push_back(
        {.run = run.name,
         .steps = static_cast<std::int64_t>(run.steps.size()),
         .steps_that_fit = static_cast<std::int64_t>(fitting.size()),
         .seconds = all.median,
         .least = all.least,
         .most = all.most,
         .seconds_on_common = shared.median,
         .common_least = shared.least,
         .common_most = shared.most,
         .time_error = time_error(run).absolute,
         .memory_error = memory_error(run).absolute,
         .over_fastest = over_fastest(run, corpus)});
  }
  return summaries;
}

std::string best_static(const SwitchingCorpus& corpus) {
  std::size_t most = 0;
  for (const SwitchingRun& run : corpus.runs) {
    if (run.kind == "static") {
      most = std::max(most, fitting_steps(run).size());
    }
  }
  if (most == 0) {
    return "";
  }
  std::vector<const SwitchingRun*> candidates;
  StepNumbers all;  // that all candidates fit
  for (const SwitchingRun& run : corpus.runs) {
    const StepNumbers fitting = fitting_steps(run);
    if (run.kind == "static" && fitting.size() == most) {
      all = candidates.empty() ? fitting : shared(all, fitting);
      candidates.push_back(&run);
    }
  }
  return (*std::min_element(
              candidates.begin(),
              candidates.end(),
              [&](const SwitchingRun* a, const SwitchingRun* b) {
                return total(*a, all).median < total(*b, all).median;
              }))
      ->name;
}

}  // namespace paradyse
