#include "src/plan/profile/held_out.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "src/plan/base/median.h"

namespace paradyse {

namespace {

// What differs in length alone.
using Key = std::tuple<std::string, std::string, std::string, int, bool>;

Key length_key(const PartProbe& probe) {
  return {probe.part, probe.strategy, probe.recompute, probe.ranks, probe.reshard_after_backward};
}

constexpr const char* kStep = "step";

void add_rows(
    const std::string& model,
    const std::string& part,
    const std::string& strategy,
    const ErrorSums& sums,
    std::vector<HeldOutError>& rows,
    int ranks = 0) {
  for (const bool beyond : {false, true}) {
    const ErrorSum& one = beyond ? sums.beyond : sums.inside;
    if (one.probes > 0) {
      rows.push_back(
          {.model = model,
           .part = part,
           .strategy = strategy,
           .beyond = beyond,
           .probes = one.probes,
           .mean = one.mean(),
           .worst = one.worst,
           .bias = one.signed_sum / static_cast<double>(one.probes),
           .floor = one.repeated == 0
                        ? std::nullopt
                        : std::optional(one.floor_sum / static_cast<double>(one.repeated)),
           .ranks = ranks});
    }
  }
}

// Of all that `part` says, by the size of groups, where there are several.
void add_rows_by_size(
    const std::string& model,
    const std::string& part,
    const std::map<int, ErrorSums>& sizes,
    std::vector<HeldOutError>& rows) {
  for (const auto& [ranks, sums] : sizes) {
    if (sizes.size() > 1) {
      add_rows(model, part, "", sums, rows, ranks);
    }
  }
}

}  // namespace

PartQuestion question_of(const PartProbe& probe) {
  return {
      .part = probe.part,
      .strategy = probe.strategy,
      .recompute = recompute(probe.recompute),
      .ranks = probe.ranks,
      .length = probe.length,
      .work = probe.work};
}

double total_seconds(const PartProbe& probe) {
  double sum = 0;
  for (const Spread& phase : probe.seconds) {
    sum += phase.median;
  }
  return sum;
}

std::vector<HeldOut> held_out(
    std::span<const PartProbe> probes, const Fitter& fitter, std::size_t folds) {
  std::map<Key, std::set<std::int64_t>> lengths_of;
  std::set<std::int64_t> lengths;
  for (const PartProbe& probe : probes) {
    lengths_of[length_key(probe)].insert(probe.length);
    lengths.insert(probe.length);
  }
  std::vector<HeldOut> found;
  // Fits what is not `left_out` and predicts what is `wanted`.
  const auto try_out = [&](bool beyond, const auto& left_out, const auto& wanted) {
    std::vector<PartProbe> seen;
    std::vector<std::size_t> unseen;
    for (std::size_t i = 0; i < probes.size(); ++i) {
      if (!left_out(probes[i])) {
        seen.push_back(probes[i]);
      } else if (wanted(probes[i])) {
        unseen.push_back(i);
      }
    }
    if (unseen.empty() || seen.empty()) {
      return;
    }
    const std::shared_ptr<const TimeModel> model = fitter(seen);
    for (const std::size_t i : unseen) {
      const double measured = total_seconds(probes[i]);
      const double predicted = model->seconds(question_of(probes[i])).total();
      found.push_back(
          {.probe = i,
           .beyond = beyond,
           .predicted = predicted,
           .error = predicted / measured - 1});
    }
  };
  std::map<std::int64_t, std::size_t> fold_of;
  for (const std::int64_t length : lengths) {
    const std::size_t place = fold_of.size();
    fold_of[length] = place % folds;
  }
  for (std::size_t fold = 0; fold < std::min(folds, lengths.size()); ++fold) {
    try_out(
        false,
        [&](const PartProbe& probe) { return fold_of[probe.length] == fold; },
        [&](const PartProbe& probe) {
          const std::set<std::int64_t>& its = lengths_of[length_key(probe)];
          return *its.begin() < probe.length && probe.length < *its.rbegin();
        });
  }
  if (!lengths.empty()) {
    const std::int64_t border = *lengths.rbegin() / 4;
    try_out(
        true,
        [&](const PartProbe& probe) { return probe.length > border; },
        [&](const PartProbe& probe) {
          const std::set<std::int64_t>& its = lengths_of[length_key(probe)];
          return std::distance(its.begin(), its.upper_bound(border)) >= 3;
        });
  }
  return found;
}

void ErrorSum::add(double error, std::optional<double> floor) {
  ++probes;
  sum += std::abs(error);
  signed_sum += error;
  squares += error * error;
  worst = std::max(worst, std::abs(error));
  if (floor) {
    ++repeated;
    floor_sum += *floor;
  }
}

double ErrorSum::mean() const { return probes == 0 ? 0 : sum / static_cast<double>(probes); }

double ErrorSum::root_mean_square() const {
  return probes == 0 ? 0 : std::sqrt(squares / static_cast<double>(probes));
}

void ErrorSums::add(const HeldOut& one, std::optional<double> floor) {
  (one.beyond ? beyond : inside).add(one.error, floor);
}

double ErrorSums::mean() const {
  if (inside.probes == 0 || beyond.probes == 0) {
    return inside.mean() + beyond.mean();
  }
  return (inside.mean() + beyond.mean()) / 2;
}

namespace {

// `key`: what probes of the same have in common.
template <typename Probe, typename Key, typename Seconds>
Floors floors_by(
    std::span<const Probe> pooled,
    std::span<const Probe> rounds,
    const Key& key,
    const Seconds& seconds) {
  std::map<decltype(key(pooled.front())), std::vector<double>> measured;
  for (const Probe& probe : rounds) {
    if (probe.outcome == Outcome::measured && seconds(probe) > 0) {
      measured[key(probe)].push_back(seconds(probe));
    }
  }
  Floors floors;
  for (const Probe& probe : pooled) {
    const std::vector<double>& its = measured[key(probe)];
    std::optional<double>& floor = floors.emplace_back();
    for (std::size_t i = 0; i < its.size() && its.size() > 1; ++i) {
      std::vector<double> others = its;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      floor = floor.value_or(0) +
              std::abs(median(std::move(others)) / its[i] - 1) / static_cast<double>(its.size());
    }
  }
  return floors;
}

std::optional<double> floor_of(const Floors& floors, std::size_t probe) {
  return floors.empty() ? std::nullopt : floors[probe];
}

}  // namespace

Floors floors_of(std::span<const PartProbe> pooled, std::span<const PartProbe> rounds) {
  return floors_by(
      pooled,
      rounds,
      [](const PartProbe& p) { return std::tuple(length_key(p), p.length); },
      total_seconds);
}

Floors floors_of(std::span<const StepProbe> pooled, std::span<const StepProbe> rounds) {
  return floors_by(
      pooled,
      rounds,
      [](const StepProbe& s) {
        return std::tuple(
            s.attention, s.mlp, s.recompute, s.ranks, s.length, s.reshard_after_backward);
      },
      [](const StepProbe& s) { return s.seconds.median; });
}

std::vector<HeldOutError> error_rows(
    const std::string& model,
    std::span<const PartProbe> probes,
    const std::vector<HeldOut>& held_out,
    const Floors& floors) {
  // Sorted so that what sums up comes after what it sums: "" is written last.
  const auto last = [](const std::string& name) { return std::pair(name.empty(), name); };
  using Name = std::pair<bool, std::string>;
  std::map<std::tuple<Name, Name>, ErrorSums> sums;
  std::map<int, ErrorSums> sizes;
  for (const HeldOut& one : held_out) {
    const PartProbe& probe = probes[one.probe];
    const std::optional<double> floor = floor_of(floors, one.probe);
    sums[{last(probe.part), last(probe.strategy)}].add(one, floor);
    if (!probe.strategy.empty()) {
      sums[{last(probe.part), last("")}].add(one, floor);
    }
    sums[{last(""), last("")}].add(one, floor);
    sizes[probe.ranks].add(one, floor);
  }
  std::vector<HeldOutError> rows;
  for (const auto& [of, sum] : sums) {
    add_rows(model, std::get<0>(of).second, std::get<1>(of).second, sum, rows);
  }
  add_rows_by_size(model, "", sizes, rows);
  return rows;
}

std::vector<HeldOutError> step_error_rows(
    const std::string& model,
    std::span<const PartProbe> probes,
    const std::vector<HeldOut>& held_out,
    std::span<const StepProbe> steps,
    std::int64_t layers,
    const Floors& floors) {
  std::map<std::tuple<Key, std::int64_t, bool>, double> predicted;
  for (const HeldOut& one : held_out) {
    const PartProbe& probe = probes[one.probe];
    predicted[{length_key(probe), probe.length, one.beyond}] = one.predicted;
  }
  std::map<std::string, ErrorSums> sums;  // by attention
  ErrorSums all;
  std::map<int, ErrorSums> sizes;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const StepProbe& step = steps[s];
    if (step.outcome != Outcome::measured || !(step.seconds.median > 0)) {
      continue;
    }
    for (const bool beyond : {false, true}) {
      const auto seconds = [&](const char* part,
                               const std::string& name,
                               const std::string& level) {
        const auto found = predicted.find(
            {{part, name, level, step.ranks, step.reshard_after_backward}, step.length, beyond});
        return found == predicted.end() ? std::nullopt : std::optional(found->second);
      };
      // of an MLP attention-output is the same as full
      const bool full = step.recompute == to_string(Recompute::attention_output);
      const auto attention = seconds("attention", step.attention, step.recompute);
      const auto mlp = seconds("mlp", step.mlp, full ? to_string(Recompute::full) : step.recompute);
      const auto rest = seconds("rest", "", to_string(Recompute::none));
      if (!attention || !mlp || !rest) {
        continue;
      }
      const double whole = static_cast<double>(layers) * (*attention + *mlp) + *rest;
      const HeldOut one{
          .beyond = beyond, .predicted = whole, .error = whole / step.seconds.median - 1};
      sums[step.attention].add(one, floor_of(floors, s));
      all.add(one, floor_of(floors, s));
      sizes[step.ranks].add(one, floor_of(floors, s));
    }
  }
  std::vector<HeldOutError> rows;
  for (const auto& [attention, sum] : sums) {
    add_rows(model, kStep, attention, sum, rows);
  }
  add_rows(model, kStep, "", all, rows);
  add_rows_by_size(model, kStep, sizes, rows);
  return rows;
}

}  // namespace paradyse
