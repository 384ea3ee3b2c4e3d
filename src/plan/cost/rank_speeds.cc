#include "paradyse/plan/detail/rank_speeds.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/median.h"

namespace paradyse {
namespace {

constexpr double kLittleWork = 0.2;   // of the most work of a rank
constexpr double kLittleTime = 0.05;  // seconds
constexpr double kSameSpeed = 0.1;    // relative: a change that is not told

}  // namespace

bool RankSpeeds::tells(const std::vector<double>& computed) {
  return computed.size() > 1 && *std::ranges::max_element(computed) >= kLittleTime;
}

bool RankSpeeds::observe(
    const std::vector<double>& computed, const std::vector<double>& work, std::int64_t step) {
  if (computed.size() != work.size() || !tells(computed)) {
    return false;
  }
  const double most = *std::ranges::max_element(work);
  std::vector<std::size_t> told;  // ranks
  std::vector<double> ratios;
  for (std::size_t r = 0; r < work.size(); ++r) {
    if (work[r] > 0 && work[r] >= kLittleWork * most && computed[r] > 0 &&
        std::isfinite(computed[r])) {
      told.push_back(r);
      ratios.push_back(computed[r] / work[r]);
    }
  }
  if (told.size() < 2) {
    return false;
  }
  std::vector<double> sorted = ratios;
  std::ranges::sort(sorted);
  const double usual = sorted[(sorted.size() - 1) / 2];  // of two the faster
  ratios_.resize(work.size());
  steps_.resize(work.size());
  for (std::size_t i = 0; i < told.size(); ++i) {
    std::deque<double>& its = ratios_[told[i]];
    std::deque<std::int64_t>& its_steps = steps_[told[i]];
    its.push_back(ratios[i] / usual);
    its_steps.push_back(step);
    if (its.size() > kRemembered) {
      its.pop_front();
      its_steps.pop_front();
    }
  }
  const std::int64_t before = version_;
  publish();
  return version_ != before;
}

void RankSpeeds::publish() {
  slow_since_.resize(ratios_.size());
  std::vector<double> now(ratios_.size(), 1.0);
  bool moved = !speeds_.empty() && speeds_.size() != now.size();
  for (std::size_t r = 0; r < now.size(); ++r) {
    const double was = speeds_.size() == now.size() ? speeds_[r] : 1.0;
    if (ratios_[r].size() >= kEnough) {
      const double times = median({ratios_[r].begin(), ratios_[r].end()});
      now[r] = times >= (was < 1 ? kRecovered : kSlow) ? 1 / times : 1.0;
    }
    moved = moved || std::abs(now[r] / was - 1) > kSameSpeed;
  }
  if (!moved) {
    return;
  }
  for (std::size_t r = 0; r < now.size(); ++r) {
    if (now[r] == 1) {
      slow_since_[r] = 0;
    } else if (slow_since_[r] <= 0) {
      slow_since_[r] = slow_from(r);
    }
  }
  const bool any = std::ranges::any_of(now, [](double speed) { return speed < 1; });
  speeds_ = any ? std::move(now) : std::vector<double>();
  ++version_;
}

// Where most of its x from there on are slow ones, beyond those that are not; of equals the last,
// so that a disturbed step long before does not count.
std::int64_t RankSpeeds::slow_from(std::size_t rank) const {
  std::int64_t step = 0;
  int most = 0;
  int now = 0;
  for (std::size_t left = ratios_[rank].size(); left > 0; --left) {
    const std::size_t i = left - 1;
    if (steps_[rank][i] <= 0) {
      break;  // not known
    }
    now += ratios_[rank][i] >= kSlow ? 1 : -1;
    if (now > most) {
      most = now;
      step = steps_[rank][i];
    }
  }
  return step;
}

void RankSpeeds::learn(const Ratios& ratios, const std::vector<std::int64_t>& slow_since) {
  if (ratios == ratios_) {
    return;
  }
  ratios_ = ratios;
  steps_.clear();
  for (const std::deque<double>& its : ratios) {
    steps_.emplace_back(its.size());  // not known
  }
  slow_since_ = slow_since;
  // Those that were told as slow count as that until they clearly are not.
  constexpr double kTold = 1e-9;  // no speed that anybody has: what is known now is published
  if (std::ranges::any_of(slow_since, [](std::int64_t step) { return step > 0; })) {
    speeds_.assign(ratios.size(), 1);
    for (std::size_t r = 0; r < std::min(slow_since.size(), speeds_.size()); ++r) {
      speeds_[r] = slow_since[r] > 0 ? kTold : 1;
    }
  }
  publish();
}

std::string RankSpeeds::said() const {
  std::string slow;
  for (std::size_t r = 0; r < speeds_.size(); ++r) {
    if (speeds_[r] < 1) {
      fmt::format_to(
          std::back_inserter(slow),
          "{}rank {} computes at {:.2f} times the speed of the others",
          slow.empty() ? "" : ", ",
          r,
          speeds_[r]);
      if (slow_since_[r] > 0) {
        fmt::format_to(std::back_inserter(slow), " (slow since step {})", slow_since_[r]);
      }
    }
  }
  return slow.empty() ? "all ranks compute at the same speed again" : slow;
}

}  // namespace paradyse
