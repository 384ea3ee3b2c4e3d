// Peak memory as a target of fits, beside seconds: what the fold says of it, and what the published
// model would.
//
// Both are judged by the code that judges seconds, so peaks take the form of parts: the bytes that
// a step took at most stand in the place of seconds, those that were counted among its work.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/profile.h"

namespace paradyse {

inline constexpr const char* kPeakMemory = "peak memory";  // the part

// Of the steps that were measured; their strategy is "METP+gather".
std::vector<PartProbe> peak_probes(const Profile& profile);

// The program's fold, times one plus `overhead`.
class FoldedPeak final : public TimeModel {
 public:
  explicit FoldedPeak(double overhead) : overhead_(overhead) {}

  [[nodiscard]] std::string name() const override { return "structured"; }
  [[nodiscard]] bool by_work() const override { return true; }
  [[nodiscard]] PartSeconds seconds(const PartQuestion& question) const override;  // bytes

  [[nodiscard]] double overhead() const { return overhead_; }

 private:
  double overhead_;
};

// The overhead is the largest excess of a measured peak over the counted one.
std::shared_ptr<const FoldedPeak> fit_folded_peak(std::span<const PartProbe> peaks);

}  // namespace paradyse
