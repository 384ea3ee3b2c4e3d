#include "paradyse/plan/correction.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "src/plan/base/median.h"

namespace paradyse {
namespace {

constexpr std::size_t kEnough = 3;          // measurements before a factor counts
constexpr std::size_t kLately = 15;         // measurements that tell of the machine
constexpr double kWorthTelling = 1.0 / 50;  // of a factor's change

double median_of(const std::deque<double>& values) {
  return median({values.begin(), values.end()});
}

double factor_of(const std::deque<double>& ratios) {
  return std::clamp(median_of(ratios), 1 / Correction::kMost, Correction::kMost);
}

}  // namespace

int log2_bucket(std::int64_t tokens) {
  return static_cast<int>(
      std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(1, tokens))));
}

void Correction::observe(
    const std::string& strategy,
    int ranks,
    std::int64_t length,
    double predicted,
    double measured) {
  if (!(predicted > 0) || !(measured > 0)) {
    return;
  }
  const Key which{strategy, ranks, log2_bucket(length)};
  const double ratio = measured / predicted;
  std::deque<double>& ratios = ratios_[which];
  ratios.push_back(ratio);
  if (ratios.size() > kRemembered) {
    ratios.pop_front();
  }
  if (ratios.size() < kEnough) {
    return;
  }
  const double now = factor_of(ratios);
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

double Correction::factor(const std::string& strategy, int ranks, std::int64_t length) const {
  const auto found = factors_.find(Key{strategy, ranks, log2_bucket(length)});
  return found == factors_.end() ? 1.0 : found->second;
}

void Correction::learn(const Ratios& ratios) {
  ratios_ = ratios;
  factors_.clear();
  began_.clear();
  lately_.clear();
  ++version_;
  for (const auto& [which, its] : ratios_) {
    if (its.size() >= kEnough) {
      factors_[which] = factor_of(its);
      began_[which] = factor_of(its);
    }
  }
}

std::optional<double> Correction::machine_changed() {
  if (lately_.size() < kLately) {
    return std::nullopt;
  }
  const double ratio = median_of(lately_);
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
