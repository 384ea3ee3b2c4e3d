// The publication played again: figures within half a point of those its quadratics imply, and what
// must hold of switching whatever the numbers.
#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <gtest/gtest.h>

#include "lab/replay/paradyse.h"

namespace paradyse {
namespace {

constexpr std::int64_t kSequences = 20000;

// The figures of the design page, found by integrating over the bins: the best strategy for each
// sequence against the worst and the best static one, in %.
TEST(Published, ReductionsAreThoseThatTheQuadraticsImply) {
  const std::map<std::pair<std::string, std::string>, std::pair<double, double>> expected = {
      {{"BERT", "GitHubCode"}, {-84.7, -4.5}},
      {{"BERT", "GRCh38"}, {-58.4, -4.7}},
      {{"LLaMA", "GitHubCode"}, {-45.0, -4.2}},
      {{"LLaMA", "GRCh38"}, {-19.7, -4.5}},
      {{"GPT", "GitHubCode"}, {-44.9, -3.5}},
      {{"GPT", "GRCh38"}, {-20.3, -3.9}}};
  const auto found = published_reductions(kSequences, 1);
  ASSERT_EQ(found.size(), expected.size());
  for (const PublishedReduction& one : found) {
    SCOPED_TRACE(one.model + " " + one.corpus);
    const auto [worst, best] = expected.at({one.model, one.corpus});
    EXPECT_NEAR(100 * one.against_worst(one.best_seconds), worst, 0.5);
    EXPECT_NEAR(100 * one.against_best(one.best_seconds), best, 0.3);
    // Smoothing keeps a plan that is up to 5 % slower, and no more.
    EXPECT_GE(one.heuristic_seconds, one.best_seconds * (1 - 1e-9));
    EXPECT_LE(one.heuristic_seconds, one.best_seconds * 1.05);
  }
}

TEST(Published, LengthsHaveTheBinsShares) {
  for (const PublishedCorpus& corpus : published_corpora()) {
    const std::vector<std::int64_t> lengths = published_lengths(corpus, kSequences, 3);
    EXPECT_TRUE(std::ranges::is_sorted(lengths));
    EXPECT_EQ(lengths, published_lengths(corpus, kSequences, 3));
    EXPECT_NE(lengths, published_lengths(corpus, kSequences, 4));
    // as printed they add up to 100 and 99.1
    const double all = std::accumulate(corpus.shares.begin(), corpus.shares.end(), 0.0);
    for (std::size_t bin = 0; bin < corpus.shares.size(); ++bin) {
      const auto inside = std::ranges::count_if(lengths, [&](std::int64_t n) {
        const auto length = static_cast<double>(n);
        return length >= corpus.edges[bin] && length < corpus.edges[bin + 1];
      });
      EXPECT_NEAR(
          100.0 * static_cast<double>(inside) / static_cast<double>(kSequences),
          100 * corpus.shares[bin] / all,
          0.05)
          << corpus.name << " " << bin;
    }
    EXPECT_THROW(published_lengths(corpus, 0, 1), std::invalid_argument);
    EXPECT_EQ(published_lengths(corpus, 1, 1).size(), 1U);
  }
}

// The lengths that the footprints come from are met; METP's is far beyond the others'.
TEST(Published, LongestSequencesAreThePublishedOnes) {
  const PublishedModel& gpt = published_models().back();
  EXPECT_NEAR(static_cast<double>(gpt.longest(3)), 329728, 1);
  EXPECT_NEAR(static_cast<double>(gpt.longest(0)), 117248, 0.01 * 117248);
  for (const PublishedModel& model : published_models()) {
    for (std::size_t i = 0; i < model.strategies.size(); ++i) {
      const std::vector<std::int64_t> fits = {model.longest(i) - 1};
      const std::vector<std::int64_t> too_long = {model.longest(i) + 2};
      SwitchingRules alone;
      for (std::size_t other = 0; other < model.strategies.size(); ++other) {
        if (other != i) {
          alone.without.push_back(model.strategies[other].name);
        }
      }
      EXPECT_EQ(play_switching(model, fits, alone).sequences, 1) << model.name << " " << i;
      EXPECT_EQ(play_switching(model, too_long, alone).sequences, 0) << model.name << " " << i;
    }
  }
}

// What the publication says of its parts, by sign and size: MegatronTS is worth most seconds, METP
// most length, everything else about 1 % or less.
TEST(Published, AblationsHaveTheSameShape) {
  std::map<std::string, PublishedAblation> by_name;
  for (const PublishedAblation& one : published_ablations(kSequences, 1)) {
    by_name[one.without] = one;
  }
  const PublishedAblation& full = by_name.at("");
  EXPECT_EQ(full.found->seconds, full.full_seconds);
  const auto worth = [&](const char* name) {
    return by_name.at(name).found->seconds / by_name.at(name).full_seconds - 1;
  };
  // published: 3173.80 / 2799.45
  EXPECT_GT(worth("MegatronTS"), 0.08);
  EXPECT_LT(worth("MegatronTS"), 0.25);
  for (const char* name : {"MegatronCZ", "UlyssesZ", "METP", "smoothing", "mixing"}) {
    EXPECT_LT(std::abs(worth(name)), 0.05) << name;
  }
  EXPECT_LT(
      static_cast<double>(by_name.at("METP").found->longest),
      0.4 * static_cast<double>(full.found->longest));
  EXPECT_FALSE(by_name.at("forest").found.has_value());
  EXPECT_GE(by_name.at("smoothing").found->switches, full.found->switches);
}

// Long sequences have a smaller share of our seconds than of the published ones.  Evenly spread
// lengths of which all have a plan explain that to within 1.6 points.
TEST(Published, SharesOfSecondsByLength) {
  // few sequences have many of the seconds
  const std::vector<PublishedShare> shares = published_shares(10 * kSequences, 1);
  const std::vector<std::vector<double>> expected = {
      {112128, 0.553, 0.681}, {270336, 0.841, 0.910}, {300032, 0.898, 0.952}};
  ASSERT_EQ(shares.size(), expected.size());
  for (std::size_t i = 0; i < shares.size(); ++i) {
    SCOPED_TRACE(shares[i].up_to);
    EXPECT_EQ(static_cast<double>(shares[i].up_to), expected[i][0]);
    EXPECT_NEAR(shares[i].published, expected[i][1], 0.0005);
    EXPECT_NEAR(shares[i].found, expected[i][2], 0.006);
    EXPECT_GT(shares[i].found, shares[i].published + 0.05);
    EXPECT_NEAR(shares[i].of_short_even_bins, shares[i].published, 0.016);
  }
}

TEST(Published, RefusesStrategiesThatAreNotThere) {
  const PublishedModel& gpt = published_models().back();
  const std::vector<std::int64_t> one = {1000};
  EXPECT_THROW(play_switching(gpt, one, {.without = {"DataZ"}}), std::invalid_argument);
  EXPECT_THROW(
      play_switching(gpt, one, {.without = {"MegatronTS", "UlyssesZ", "MegatronCZ", "METP"}}),
      std::invalid_argument);
  EXPECT_EQ(play_switching(gpt, {}, {}).sequences, 0);
}

}  // namespace
}  // namespace paradyse
