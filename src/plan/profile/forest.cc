#include "src/plan/profile/forest.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

#include "paradyse/plan/detail/index.h"

namespace paradyse {

namespace {

// Below `end`, the same on every machine; std::uniform_int_distribution is not.
std::size_t draw(std::mt19937_64& random, std::size_t end) {
  const std::uint64_t whole = ~std::uint64_t{0} - ~std::uint64_t{0} % end;  // a multiple of end
  std::uint64_t number = random();
  while (number >= whole) {
    number = random();
  }
  return idx(number % end);
}

struct Split {
  int feature = -1;
  double threshold = 0;
  double gain = 0;  // by how much the sum of squared errors falls
};

class Grower {
 public:
  Grower(std::span<const ForestSample> samples, int depth) : samples_(samples), depth_(depth) {}

  // `drawn`: which samples, some several times.
  Tree operator()(std::vector<std::size_t> drawn) {
    tree_ = {};
    tree_.nodes.emplace_back();
    grow(0, drawn, 0);
    return std::move(tree_);
  }

 private:
  [[nodiscard]] double value(std::size_t sample) const { return samples_[sample].value; }

  void grow(std::size_t node, std::span<std::size_t> drawn, int depth) {
    double sum = 0;
    for (const std::size_t sample : drawn) {
      sum += value(sample);
    }
    const double mean = sum / static_cast<double>(drawn.size());
    tree_.nodes[node].value = mean;
    const Split split = depth < depth_ ? best_split(drawn, mean) : Split{};
    if (split.feature < 0) {
      return;
    }
    const auto feature = idx(split.feature);
    // Stable: the order of sums, hence their rounding, is then the same everywhere.
    const auto middle = std::stable_partition(drawn.begin(), drawn.end(), [&](std::size_t sample) {
      return samples_[sample].features[feature] <= split.threshold;
    });
    const std::size_t below = tree_.nodes.size();
    tree_.nodes[node] = {
        .feature = split.feature, .threshold = split.threshold, .below = static_cast<int>(below)};
    tree_.nodes.resize(below + 2);
    const auto count = idx(middle - drawn.begin());
    grow(below, drawn.first(count), depth + 1);
    grow(below + 1, drawn.subspan(count), depth + 1);
  }

  // With n samples of sum S split into (n1, S1) and (n2, S2), all less the mean, squared errors
  // fall by S1^2 / n1 + S2^2 / n2.
  [[nodiscard]] Split best_split(std::span<std::size_t> drawn, double mean) const {
    Split best;
    double squares = 0;
    for (const std::size_t sample : drawn) {
      squares += (value(sample) - mean) * (value(sample) - mean);
    }
    best.gain = 1e-14 * squares;  // less is rounding
    for (std::size_t f = 0; f < samples_.front().features.size(); ++f) {
      const auto at = [&](std::size_t i) { return samples_[drawn[i]].features[f]; };
      // By number where features are equal: sums, hence trees, do not depend on the sort.
      std::sort(drawn.begin(), drawn.end(), [&](std::size_t a, std::size_t b) {
        return std::pair(samples_[a].features[f], a) < std::pair(samples_[b].features[f], b);
      });
      double left = 0;
      for (std::size_t i = 0; i + 1 < drawn.size(); ++i) {
        left += value(drawn[i]) - mean;
        if (at(i) == at(i + 1)) {
          continue;
        }
        const auto n1 = static_cast<double>(i + 1);
        const double n2 = static_cast<double>(drawn.size()) - n1;
        const double gain = left * left * (1 / n1 + 1 / n2);
        if (gain > best.gain) {
          best = {
              .feature = static_cast<int>(f),
              .threshold = at(i) + (at(i + 1) - at(i)) / 2,
              .gain = gain};
        }
      }
    }
    return best;
  }

  std::span<const ForestSample> samples_;
  int depth_;
  Tree tree_;
};

}  // namespace

double Tree::operator()(std::span<const double> features) const {
  std::size_t at = 0;
  while (nodes[at].feature >= 0) {
    const bool below = features[idx(nodes[at].feature)] <= nodes[at].threshold;
    at = idx(nodes[at].below) + (below ? 0 : 1);
  }
  return nodes[at].value;
}

Forest::Answer Forest::operator()(std::span<const double> features) const {
  std::vector<double> answers;
  answers.reserve(trees.size());
  for (const Tree& tree : trees) {
    answers.push_back(tree(features));
  }
  const auto n = static_cast<double>(trees.size());
  Answer answer{.mean = std::accumulate(answers.begin(), answers.end(), 0.0) / n};
  for (const double one : answers) {
    answer.spread += (one - answer.mean) * (one - answer.mean) / n;
  }
  answer.spread = std::sqrt(answer.spread);
  return answer;
}

Forest grow_forest(std::span<const ForestSample> samples, const ForestOptions& options) {
  if (samples.empty() || options.trees < 1 || options.depth < 1) {
    throw std::invalid_argument(
        "a forest needs samples, trees and depth, and has " + std::to_string(samples.size()) +
        ", " + std::to_string(options.trees) + " and " + std::to_string(options.depth) +
        ": give at least 1 of each");
  }
  std::mt19937_64 random(options.seed);
  Grower grow(samples, options.depth);
  Forest forest;
  for (int t = 0; t < options.trees; ++t) {
    std::vector<std::size_t> drawn(samples.size());
    for (std::size_t& sample : drawn) {
      sample = draw(random, samples.size());
    }
    forest.trees.push_back(grow(std::move(drawn)));
  }
  return forest;
}

nlohmann::ordered_json json_of(const Forest& forest) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Tree& tree : forest.trees) {
    nlohmann::ordered_json lists = {
        {"feature", nlohmann::ordered_json::array()},
        {"threshold", nlohmann::ordered_json::array()},
        {"below", nlohmann::ordered_json::array()},
        {"value", nlohmann::ordered_json::array()}};
    for (const Tree::Node& node : tree.nodes) {
      lists["feature"].push_back(node.feature);
      lists["threshold"].push_back(node.threshold);
      lists["below"].push_back(node.below);
      lists["value"].push_back(node.value);
    }
    json.push_back(std::move(lists));
  }
  return json;
}

Forest forest_from(const JsonNode& node, int features) {
  Forest forest;
  for (const JsonNode& lists : node.elements()) {
    lists.allow({"feature", "threshold", "below", "value"});
    const auto feature = lists.at("feature").integers<int>();
    const auto threshold = lists.at("threshold").numbers();
    const auto below = lists.at("below").integers<int>();
    const auto value = lists.at("value").numbers(-kMostNumber, kMostNumber);
    const std::size_t n = feature.size();
    if (n == 0 || threshold.size() != n || below.size() != n || value.size() != n) {
      lists.fail(
          "feature, threshold, below and value are equally long, with at least one node; they "
          "have " +
          std::to_string(n) + ", " + std::to_string(threshold.size()) + ", " +
          std::to_string(below.size()) + ", " + std::to_string(value.size()));
    }
    Tree tree;
    for (std::size_t i = 0; i < n; ++i) {
      const bool leaf = feature[i] == -1;
      // Forwards only: every walk ends.
      const bool forwards = below[i] > static_cast<int>(i) && below[i] < static_cast<int>(n) - 1;
      if (!leaf && (feature[i] < 0 || feature[i] >= features || !forwards)) {
        lists.fail(
            "node " + std::to_string(i) + " has feature " + std::to_string(feature[i]) + " of " +
            std::to_string(features) + " and continues at node " + std::to_string(below[i]) +
            " of " + std::to_string(n) + ": this is not a tree; fit again");
      }
      tree.nodes.push_back(
          {.feature = feature[i], .threshold = threshold[i], .below = below[i], .value = value[i]});
    }
    forest.trees.push_back(std::move(tree));
  }
  if (forest.trees.empty()) {
    node.fail("a forest without trees; fit again");
  }
  return forest;
}

}  // namespace paradyse
