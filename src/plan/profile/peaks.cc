#include "src/plan/profile/peaks.h"

#include <algorithm>

namespace paradyse {

namespace {

constexpr std::size_t kCounted = Amounts::touched_bytes;  // the amount that is bytes

double counted(const PartWork& work) { return work.phases[0].values[kCounted]; }

}  // namespace

std::vector<PartProbe> peak_probes(const Profile& profile) {
  std::vector<PartProbe> peaks;
  for (const StepProbe& step : profile.steps) {
    if (step.outcome != Outcome::measured || step.counted_peak_bytes <= 0 || step.peak_bytes <= 0) {
      continue;
    }
    PartProbe& peak = peaks.emplace_back(PartProbe{
        .part = kPeakMemory,
        .strategy = step.attention + "+" + step.mlp,
        .recompute = step.recompute,
        .ranks = step.ranks,
        .length = step.length,
        .reshard_after_backward = step.reshard_after_backward});
    const auto bytes = static_cast<double>(step.peak_bytes);
    peak.seconds[0] = {.median = bytes, .least = bytes, .most = bytes};
    peak.work.phases[0].values[kCounted] = static_cast<double>(step.counted_peak_bytes);
  }
  return peaks;
}

PartSeconds FoldedPeak::seconds(const PartQuestion& question) const {
  PartSeconds bytes;
  bytes.phases[0] = counted(question.work) * (1 + overhead_);
  return bytes;
}

std::shared_ptr<const FoldedPeak> fit_folded_peak(std::span<const PartProbe> peaks) {
  double overhead = 0;
  for (const PartProbe& peak : peaks) {
    overhead = std::max(overhead, peak.seconds[0].median / counted(peak.work) - 1);
  }
  return std::make_shared<const FoldedPeak>(overhead);
}

}  // namespace paradyse
