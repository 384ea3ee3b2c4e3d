// The ParaDySe publication (arXiv 2511.13198) played again from its own numbers: its fitted
// seconds, its length bins and its heuristic, in place of our costs and planners.
//
// What it does not state is assumed here and listed by published_assumptions();
// docs/results/published.md compares the figures.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/plan/search/layers/layer_planner.h"

namespace paradyse {

// One strategy on one model and 8 x A100-80GB: a s^2 + b s + c seconds of an iteration of the
// fitted layers on s tokens; and what a rank of 8 keeps of each layer, as elements of two bytes for
// each of s H / 8, transients included.
struct PublishedStrategy {
  std::string name;
  double a = 0;
  double b = 0;
  double c = 0;
  double kept = 0;
};

struct PublishedModel {
  std::string name;
  std::int64_t hidden = 0;
  std::int64_t layers = 0;         // of the published runs
  std::int64_t fitted_layers = 0;  // of the published fits
  std::vector<PublishedStrategy> strategies;

  // Of all layers.
  [[nodiscard]] double seconds(std::size_t strategy, std::int64_t length) const;
  // Of one layer, for the layer planner.
  [[nodiscard]] std::vector<LayerCost> layer_costs(std::int64_t length) const;
  // What is left of a device's memory beside parameters, gradients and optimizer.
  [[nodiscard]] std::int64_t capacity_bytes() const;
  // The longest sequence whose layers all fit under this strategy.
  [[nodiscard]] std::int64_t longest(std::size_t strategy) const;
  // By how much that of METP, the last, is longer than the best of the others.
  [[nodiscard]] double length_gain() const;
};
// BERT, LLaMA, GPT.
const std::vector<PublishedModel>& published_models();

struct PublishedCorpus {
  std::string name;
  std::vector<double> edges;   // of the bins, tokens
  std::vector<double> shares;  // of the sequences, %
};
// GitHubCode, GRCh38.
const std::vector<PublishedCorpus>& published_corpora();

// How lengths lie inside a bin.
enum class InsideBin { log_uniform, uniform };

// `count` lengths, ascending: of each bin its share, drawn inside it; a function of the seed.
// Throws std::invalid_argument for count < 1.
std::vector<std::int64_t> published_lengths(
    const PublishedCorpus& corpus,
    std::int64_t count,
    std::uint64_t seed,
    InsideBin inside = InsideBin::log_uniform);

struct SwitchingRules {
  std::vector<std::string> without;  // strategies that are not there
  bool mixing = true;                // layers may differ
  bool smoothing = true;  // the plan of the sequence before stays while it fits and is within 5 %
  bool memory = true;     // plans have to fit
};

struct Switching {
  std::int64_t sequences = 0;  // until the first that fits no plan
  std::int64_t longest = 0;    // of them; 0: none
  double seconds = 0;
  std::int64_t switches = 0;  // sequences with another plan than the one before
};

// The published heuristic as it is, where a layer runs one strategy, its attention and its MLP
// alike, on these sequences, one after the other: of every strategy as the base
// all layers, or as many as fit with the rest by one that needs less; the fastest of these.
Switching play_switching(
    const PublishedModel& model,
    std::span<const std::int64_t> lengths,
    const SwitchingRules& rules = {});

// A model on a corpus, without memory limits: seconds of each static strategy, of the best for each
// sequence, and of the heuristic.
struct PublishedReduction {
  std::string model;
  std::string corpus;
  std::vector<double> static_seconds;  // [strategy]
  double best_seconds = 0;
  double heuristic_seconds = 0;
  // What the publication says against the worst static strategy, as a (negative) fraction.
  std::optional<double> published = std::nullopt;

  // "best" and "heuristic" as fractions more (less: negative) than the worst or best static one.
  [[nodiscard]] double against_worst(double seconds) const;
  [[nodiscard]] double against_best(double seconds) const;
};
std::vector<PublishedReduction> published_reductions(std::int64_t count, std::uint64_t seed);

// The heuristic without one of its parts on GPT and GRCh38, with memory; seconds of the full one
// are to the same length.
struct PublishedAblation {
  std::string without;  // "": nothing
  std::optional<Switching> found;
  double full_seconds = 0;
  std::int64_t published_longest = 0;
  double published_seconds = 0;
  double published_full_seconds = 0;  // 0: not said
};
std::vector<PublishedAblation> published_ablations(std::int64_t count, std::uint64_t seed);

// Of the heuristic's seconds on GPT and GRCh38, the share of sequences up to a length.
struct PublishedShare {
  std::int64_t up_to = 0;
  double published = 0;  // seconds to there, and of all, as its ablation says them
  double found = 0;
  // The same if lengths were evenly spread in their bins, and those of the last one no longer than
  // the longest that has a plan.
  double of_short_even_bins = 0;
};
std::vector<PublishedShare> published_shares(std::int64_t count, std::uint64_t seed);

// What is assumed where the publication says nothing, a sentence each.
const std::vector<std::string>& published_assumptions();

}  // namespace paradyse
