// The forest: what a tree is, by trying all splits; what a forest is, by its data.
#include "src/plan/profile/forest.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::HasSubstr;

std::vector<ForestSample> staircase(int count, double noise, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<ForestSample> samples;
  for (int i = 0; i < count; ++i) {
    const double x = std::round(std::exp(std::uniform_real_distribution<double>(5, 9)(random)));
    const double level = static_cast<double>(random() % 3);
    const double y = 1e-6 * x * (1 + level) + (x > 1000 ? 1e-3 : 0);
    samples.push_back(
        {.features = {x, level},
         .value = y * (1 + noise * std::normal_distribution<double>()(random))});
  }
  return samples;
}

// Sum of squared differences from the mean.
double squares(const std::vector<ForestSample>& samples) {
  double mean = 0;
  double sum = 0;
  for (const ForestSample& sample : samples) {
    mean += sample.value / static_cast<double>(samples.size());
  }
  for (const ForestSample& sample : samples) {
    sum += (sample.value - mean) * (sample.value - mean);
  }
  return sum;
}

double squares(const Forest& forest, const std::vector<ForestSample>& samples) {
  double sum = 0;
  for (const ForestSample& sample : samples) {
    const double error = forest(sample.features).mean - sample.value;
    sum += error * error;
  }
  return sum;
}

// With one split, no threshold of any feature does better.  Each sample comes 400 times, so that
// the draw is nearly even.
TEST(Forest, ATreeSplitsWhereErrorsFallMost) {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    const std::vector<ForestSample> eight = staircase(8, 0.2, seed);
    std::vector<ForestSample> samples;
    for (const ForestSample& sample : eight) {
      samples.insert(samples.end(), 400, sample);
    }
    const Forest forest = grow_forest(samples, {.trees = 1, .depth = 1, .seed = seed});
    ASSERT_EQ(forest.trees[0].nodes.size(), 3);
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t f = 0; f < 2; ++f) {
      for (const ForestSample& border : eight) {
        std::vector<ForestSample> below;
        std::vector<ForestSample> above;
        for (const ForestSample& sample : samples) {
          (sample.features[f] <= border.features[f] ? below : above).push_back(sample);
        }
        least = std::min(least, squares(below) + squares(above));
      }
    }
    EXPECT_LT(squares(forest, samples), 1.1 * least) << "seed " << seed;
    EXPECT_GE(squares(forest, samples), (1 - 1e-9) * least) << "seed " << seed;
  }
}

// A deep tree gives back each sample that it has seen; about 1 - 1/e of them.
TEST(Forest, ADeepTreeKnowsWhatItHasSeen) {
  const std::vector<ForestSample> samples = staircase(200, 0.2, 3);
  const Forest forest = grow_forest(samples, {.trees = 1, .depth = 100, .seed = 1});
  std::size_t known = 0;
  for (const ForestSample& sample : samples) {
    known += std::abs(forest(sample.features).mean - sample.value) < 1e-15 ? 1 : 0;
  }
  EXPECT_GT(known, 110U);
  EXPECT_LT(known, 145U);
}

TEST(Forest, IsNoDeeperThanTold) {
  const std::vector<ForestSample> samples = staircase(300, 0.2, 4);
  for (int depth = 1; depth <= 6; ++depth) {
    for (const Tree& tree : grow_forest(samples, {.trees = 5, .depth = depth}).trees) {
      std::set<double> answers;
      for (const ForestSample& sample : samples) {
        answers.insert(tree(sample.features));
      }
      EXPECT_LE(answers.size(), std::size_t{1} << depth);
    }
  }
}

TEST(Forest, ManyTreesAreBetterThanOneAndSayHowSureTheyAre) {
  const std::vector<ForestSample> seen = staircase(60, 0.1, 5);
  const std::vector<ForestSample> unseen = staircase(500, 0, 6);
  const double one = squares(grow_forest(seen, {.trees = 1}), unseen);
  const Forest forest = grow_forest(seen, {});
  EXPECT_LT(squares(forest, unseen), one);
  EXPECT_EQ(forest.trees.size(), 50);
  const Forest::Answer answer = forest(std::vector<double>{3000, 1});
  double mean = 0;
  double spread = 0;
  for (const Tree& tree : forest.trees) {
    mean += tree(std::vector<double>{3000, 1}) / 50;
  }
  for (const Tree& tree : forest.trees) {
    spread += std::pow(tree(std::vector<double>{3000, 1}) - mean, 2) / 50;
  }
  EXPECT_NEAR(answer.mean, mean, 1e-15);
  EXPECT_NEAR(answer.spread, std::sqrt(spread), 1e-15);
  EXPECT_GT(answer.spread, 0);
}

// Between neighbouring samples it is level, and beyond the last one, too.
TEST(Forest, IsAStaircase) {
  const std::vector<ForestSample> samples = staircase(12, 0.1, 7);
  std::set<double> lengths;
  for (const ForestSample& sample : samples) {
    lengths.insert(sample.features[0]);
  }
  const Forest forest = grow_forest(samples, {});
  const double last = *lengths.rbegin();
  const double beyond = forest(std::vector<double>{last, 0}).mean;
  for (const double times : {1.5, 2.0, 100.0}) {
    EXPECT_EQ(forest(std::vector<double>{last * times, 0}).mean, beyond);
  }
  std::set<double> answers;
  for (double x = 1; x < last; x += 1) {
    answers.insert(forest(std::vector<double>{x, 0}).mean);
  }
  EXPECT_LT(answers.size(), 12U * 12U);
}

TEST(Forest, TheSameSeedGivesTheSameForest) {
  const std::vector<ForestSample> samples = staircase(40, 0.1, 8);
  EXPECT_EQ(grow_forest(samples, {.seed = 3}), grow_forest(samples, {.seed = 3}));
  EXPECT_NE(grow_forest(samples, {.seed = 3}), grow_forest(samples, {.seed = 4}));
  // The draws are std::mt19937_64's, whose numbers the standard fixes, by our own division: so the
  // same everywhere.  The leaves of a deep tree are what was drawn.
  const std::vector<ForestSample> five = {{{1}, 10}, {{2}, 20}, {{3}, 30}, {{4}, 40}, {{5}, 50}};
  std::mt19937_64 random(1);
  for (const Tree& tree : grow_forest(five, {.trees = 20, .seed = 1}).trees) {
    std::set<double> drawn;
    for (int i = 0; i < 5; ++i) {
      drawn.insert(five[random() % 5].value);
    }
    std::set<double> leaves;
    for (const Tree::Node& node : tree.nodes) {
      if (node.feature < 0) {
        leaves.insert(node.value);
      }
    }
    EXPECT_EQ(leaves, drawn);
  }
}

TEST(Forest, IsReadBackBitByBit) {
  const Forest forest = grow_forest(staircase(40, 0.1, 9), {});
  const JsonSource source{.name = "f.json", .whole = "the forest"};
  const nlohmann::json json = parse_json(json_of(forest).dump(), source);
  EXPECT_EQ(forest_from({json, source}, 2), forest);
}

TEST(Forest, RefusesWhatIsNoTree) {
  const JsonSource source{.name = "f.json", .whole = "the forest"};
  const auto refusal = [&](const std::string& text) -> std::string {
    const nlohmann::json json = parse_json(text, source);
    return test::refusal([&] { forest_from({json, source}, 2); });
  };
  const auto tree = [](const std::string& feature, const std::string& below) {
    return R"([{"feature": [)" + feature + R"(], "threshold": [1, 0, 0], "below": [)" + below +
           R"(], "value": [0, 1, 2]}])";
  };
  const nlohmann::json good = parse_json(tree("1, -1, -1", "1, -1, -1"), source);
  EXPECT_EQ(forest_from({good, source}, 2)(std::vector<double>{0, 2}).mean, 2);
  EXPECT_THAT(refusal(tree("2, -1, -1", "1, -1, -1")), HasSubstr("[0]: node 0 has feature 2 of 2"));
  EXPECT_THAT(refusal(tree("-2, -1, -1", "1, -1, -1")), HasSubstr("not a tree"));
  EXPECT_THAT(refusal(tree("0, -1, -1", "0, -1, -1")), HasSubstr("not a tree"));  // a loop
  EXPECT_THAT(refusal(tree("0, -1, -1", "2, -1, -1")), HasSubstr("not a tree"));  // past the end
  EXPECT_THAT(refusal(tree("0, -1, -1", "2147483647, -1, -1")), HasSubstr("not a tree"));
  EXPECT_THAT(refusal(tree("0, -1", "1, -1, -1")), HasSubstr("equally long"));
  EXPECT_THAT(refusal("[]"), HasSubstr("without trees"));
  EXPECT_THAT(
      refusal(R"([{"feature": [], "threshold": [], "below": [], "value": []}])"),
      HasSubstr("at least one node"));
  EXPECT_THAT(refusal("{}"), HasSubstr("expected a list"));
}

TEST(Forest, NeedsSamplesTreesAndDepth) {
  EXPECT_THROW(grow_forest({}, {}), std::invalid_argument);
  const std::vector<ForestSample> samples = {{{1}, 2}};
  EXPECT_THROW(grow_forest(samples, {.trees = 0}), std::invalid_argument);
  EXPECT_THROW(grow_forest(samples, {.depth = 0}), std::invalid_argument);
  EXPECT_EQ(grow_forest(samples, {})(std::vector<double>{99}).mean, 2);
}

}  // namespace
}  // namespace paradyse
