#include "paradyse/plan/detail/correction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "src/plan/base/median.h"

namespace paradyse {
namespace {

constexpr std::size_t kEnough = 3;       // measurements before something counts
constexpr std::size_t kMachine = 5;      // measurements that say how fast the machine is now
constexpr std::size_t kLately = 15;      // measurements that tell that it has changed for good
constexpr double kDoubt = 1.1;           // what costs may err by
constexpr double kWorthPlanning = 1.02;  // a change of one factor against another
// A change of all factors: it makes no other plan better, only what is predicted.
constexpr double kWorthTelling = 1.1;

double median_of(const std::deque<double>& values) {
  return median({values.begin(), values.end()});
}

void push(std::deque<double>& values, double value, std::size_t most) {
  values.push_back(value);
  if (values.size() > most) {
    values.pop_front();
  }
}

// `own`, drawn to what is common by how little it was measured.
double shrunk(double own, double common, std::size_t n) {
  const auto count = static_cast<double>(n);
  return common + count / (count + 1) * (own - common);
}

// What all have in common, of which so many tell apart from one another.
double common_of(const std::vector<double>& logs, std::size_t apart) {
  const double common = median(logs);
  const auto m = static_cast<double>(apart);
  return common * (common > 0 ? m / (m + 1) : 1);
}

// Whether one is in one of them alone, or has moved by more than `by`.
template <typename Key>
bool differ(const std::map<Key, double>& a, const std::map<Key, double>& b, double by) {
  return !std::ranges::equal(a, b, [&](const auto& x, const auto& y) {
    return x.first == y.first && std::abs(x.second - y.second) <= by;
  });
}

}  // namespace

int log2_bucket(std::int64_t tokens) {
  return static_cast<int>(
      std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(1, tokens))));
}

void Correction::observe(const std::vector<Observed>& parts) {
  std::vector<double> over_first;  // how much slower the machine is than when it was first seen
  for (const Observed& part : parts) {
    const auto began = began_.find(part.of);
    if (began != began_.end() && part.predicted > 0 && part.measured > 0) {
      over_first.push_back(part.measured / part.predicted / began->second);
    }
  }
  if (!over_first.empty()) {
    const double over = median(std::move(over_first));
    push(lately_, over, kMachine);
    push(untold_, over / told_, kLately);
    if (lately_.size() >= kEnough) {
      machine_ = median_of(lately_);
    }
  }
  bool any = false;
  for (const Observed& part : parts) {
    if (part.predicted > 0 && part.measured > 0) {
      std::deque<double>& ratios = ratios_[part.of];
      push(ratios, part.measured / part.predicted / machine_, kRemembered);
      if (ratios.size() == kEnough) {
        began_.try_emplace(part.of, median_of(ratios));
      }
      any = true;
    }
  }
  if (any) {
    publish();
  }
}

// Of the medians of ratios the logarithm.
Correction::Factors Correction::factors() const {
  Factors now{.machine = std::log(machine_)};
  std::map<Cell, std::vector<double>> all;  // ratios
  for (const auto& [which, ratios] : ratios_) {
    std::vector<double>& its = all[{which.what, which.ranks}];
    its.insert(its.end(), ratios.begin(), ratios.end());
  }
  std::erase_if(all, [](const auto& cell) { return cell.second.size() < kEnough; });
  if (all.empty()) {
    return now;
  }
  std::map<Cell, double> own;
  std::map<std::string, std::vector<double>> of_parts;
  for (const auto& [cell, ratios] : all) {
    own[cell] = std::log(median(ratios));
    of_parts[cell.first.part].push_back(own[cell]);
  }
  const auto length_of = [](const auto& known) { return known.first.log2_length; };
  const auto [shortest, longest] = std::ranges::minmax_element(ratios_, {}, length_of);
  if (length_of(*shortest) < length_of(*longest)) {
    now.no_tries_from = length_of(*longest);
  }
  std::vector<double> of_all;
  std::size_t most = 0;
  for (const auto& [part, medians] : of_parts) {
    now.common_of_parts[part] = common_of(medians, medians.size());
    of_all.insert(of_all.end(), medians.begin(), medians.end());
    most = std::max(most, medians.size());
  }
  now.common = common_of(of_all, most);
  for (const auto& [cell, log] : own) {
    now.cells[cell] = shrunk(log, now.common_of_parts.at(cell.first.part), all.at(cell).size());
  }
  for (const auto& [which, ratios] : ratios_) {
    if (ratios.size() >= kEnough) {
      now.keys[which] = shrunk(
          std::log(median_of(ratios)), now.cells.at({which.what, which.ranks}), ratios.size());
    }
  }
  return now;
}

// Those of now are looked up from here on, if they differ enough from those that were.
void Correction::publish() {
  Factors now = factors();
  const double by = std::log(kWorthPlanning);
  if (std::abs(now.machine - published_.machine) > std::log(kWorthTelling) ||
      std::abs(now.common - published_.common) > by ||
      now.no_tries_from != published_.no_tries_from ||
      differ(now.common_of_parts, published_.common_of_parts, by) ||
      differ(now.cells, published_.cells, by) || differ(now.keys, published_.keys, by)) {
    published_ = std::move(now);
    ++version_;
  }
}

double Correction::factor(
    const CostedPart& what, int ranks, std::int64_t longest, bool hoped) const {
  if (published_.cells.empty()) {
    return common_factor();
  }
  const bool worth_a_try =
      hoped && !what.strategy.empty() && log2_bucket(longest) < published_.no_tries_from;
  const auto common = published_.common_of_parts.find(what.part);
  double own = (common == published_.common_of_parts.end() ? published_.common : common->second) -
               (worth_a_try ? std::log(kDoubt) : 0);
  const auto key = published_.keys.find(Key{what, ranks, log2_bucket(longest)});
  const auto cell = published_.cells.find({what, ranks});
  if (key != published_.keys.end()) {
    own = key->second;
  } else if (cell != published_.cells.end()) {
    own = cell->second;
  }
  return std::clamp(std::exp(published_.machine + own), 1 / kMost, kMost);
}

double Correction::common_factor() const {
  return std::clamp(std::exp(published_.machine + published_.common), 1 / kMost, kMost);
}

void Correction::learn(const Ratios& ratios, double machine) {
  ratios_ = ratios;
  machine_ = machine;
  began_.clear();
  lately_.clear();
  untold_.clear();
  told_ = machine;
  published_ = factors();
  ++version_;
  for (const auto& [which, its] : ratios_) {
    if (its.size() >= kEnough) {
      began_[which] = median_of(its);
    }
  }
}

std::optional<double> Correction::machine_changed() {
  if (untold_.size() < kLately) {
    return std::nullopt;
  }
  const double ratio = median_of(untold_);
  if (ratio < kNoticed && ratio > 1 / kNoticed) {
    return std::nullopt;
  }
  told_ *= ratio;  // from here on against what it is now
  untold_.clear();
  return ratio;
}

}  // namespace paradyse
