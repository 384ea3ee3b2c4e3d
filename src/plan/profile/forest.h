// A random forest for regression: Breiman, "Random Forests", 2001, of CART trees (Breiman,
// Friedman, Olshen, Stone 1984) that are each grown on a draw of the samples with replacement.  All
// features are looked at in every split, as scikit-learn's RandomForestRegressor does by default,
// which it is compared with in docs/internals/costs.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/plan/base/json_node.h"

namespace paradyse {

struct ForestSample {
  std::vector<double> features;
  double value = 0;
};

// Nodes of a binary tree; node 0 is its root.
struct Tree {
  struct Node {
    int feature = -1;      // of an inner node; -1: a leaf
    double threshold = 0;  // features up to here go to `below`, others to the node after that
    int below = -1;
    double value = 0;  // of a leaf: the mean of its samples

    friend bool operator==(const Node&, const Node&) = default;
  };
  std::vector<Node> nodes;

  [[nodiscard]] double operator()(std::span<const double> features) const;
  friend bool operator==(const Tree&, const Tree&) = default;
};

struct Forest {
  std::vector<Tree> trees;

  struct Answer {
    double mean = 0;
    double spread = 0;  // standard deviation of the trees' answers
  };
  [[nodiscard]] Answer operator()(std::span<const double> features) const;
  friend bool operator==(const Forest&, const Forest&) = default;
};

struct ForestOptions {
  int trees = 50;  // as published, and the depth
  int depth = 10;
  std::uint64_t seed = 1;
};

// A tree splits where the sum of squared errors falls most, half-way between neighbouring values,
// until its samples are alike or it is `depth` deep.  The same samples and seed give the same
// forest on every machine.  Throws std::invalid_argument without samples, trees or depth.
Forest grow_forest(std::span<const ForestSample> samples, const ForestOptions& options);

// Four lists a tree: feature, threshold, below, value.
nlohmann::ordered_json json_of(const Forest& forest);
// Throws std::invalid_argument for what is no tree: `features` are how many there are.
Forest forest_from(const JsonNode& node, int features);

}  // namespace paradyse
