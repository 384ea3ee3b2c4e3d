// Fits both models, compares them on lengths left out, and says which is the better one.
#include "src/plan/profile/fit.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include <Eigen/Core>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/number_text.h"
#include "src/plan/profile/held_out.h"
#include "src/plan/profile/hybrid.h"
#include "src/plan/profile/nnls.h"
#include "src/plan/profile/peaks.h"
#include "src/plan/profile/structured.h"

namespace paradyse {

namespace {

// Of the structured model's error: what the hybrid's has to be below to be the default.  It knows
// documents one at a time, which batches are not, and errors of so few lengths differ by chance.
constexpr double kFarBetter = 0.7;

constexpr const char* kOptimizer = "optimizer";
constexpr std::size_t kLeastLengths = 3;

std::string described(const PartProbe& probe) {
  return probe.strategy.empty() ? probe.part : probe.part + " " + probe.strategy;
}

// Lengths of each strategy of each part that were measured, by described(); part by part.
std::map<std::string, std::map<std::string, std::set<std::int64_t>>> lengths_of(
    const Profile& profile) {
  std::map<std::string, std::map<std::string, std::set<std::int64_t>>> parts;
  for (const PartProbe& probe : profile.parts) {
    if (probe.part != kOptimizer) {
      std::set<std::int64_t>& its = parts[probe.part][described(probe)];
      if (probe.outcome == Outcome::measured) {
        its.insert(probe.length);
      }
    }
  }
  return parts;
}

// The parts that times are fitted to.  Throws std::invalid_argument.
std::vector<PartProbe> measured_parts(const Profile& profile) {
  if (const std::string lacks = lacks_for_a_fit(profile); !lacks.empty()) {
    throw std::invalid_argument(lacks);
  }
  const auto lengths = lengths_of(profile);
  std::vector<PartProbe> parts;
  for (const PartProbe& probe : profile.parts) {
    if (probe.part == kOptimizer || probe.outcome != Outcome::measured) {
      continue;
    }
    try {
      recompute(probe.recompute);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("profile: " + described(probe) + ": " + error.what());
    }
    if (!(total_seconds(probe) > 0)) {
      throw std::invalid_argument(
          "profile: " + described(probe) + " at length " + std::to_string(probe.length) +
          " took 0 seconds: times have to be positive; remove the line and profile again");
    }
    if (lengths.at(probe.part).at(described(probe)).size() >= kLeastLengths) {
      parts.push_back(probe);
    }
  }
  return parts;
}

// The parts of a step, as they were measured with it: their proportions stay, and their sum is what
// the step took.  Ranks' parts are means, and medians of parts are not a part of the median: whole
// steps are what plans add up.
Profile with_whole_steps(Profile profile) {
  const auto layers = static_cast<double>(profile.header.layers);
  std::size_t next = 0;  // parts stand in the order of their steps: attention, mlp, rest
  for (const StepProbe& step : profile.steps) {
    if (step.outcome != Outcome::measured || !(step.seconds.median > 0)) {
      continue;
    }
    const auto is = [&](std::size_t i, const char* part, const std::string& strategy) {
      const PartProbe& probe = profile.parts[i];
      return probe.part == part && probe.strategy == strategy && probe.ranks == step.ranks &&
             probe.length == step.length &&
             probe.reshard_after_backward == step.reshard_after_backward &&
             probe.outcome == Outcome::measured;
    };
    for (std::size_t i = next; i + 2 < profile.parts.size(); ++i) {
      if (!is(i, "attention", step.attention) || !is(i + 1, "mlp", step.mlp) ||
          !is(i + 2, "rest", "") || profile.parts[i].recompute != step.recompute) {
        continue;
      }
      const double sum =
          layers * (total_seconds(profile.parts[i]) + total_seconds(profile.parts[i + 1])) +
          total_seconds(profile.parts[i + 2]);
      for (std::size_t j = i; j < i + 3; ++j) {
        for (Spread& phase : profile.parts[j].seconds) {
          const double scale = sum > 0 ? step.seconds.median / sum : 1;
          phase = {
              .median = scale * phase.median,
              .least = scale * phase.least,
              .most = scale * phase.most};
        }
      }
      next = i + 3;
      break;
    }
  }
  return profile;
}

// step_seconds + optimizer_seconds_per_byte * bytes, errors relative.
void fit_optimizer(const Profile& profile, Costs& costs) {
  std::vector<const PartProbe*> probes;
  std::set<double> sizes;
  const auto bytes_of = [](const PartProbe& probe) {
    return probe.work.phases[0].values[Amounts::touched_bytes];
  };
  for (const PartProbe& probe : profile.parts) {
    if (probe.part == kOptimizer && probe.outcome == Outcome::measured &&
        total_seconds(probe) > 0) {
      probes.push_back(&probe);
      sizes.insert(bytes_of(probe));
    }
  }
  if (probes.empty()) {
    return;
  }
  // Of one size a constant cannot be told apart.
  const Eigen::Index columns = sizes.size() > 1 ? 2 : 1;
  Eigen::MatrixXd A(static_cast<Eigen::Index>(probes.size()), columns);
  for (Eigen::Index i = 0; i < A.rows(); ++i) {
    const PartProbe& probe = *probes[idx(i)];
    A(i, 0) = bytes_of(probe) / total_seconds(probe);
    if (columns > 1) {
      A(i, 1) = 1 / total_seconds(probe);
    }
  }
  const Eigen::VectorXd x = nonnegative_least_squares(A, Eigen::VectorXd::Ones(A.rows()));
  costs.optimizer_seconds_per_byte = x(0);
  costs.step_seconds = columns > 1 ? x(1) : 0;
}

// What a model takes for its errors: those on lengths left out.
void put_errors(
    std::span<const PartProbe> probes, const std::vector<HeldOut>& unseen, Structured& model) {
  ErrorSums of_machine;
  std::map<std::string, ErrorSums> of_part;
  std::map<std::pair<std::string, std::string>, ErrorSums> of_strategy;
  std::map<std::pair<std::string, std::string>, std::map<int, ErrorSums>> of_size;
  for (const HeldOut& one : unseen) {
    const PartProbe& probe = probes[one.probe];
    of_size[{probe.part, probe.strategy}][probe.ranks].add(one);
    of_machine.add(one);
    of_part[probe.part].add(one);
    of_strategy[{probe.part, probe.strategy}].add(one);
  }
  const auto put = [](const ErrorSums& sums, FittedRates& rates) {
    rates.error_inside = sums.inside.root_mean_square();
    rates.error_beyond = std::max(rates.error_inside, sums.beyond.root_mean_square());
  };
  put(of_machine, model.machine);
  for (auto& [part, rates] : model.parts) {
    put(of_part[part], rates);
  }
  for (auto& [name, rates] : model.strategies) {
    put(of_strategy[name], rates);
  }
  for (auto& [name, its] : model.sizes) {
    for (auto& [ranks, rates] : its.rates) {
      put(of_size[name][ranks], rates);
    }
  }
}

void put_errors(
    std::span<const PartProbe> probes, const std::vector<HeldOut>& unseen, HybridModel& model) {
  std::map<HybridKey, ErrorSums> sums;
  for (const HeldOut& one : unseen) {
    sums[key_of(probes[one.probe])].add(one);
  }
  for (auto& [key, fit] : model.fits) {
    fit.error_inside = sums[key].inside.root_mean_square();
    fit.error_beyond = std::max(fit.error_inside, sums[key].beyond.root_mean_square());
  }
}

// The hybrid model goes by lengths, so it is fitted to one way of having weights.
std::vector<PartProbe> sharded(std::vector<PartProbe> probes) {
  std::erase_if(probes, [](const PartProbe& probe) { return !probe.reshard_after_backward; });
  return probes;
}

// Peak memory: both models, and a row of errors of each.  The published model's join `hybrid`.
void fit_peaks(
    const Profile& profile, const FitOptions& options, HybridModel& hybrid, Costs& costs) {
  const std::vector<PartProbe> peaks = peak_probes(profile);
  const auto folded = fit_folded_peak(peaks);
  costs.memory_overhead = folded->overhead();
  const std::vector<PartProbe> as_published = sharded(peaks);
  const auto published = fit_hybrid(as_published, options, folded);
  const auto published_unseen = held_out(as_published, [&](std::span<const PartProbe> seen) {
    return fit_hybrid(seen, options, fit_folded_peak(seen));
  });
  put_errors(as_published, published_unseen, *published);
  hybrid.fits.merge(published->fits);
  const auto add_row = [&](const TimeModel& model,
                           const std::vector<PartProbe>& of,
                           const std::vector<HeldOut>& unseen) {
    for (const HeldOutError& row : error_rows(model.name(), of, unseen)) {
      if (row.part == kPeakMemory && row.strategy.empty()) {
        costs.errors.push_back(row);
      }
    }
  };
  add_row(*folded, peaks, held_out(peaks, fit_folded_peak));
  add_row(hybrid, as_published, published_unseen);
}

double overall(const std::vector<HeldOut>& unseen) {
  ErrorSums sums;
  for (const HeldOut& one : unseen) {
    sums.add(one);
  }
  return sums.mean();
}

}  // namespace

namespace {

// `rounds`: what the profile was pooled from.
Costs fit_pooled(const Profile& profile, const Profile& rounds, const FitOptions& options) {
  const std::vector<PartProbe> probes = measured_parts(profile);
  const std::vector<PartProbe> as_published = sharded(probes);
  const Floors step_floors = floors_of(profile.steps, rounds.steps);
  const Rates prior = prior_rates(profile);
  Costs costs{.header = profile.header, .attention_dense_from = attention_dense_from(profile)};
  fit_optimizer(profile, costs);

  const auto structured = fit_structured(probes, prior);
  const auto hybrid = fit_hybrid(as_published, options, structured);
  const auto structured_unseen = held_out(
      probes, [&](std::span<const PartProbe> seen) { return fit_structured(seen, prior); });
  const auto hybrid_unseen = held_out(as_published, [&](std::span<const PartProbe> seen) {
    return fit_hybrid(seen, options, fit_structured(seen, prior, Pull{}));
  });
  put_errors(probes, structured_unseen, *structured);
  put_errors(as_published, hybrid_unseen, *hybrid);
  costs.structured = structured;
  costs.hybrid = hybrid;
  const auto add_errors = [&](const TimeModel& model,
                              const std::vector<PartProbe>& of,
                              const std::vector<HeldOut>& unseen) {
    const std::string name = model.name();
    for (const auto& rows :
         {error_rows(name, of, unseen, floors_of(of, rounds.parts)),
          step_error_rows(name, of, unseen, profile.steps, profile.header.layers, step_floors)}) {
      costs.errors.insert(costs.errors.end(), rows.begin(), rows.end());
    }
  };
  add_errors(*structured, probes, structured_unseen);
  add_errors(*hybrid, as_published, hybrid_unseen);
  fit_peaks(profile, options, *hybrid, costs);
  std::vector<HeldOut> alike = structured_unseen;  // on what the hybrid model is fitted to
  std::erase_if(
      alike, [&](const HeldOut& one) { return !probes[one.probe].reshard_after_backward; });
  const bool far_better =
      !hybrid_unseen.empty() && overall(hybrid_unseen) < kFarBetter * overall(alike);
  costs.best = far_better ? "hybrid" : "structured";
  return costs;
}

}  // namespace

std::string lacks_for_a_fit(const Profile& profile) {
  const auto parts = lengths_of(profile);
  if (parts.empty()) {
    return "the profile has no parts of layers to fit: let `paradyse profile` run to its end";
  }
  for (const auto& [part, strategies] : parts) {
    const auto& [name, most] = *std::ranges::max_element(
        strategies, {}, [](const auto& strategy) { return strategy.second.size(); });
    if (most.size() < kLeastLengths) {
      return "the profile has " + counted(std::ssize(most), "measured length") + " of " + name +
             ", and a fit needs " + std::to_string(kLeastLengths) +
             " of a strategy of each part: profile more lengths (shorter ones if memory or time "
             "ended it)";
    }
  }
  return "";
}

std::vector<std::string> left_out_of_a_fit(const Profile& profile) {
  std::vector<std::string> names;
  for (const auto& [part, strategies] : lengths_of(profile)) {
    for (const auto& [name, its] : strategies) {
      if (its.size() < kLeastLengths) {
        names.push_back(name);
      }
    }
  }
  return names;
}

Costs fit(const Profile& profile, const FitOptions& options) {
  const Profile rounds = with_whole_steps(profile);
  return fit_pooled(pooled(rounds), rounds, options);
}

double Costs::update_seconds(std::int64_t bytes) const {
  return step_seconds + optimizer_seconds_per_byte * static_cast<double>(bytes);
}

const TimeModel& Costs::model() const { return *model(""); }

std::shared_ptr<const TimeModel> Costs::model(const std::string& name) const {
  const std::string& wanted = name.empty() ? best : name;
  if (wanted == "structured") {
    return structured;
  }
  if (wanted == "hybrid") {
    return hybrid;
  }
  throw std::invalid_argument(
      "model '" + wanted + "' is not known; costs have 'structured' and 'hybrid'");
}

}  // namespace paradyse
