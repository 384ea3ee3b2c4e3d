#include "src/plan/profile/hybrid.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "src/plan/profile/held_out.h"

namespace paradyse {

namespace {

using Use = HybridFit::Use;

std::vector<double> features_of(std::int64_t length, Recompute level) {
  return {static_cast<double>(length), static_cast<double>(level)};
}

HybridFit fit_one(const std::vector<const PartProbe*>& probes, Use use, const FitOptions& options) {
  HybridFit fit{.use = use};
  std::map<Recompute, std::vector<const PartProbe*>> levels;
  for (const PartProbe* probe : probes) {
    const Recompute level = recompute(probe->recompute);
    levels[level].push_back(probe);
  }
  for (const auto& [level, its] : levels) {
    std::set<std::int64_t> lengths;
    for (const PartProbe* probe : its) {
      lengths.insert(probe->length);
    }
    if (lengths.size() > 1) {  // one says nothing about lengths
      fit.levels[level].longest = *lengths.rbegin();
    }
  }
  for (std::size_t i = 0; i < kPartPhases; ++i) {
    if (use != Use::polynomial) {
      std::vector<ForestSample> samples;
      samples.reserve(probes.size());
      for (const PartProbe* probe : probes) {
        samples.push_back(
            {.features = features_of(probe->length, recompute(probe->recompute)),
             .value = probe->seconds[i].median});
      }
      fit.forests[i] = grow_forest(
          samples, {.trees = options.trees, .depth = options.depth, .seed = options.seed});
    }
    if (use != Use::forest) {
      for (auto& [level, fitted] : fit.levels) {
        std::vector<double> lengths;
        std::vector<double> seconds;
        for (const PartProbe* probe : levels[level]) {
          lengths.push_back(static_cast<double>(probe->length));
          seconds.push_back(probe->seconds[i].median);
        }
        fitted.polynomials[i] = polynomial_by_aic(lengths, seconds);
      }
    }
  }
  return fit;
}

template <typename UseOf>
std::shared_ptr<HybridModel> fit_as(
    std::span<const PartProbe> probes,
    const FitOptions& options,
    std::shared_ptr<const TimeModel> otherwise,
    const UseOf& use_of) {
  std::map<HybridKey, std::vector<const PartProbe*>> groups;
  for (const PartProbe& probe : probes) {
    groups[key_of(probe)].push_back(&probe);
  }
  auto model = std::make_shared<HybridModel>();
  for (const auto& [key, its] : groups) {
    HybridFit fit = fit_one(its, use_of(key), options);
    if (!fit.levels.empty()) {
      model->fits[key] = std::move(fit);
    }
  }
  model->otherwise = std::move(otherwise);
  return model;
}

std::map<HybridKey, ErrorSums> errors_as(
    Use use,
    std::span<const PartProbe> probes,
    const FitOptions& options,
    const std::shared_ptr<const TimeModel>& otherwise) {
  constexpr std::size_t kFolds = 5;
  const auto unseen = held_out(
      probes,
      [&](std::span<const PartProbe> seen) {
        return fit_as(seen, options, otherwise, [&](const HybridKey& /*key*/) { return use; });
      },
      kFolds);
  std::map<HybridKey, ErrorSums> errors;
  for (const HeldOut& one : unseen) {
    errors[key_of(probes[one.probe])].add(one);
  }
  return errors;
}

}  // namespace

HybridKey key_of(const PartProbe& probe) {
  return {.part = probe.part, .strategy = probe.strategy, .ranks = probe.ranks};
}

PartSeconds HybridModel::seconds(const PartQuestion& question) const {
  const auto found =
      fits.find({.part = question.part, .strategy = question.strategy, .ranks = question.ranks});
  if (found == fits.end() || !found->second.levels.contains(question.recompute)) {
    return otherwise->seconds(question);
  }
  const HybridFit& fit = found->second;
  const HybridFit::Level& level = fit.levels.at(question.recompute);
  const bool inside = question.length <= level.longest;
  PartSeconds result;
  if (fit.use == Use::polynomial || (fit.use == Use::by_range && !inside)) {
    for (std::size_t i = 0; i < kPartPhases; ++i) {
      const double seconds = level.polynomials[i](static_cast<double>(question.length));
      result.phases[i] = std::max(0.0, seconds);  // which may bend down
    }
    result.error = inside ? fit.error_inside : fit.error_beyond;
    return result;
  }
  const std::vector<double> features = features_of(question.length, question.recompute);
  double spread = 0;
  for (std::size_t i = 0; i < kPartPhases; ++i) {
    const Forest::Answer answer = fit.forests[i](features);
    result.phases[i] = answer.mean;
    spread += answer.spread * answer.spread;
  }
  result.error = result.total() > 0 ? std::sqrt(spread) / result.total() : 0;
  return result;
}

std::shared_ptr<const TimeModel> without_forest(const Costs& costs) {
  const auto hybrid = std::dynamic_pointer_cast<const HybridModel>(costs.model("hybrid"));
  if (hybrid == nullptr) {
    throw std::invalid_argument("without_forest: these costs have no hybrid model");
  }
  auto polynomials = std::make_shared<HybridModel>(*hybrid);
  for (auto& [key, fit] : polynomials->fits) {
    if (fit.use == Use::by_range) {  // by-strategy, a forest has no polynomial beside it
      fit.use = Use::polynomial;
    }
  }
  return polynomials;
}

std::shared_ptr<HybridModel> fit_hybrid(
    std::span<const PartProbe> probes,
    const FitOptions& options,
    std::shared_ptr<const TimeModel> otherwise) {
  if (options.hybrid == Hybrid::by_range) {
    return fit_as(probes, options, std::move(otherwise), [](const HybridKey& /*key*/) {
      return Use::by_range;
    });
  }
  auto of_forest = errors_as(Use::forest, probes, options, otherwise);
  auto of_polynomial = errors_as(Use::polynomial, probes, options, otherwise);
  return fit_as(probes, options, std::move(otherwise), [&](const HybridKey& key) {
    return of_forest[key].mean() < of_polynomial[key].mean() ? Use::forest : Use::polynomial;
  });
}

}  // namespace paradyse
