#include "paradyse/correction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace paradyse {
namespace {

constexpr std::size_t kEnough = 3;          // measurements before a factor counts
constexpr std::size_t kLately = 15;         // measurements that tell of the machine
constexpr double kWorthTelling = 1.0 / 50;  // of a factor's change

double median(const std::deque<double>& values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

}  // namespace

Correction::Key Correction::key(const std::string& strategy, std::int64_t length) {
  const auto tokens = static_cast<std::uint64_t>(std::max<std::int64_t>(1, length));
  return {strategy, static_cast<int>(std::bit_width(tokens))};
}

void Correction::observe(
    const std::string& strategy, std::int64_t length, double predicted, double measured) {
  if (!(predicted > 0) || !(measured > 0)) {
    return;
  }
  const Key which = key(strategy, length);
  const double ratio = measured / predicted;
  std::deque<double>& ratios = ratios_[which];
  ratios.push_back(ratio);
  if (ratios.size() > kRemembered) {
    ratios.pop_front();
  }
  if (ratios.size() < kEnough) {
    return;
  }
  const double now = std::clamp(median(ratios), 1 / kMost, kMost);
  const auto [factor, first] = factors_.try_emplace(which, now);
  if (first || std::abs(now / factor->second - 1) > kWorthTelling) {
    factor->second = now;
    ++version_;
  }
  began_.try_emplace(which, now);
  lately_.push_back(ratio / began_.at(which));
  if (lately_.size() > kLately) {
    lately_.pop_front();
  }
}

double Correction::factor(const std::string& strategy, std::int64_t length) const {
  const auto found = factors_.find(key(strategy, length));
  return found == factors_.end() ? 1.0 : found->second;
}

std::optional<double> Correction::machine_changed() {
  if (lately_.size() < kLately) {
    return std::nullopt;
  }
  const double ratio = median(lately_);
  if (ratio < kNoticed && ratio > 1 / kNoticed) {
    return std::nullopt;
  }
  for (auto& [which, began] : began_) {  // from here on against what it is now
    began *= ratio;
  }
  lately_.clear();
  return ratio;
}

}  // namespace paradyse
