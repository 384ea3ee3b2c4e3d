#include "lab/replay/paradyse.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

// Elements a rank keeps of each layer.  MegatronTS and METP: effective footprint of GPT, as its
// published lengths imply.  The other two: those of MegatronTS by what their published forms keep,
// 17 and 18 to 16 A/p.
constexpr double kKeptTs = 22.7;
constexpr double kKeptUlysses = kKeptTs * 17 / 16;
constexpr double kKeptCz = kKeptTs * 18 / 16;
constexpr double kKeptMetp = 8.1;

constexpr std::int64_t kRanks = 8;
constexpr double kElementBytes = 2;
constexpr double kDeviceBytes = 80.0 * (1U << 30);
constexpr std::int64_t kLongestGpt = 329728;  // under METP

constexpr double kSmoothing = 1.05;

PublishedModel model(
    std::string name,
    std::int64_t hidden,
    std::int64_t layers,
    std::int64_t fitted_layers,
    std::vector<std::vector<double>> quadratics) {
  PublishedModel m{
      .name = std::move(name),
      .hidden = hidden,
      .layers = layers,
      .fitted_layers = fitted_layers,
      .strategies = {}};
  const std::pair<const char*, double> strategies[] = {
      {"MegatronTS", kKeptTs},
      {"UlyssesZ", kKeptUlysses},
      {"MegatronCZ", kKeptCz},
      {"METP", kKeptMetp}};
  for (std::size_t i = 0; i < quadratics.size(); ++i) {
    const std::vector<double>& q = quadratics[i];
    m.strategies.push_back(
        {.name = strategies[i].first,
         .a = q[0],
         .b = q[1],
         .c = q[2],
         .kept = strategies[i].second});
  }
  return m;
}

double kept_bytes(const PublishedModel& model, double kept, std::int64_t length) {
  return kept * static_cast<double>(length) * static_cast<double>(model.hidden) * kElementBytes /
         static_cast<double>(kRanks);
}

double parameters_of_a_rank(const PublishedModel& model) {
  const auto H = static_cast<double>(model.hidden);
  return 12 * H * H * static_cast<double>(model.layers) / static_cast<double>(kRanks);
}

}  // namespace

double PublishedModel::seconds(std::size_t strategy, std::int64_t length) const {
  const PublishedStrategy& s = strategies.at(strategy);
  const auto n = static_cast<double>(length);
  const double times = static_cast<double>(layers) / static_cast<double>(fitted_layers);
  return times * (s.a * n * n + s.b * n + s.c);
}

std::vector<LayerCost> PublishedModel::layer_costs(std::int64_t length) const {
  std::vector<LayerCost> costs;
  costs.reserve(strategies.size());
  for (std::size_t i = 0; i < strategies.size(); ++i) {
    costs.push_back(
        {.name = strategies[i].name,
         .seconds = seconds(i, length) / static_cast<double>(layers),
         .saved_bytes =
             static_cast<std::int64_t>(std::ceil(kept_bytes(*this, strategies[i].kept, length)))});
  }
  return costs;
}

std::int64_t PublishedModel::capacity_bytes() const {
  // What GPT's layers keep of its longest sequence under METP is what its parameters leave.
  const PublishedModel& gpt = published_models().back();
  const double left = kept_bytes(gpt, kKeptMetp, kLongestGpt) * static_cast<double>(gpt.layers);
  const double bytes_a_parameter = (kDeviceBytes - left) / parameters_of_a_rank(gpt);
  return static_cast<std::int64_t>(
      std::llround(kDeviceBytes - bytes_a_parameter * parameters_of_a_rank(*this)));
}

std::int64_t PublishedModel::longest(std::size_t strategy) const {
  return static_cast<std::int64_t>(
      static_cast<double>(capacity_bytes()) /
      (kept_bytes(*this, strategies.at(strategy).kept, 1) * static_cast<double>(layers)));
}

double PublishedModel::length_gain() const {
  std::int64_t others = 0;
  const std::size_t metp = strategies.size() - 1;
  for (std::size_t i = 0; i < metp; ++i) {
    others = std::max(others, longest(i));
  }
  return static_cast<double>(longest(metp)) / static_cast<double>(others) - 1;
}

const std::vector<PublishedModel>& published_models() {
  static const std::vector<PublishedModel> models = {
      model(
          "BERT",
          1024,
          24,
          24,
          {{2.36e-10, 5.22e-6, .0284},
           {2.41e-10, 7.3e-7, .1623},
           {2.30e-10, 3.37e-6, .2227},
           {3.28e-10, -1.2e-5, 1.3687}}),
      model(
          "LLaMA",
          8192,
          8,
          5,
          {{3.59e-10, 1.6e-5, .0174},
           {3.41e-10, 1.2e-5, .3160},
           {3.53e-10, 1.4e-5, .3427},
           {3.33e-10, 2.0e-5, .2901}}),
      model(
          "GPT",
          12288,
          8,
          1,
          {{1.08e-10, 6.22e-6, .0101},
           {1.03e-10, 5.07e-6, .0935},
           {1.03e-10, 5.89e-6, .0937},
           {1.04e-10, 6.81e-6, .1128}})};
  return models;
}

const std::vector<PublishedCorpus>& published_corpora() {
  static const std::vector<PublishedCorpus> corpora = {
      {.name = "GitHubCode",
       .edges = {512, 4e3, 8e3, 16e3, 32e3, 64e3, 128e3, 309e3},
       .shares = {65.7, 14.5, 9.8, 5.1, 2.7, 1.1, 1.1}},
      {.name = "GRCh38",
       .edges = {512, 4e3, 8e3, 16e3, 32e3, 64e3, 128e3, 624e3},
       .shares = {3.5, 26.4, 28.7, 21.2, 11.9, 5.5, 1.9}}};
  return corpora;
}

std::vector<std::int64_t> published_lengths(
    const PublishedCorpus& corpus, std::int64_t count, std::uint64_t seed, InsideBin inside) {
  if (count < 1) {
    throw std::invalid_argument(
        std::to_string(count) + " sequences: at least 1 is needed to replay a corpus");
  }
  // std::uniform_real_distribution differs between libraries; a seed should not.
  std::mt19937_64 random(seed);
  const auto uniform = [&] { return static_cast<double>(random() >> 11U) * 0x1p-53; };
  const double all = std::accumulate(corpus.shares.begin(), corpus.shares.end(), 0.0);
  std::vector<std::int64_t> lengths;
  double before = 0;
  for (std::size_t bin = 0; bin < corpus.shares.size(); ++bin) {
    before += corpus.shares[bin];
    const auto end = bin + 1 == corpus.shares.size()
                         ? count
                         : std::llround(before / all * static_cast<double>(count));
    const double low = corpus.edges[bin];
    const double high = corpus.edges[bin + 1];
    while (static_cast<std::int64_t>(lengths.size()) < end) {
      const double place = uniform();
      lengths.push_back(std::llround(
          inside == InsideBin::uniform
              ? std::lerp(low, high, place)
              : std::exp(std::log(low) + place * (std::log(high) - std::log(low)))));
    }
  }
  std::ranges::sort(lengths);
  return lengths;
}

namespace {

// A plan priced for a length.
struct Priced {
  double seconds = 0;
  bool fits = false;
};

Priced priced(
    const std::vector<LayerCost>& costs,
    const std::vector<std::int64_t>& counts,
    std::int64_t capacity) {
  Priced price;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    price.seconds += static_cast<double>(counts[i]) * costs[i].seconds;
    bytes += counts[i] * costs[i].saved_bytes;
  }
  price.fits = bytes <= capacity;
  return price;
}

}  // namespace

Switching play_switching(
    const PublishedModel& model,
    std::span<const std::int64_t> lengths,
    const SwitchingRules& rules) {
  PublishedModel left = model;
  std::erase_if(left.strategies, [&](const PublishedStrategy& strategy) {
    return std::ranges::find(rules.without, strategy.name) != rules.without.end();
  });
  if (left.strategies.size() + rules.without.size() != model.strategies.size() ||
      left.strategies.empty()) {
    throw std::invalid_argument(
        "play_switching: the strategies to leave out must be some of those of " + model.name +
        ", each once, and not all");
  }
  const std::int64_t capacity = rules.memory ? model.capacity_bytes() : std::int64_t{1} << 60;
  Switching switching;
  std::vector<std::int64_t> before;  // counts of the last plan
  for (const std::int64_t length : lengths) {
    const std::vector<LayerCost> costs = left.layer_costs(length);
    const LayerPlan plan = rules.mixing ? plan_layers_as_published(costs, model.layers, capacity)
                                        : plan_alike(costs, model.layers, capacity);
    if (!plan.feasible) {
      break;
    }
    std::vector<std::int64_t> counts = plan.counts;
    double seconds = plan.seconds;
    if (rules.smoothing && !before.empty()) {
      const Priced kept = priced(costs, before, capacity);
      if (kept.fits && kept.seconds <= kSmoothing * plan.seconds) {
        counts = before;
        seconds = kept.seconds;
      }
    }
    switching.switches += !before.empty() && counts != before ? 1 : 0;
    before = std::move(counts);
    switching.seconds += seconds;
    switching.longest = length;
    ++switching.sequences;
  }
  return switching;
}

double PublishedReduction::against_worst(double seconds) const {
  return seconds / *std::max_element(static_seconds.begin(), static_seconds.end()) - 1;
}

double PublishedReduction::against_best(double seconds) const {
  return seconds / *std::min_element(static_seconds.begin(), static_seconds.end()) - 1;
}

std::vector<PublishedReduction> published_reductions(std::int64_t count, std::uint64_t seed) {
  std::vector<PublishedReduction> found;
  for (const PublishedModel& model : published_models()) {
    for (const PublishedCorpus& corpus : published_corpora()) {
      const std::vector<std::int64_t> lengths = published_lengths(corpus, count, seed);
      PublishedReduction one{.model = model.name, .corpus = corpus.name, .static_seconds = {}};
      one.static_seconds.resize(model.strategies.size());
      for (const std::int64_t length : lengths) {
        double best = model.seconds(0, length);
        for (std::size_t i = 0; i < model.strategies.size(); ++i) {
          const double its = model.seconds(i, length);
          one.static_seconds[i] += its;
          best = std::min(best, its);
        }
        one.best_seconds += best;
      }
      one.heuristic_seconds =
          play_switching(model, lengths, {.without = {}, .memory = false}).seconds;
      if (model.name == "BERT") {
        one.published = corpus.name == "GitHubCode" ? -0.8929 : -0.5801;
      }
      found.push_back(std::move(one));
    }
  }
  return found;
}

std::vector<PublishedAblation> published_ablations(std::int64_t count, std::uint64_t seed) {
  std::vector<PublishedAblation> all = {
      {.without = "", .found = {}, .published_longest = 329728, .published_seconds = 3117.76},
      {.without = "MegatronTS",
       .found = {},
       .published_longest = 300032,
       .published_seconds = 3173.80,
       .published_full_seconds = 2799.45},
      {.without = "MegatronCZ",
       .found = {},
       .published_longest = 300032,
       .published_seconds = 2795.91,
       .published_full_seconds = 2799.45},
      {.without = "UlyssesZ",
       .found = {},
       .published_longest = 300032,
       .published_seconds = 2813.13,
       .published_full_seconds = 2799.45},
      {.without = "METP",
       .found = {},
       .published_longest = 112128,
       .published_seconds = 1741.99,
       .published_full_seconds = 1724.13},
      {.without = "smoothing",
       .found = {},
       .published_longest = 300032,
       .published_seconds = 2800.49,
       .published_full_seconds = 2799.45},
      {.without = "mixing", .found = {}},
      {.without = "forest",
       .found = {},
       .published_longest = 270336,
       .published_seconds = 2657.04,
       .published_full_seconds = 2622.89}};
  const PublishedModel& gpt = published_models().back();
  const std::vector<std::int64_t> lengths =
      published_lengths(published_corpora().back(), count, seed);
  for (PublishedAblation& one : all) {
    if (one.without == "forest") {
      continue;  // the quadratics have no forest to leave out
    }
    SwitchingRules rules{.without = {}};
    if (one.without == "smoothing") {
      rules.smoothing = false;
    } else if (one.without == "mixing") {
      rules.mixing = false;
    } else if (!one.without.empty()) {
      rules.without = {one.without};
    }
    one.found = play_switching(gpt, lengths, rules);
    one.full_seconds =
        play_switching(gpt, std::span(lengths).first(idx(one.found->sequences))).seconds;
  }
  return all;
}

std::vector<PublishedShare> published_shares(std::int64_t count, std::uint64_t seed) {
  constexpr double kAllSeconds = 3117.76;  // to the longest
  std::vector<PublishedShare> shares = {
      {.up_to = 112128, .published = 1724.13 / kAllSeconds},
      {.up_to = 270336, .published = 2622.89 / kAllSeconds},
      {.up_to = 300032, .published = 2799.45 / kAllSeconds}};
  const PublishedModel& gpt = published_models().back();
  const auto fill = [&](const std::vector<std::int64_t>& lengths, double PublishedShare::* share) {
    const double all = play_switching(gpt, lengths).seconds;
    for (PublishedShare& one : shares) {
      const auto to_there = std::ranges::upper_bound(lengths, one.up_to) - lengths.begin();
      one.*share = play_switching(gpt, std::span(lengths).first(idx(to_there))).seconds / all;
    }
  };
  PublishedCorpus corpus = published_corpora().back();
  fill(published_lengths(corpus, count, seed), &PublishedShare::found);
  corpus.edges.back() = static_cast<double>(gpt.longest(gpt.strategies.size() - 1));
  fill(
      published_lengths(corpus, count, seed, InsideBin::uniform),
      &PublishedShare::of_short_even_bins);
  return shares;
}

const std::vector<std::string>& published_assumptions() {
  static const std::vector<std::string> sentences = {
      "How many sequences: not published; the bins' shares are kept for any number.",
      "Lengths inside a bin: log-uniform, the first bin from 512 tokens, K = 1000.",
      "Layers: the fits are of 1 (GPT) and 5 (LLaMA), the published lengths of 8: scaled.",
      "Seconds: the fitted quadratics at all lengths; there is no forest to leave out.",
      "Reductions are without memory limits, the ablation is with them.",
      "Kept by MegatronTS: 22.7 elements for each of s H / 8 a layer, from GPT's lengths.",
      "Kept by METP: 8.1 of them, from GPT's lengths.",
      "Kept by UlyssesZ and MegatronCZ: 17/16 and 18/16 of MegatronTS, as their forms do.",
      "BERT and LLaMA keep as many for each of their s H / 8 as GPT.",
      "Left by parameters: of 80 GiB, a parameter of any model takes what one of GPT does."};
  return sentences;
}

}  // namespace paradyse
