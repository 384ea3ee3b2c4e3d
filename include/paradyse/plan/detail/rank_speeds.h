// How fast the ranks of a run compute beside each other, learned from its steps: the device of a
// rank may be older than the others, hot, or shared with another program.
//
// In a step rank r computed for c(r) seconds, waiting for others left out, and had work w(r), in
// seconds of the closed form.  It took x(r) = c(r) / w(r) over the lower median of these of all
// ranks.  With m the median of its last nine x, a rank is slow from m = 1.25 on, and until m is
// below 1.15; its speed is 1 / m.  All others have speed 1.  Medians, since a step that something
// else disturbed says nothing.  It is slow since the step where the last nine x divide best into
// those below 1.25 and those from there on.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace paradyse {

// Deterministic in what it is told.
class RankSpeeds {
 public:
  static constexpr std::size_t kRemembered = 9;
  static constexpr std::size_t kEnough = 5;  // x of a rank, before it may be slow
  static constexpr double kSlow = 1.25;
  static constexpr double kRecovered = 1.15;

  // [rank] Whether a step in which ranks computed so long says anything: there are two at least,
  // and one computed for 50 ms.
  [[nodiscard]] static bool tells(const std::vector<double>& computed);
  // [rank] Of a step.  Ranks with less than a fifth of the most work are passed over, and a step
  // with fewer than two others, or that does not tell.  `step`: its number, from 1; 0: it has none.
  // Whether speeds() changed.
  bool observe(
      const std::vector<double>& computed, const std::vector<double>& work, std::int64_t step = 0);

  // [rank] At most 1; empty: no rank is slow.  Small changes are not told.
  [[nodiscard]] const std::vector<double>& speeds() const { return speeds_; }
  // [rank] The step since which it is slow; 0: it is not, or that was not seen.
  [[nodiscard]] const std::vector<std::int64_t>& slow_since() const { return slow_since_; }
  // "rank 1 computes at 0.52 times the speed of the others (slow since step 10)", or that none
  // does.
  [[nodiscard]] std::string said() const;
  // Counts the changes of speeds().
  [[nodiscard]] std::int64_t version() const { return version_; }

  // All that it knows, to go on from: [rank] the last x.
  using Ratios = std::vector<std::deque<double>>;
  [[nodiscard]] const Ratios& ratios() const { return ratios_; }
  // In the place of what it knows.
  void learn(const Ratios& ratios, const std::vector<std::int64_t>& slow_since);

 private:
  void publish();
  [[nodiscard]] std::int64_t slow_from(std::size_t rank) const;

  Ratios ratios_;
  std::vector<std::deque<std::int64_t>> steps_;  // of ratios_; 0: not known
  std::vector<std::int64_t> slow_since_;
  std::vector<double> speeds_;
  std::int64_t version_ = 0;
};

}  // namespace paradyse
