// What a run teaches its time model: a factor for each strategy, size of its group and length, from
// measured seconds.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

namespace paradyse {

// What is told apart of lengths: the powers of two.
int log2_bucket(std::int64_t tokens);

// Robust: the factor is the median of the last measurements over what was predicted for them, and 1
// until there are three.  Lengths are told apart by powers of two.  Deterministic in what it is
// told.
class Correction {
 public:
  static constexpr std::size_t kRemembered = 9;
  static constexpr double kMost = 8;  // no factor is above it, or below its inverse

  // `predicted`: without any factor.  Values that are not above 0 are passed over.
  void observe(
      const std::string& strategy,
      int ranks,
      std::int64_t length,
      double predicted,
      double measured);
  [[nodiscard]] double factor(const std::string& strategy, int ranks, std::int64_t length) const;

  // What is told apart.
  struct Key {
    std::string strategy = {};
    int ranks = 1;        // of the group
    int log2_length = 0;  // log2_bucket()

    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // All that it knows, to go on from: the last ratios of measured to predicted seconds.
  using Ratios = std::map<Key, std::deque<double>>;
  [[nodiscard]] const Ratios& ratios() const { return ratios_; }
  // In the place of what it knows; the machine of now is taken for that of the beginning.
  void learn(const Ratios& ratios);

  // Counts the changes of any factor: what was planned before one is out of date.
  [[nodiscard]] std::int64_t version() const { return version_; }

  // Once each time that the machine as a whole has become so much slower or faster than it was at
  // first (the median of what was observed lately, over that of the beginning): the ratio.
  static constexpr double kNoticed = 1.5;
  std::optional<double> machine_changed();

 private:
  Ratios ratios_;
  std::map<Key, double> factors_;
  std::int64_t version_ = 0;
  std::map<Key, double> began_;  // factors of the beginning
  std::deque<double> lately_;    // ratios over those
};

}  // namespace paradyse
