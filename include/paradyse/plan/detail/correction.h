// What a run teaches its time model: factors from measured seconds.  The machine as a whole may be
// slower than its model; beyond that a part of the model under a strategy, on groups of a size, and
// that at a length.
//
// In a group of p ranks, whose longest document lies in the bucket b of lengths, a part under a
// strategy (s, for both) was predicted and took y = ln(measured / predicted).  With `n` for how
// much of something was measured, and nothing counted of which there were not three:
//
//   machine     median of the last y - first(s, p, b) of five micro-batches, first(s, p, b) being
//               the median of the first three r of it: how much slower the machine is than when it
//               was first seen
//   r           y - machine, of then; of each (s, p, b) the last nine are remembered
//   common      median over the m (s, p) of one part of the medians of their r; where it is above
//               0, m / (m + 1) of it.  Of a part that was not measured, and of what is no part's:
//               over all (s, p), m being that of the part that has most
//   a(s, p)     common + n / (n + 1) (median r of (s, p) - common)
//   b(s, p, b)  a(s, p) + n / (n + 1) (median r of (s, p, b) - a(s, p))
//
// The factor is exp(machine + b(s, p, b)), or a(s, p) for a length that was not measured.  Of a
// part, strategy and size that was not, it is exp(machine + common - doubt), doubt = ln(1.1): costs
// err by so much, so what is as near is worth a try, and once it was tried it is known.  Not on the
// longest documents that were measured, where a try that fails takes most, unless all are as long:
// there doubt is 0; nor of what has no strategy.  In the same spirit `common` counts whole where it
// speaks for what was not tried.  Medians (of ratios: the mean of the middle two of an even
// number), since a step that something else disturbed is any number of times slower.
//
// So a machine that changes moves all parts and strategies alike, those that were not tried, too;
// and what is a strategy's own stays, since it was noted over the machine of then.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace paradyse {

// What is told apart of lengths: the powers of two.
int log2_bucket(std::int64_t tokens);

// A part of the model, as costs call it, by the strategy that runs it: "rest", which is in no
// layer, and "move" have none.
struct CostedPart {
  std::string part;
  std::string strategy;

  friend auto operator<=>(const CostedPart&, const CostedPart&) = default;
};

// Deterministic in what it is told.
//
// One rule says which length is meant, where it is observed as where it is looked up: that of the
// longest document of the group.
class Correction {
 public:
  static constexpr std::size_t kRemembered = 9;
  static constexpr double kMost = 8;  // no factor is above it, or below its inverse

  // What is told apart.
  struct Key {
    CostedPart what = {};
    int ranks = 1;        // of the group
    int log2_length = 0;  // log2_bucket()

    friend auto operator<=>(const Key&, const Key&) = default;
  };
  // Seconds, `predicted` without any factor.
  struct Observed {
    Key of;
    double predicted = 0;
    double measured = 0;
  };
  // The parts of one micro-batch.  Those whose seconds are not above 0 are passed over.
  void observe(const std::vector<Observed>& parts);
  // What planners choose by; or, where nothing is `hoped`, what is expected: without the doubt of
  // what was not tried.
  [[nodiscard]] double factor(
      const CostedPart& what, int ranks, std::int64_t longest, bool hoped = true) const;
  // Of what is no part's: exp(machine + common).
  [[nodiscard]] double common_factor() const;

  // All that it knows, to go on from: exp(r) of the last ones, and exp(machine).
  using Ratios = std::map<Key, std::deque<double>>;
  [[nodiscard]] const Ratios& ratios() const { return ratios_; }
  [[nodiscard]] double machine() const { return machine_; }
  // In the place of what it knows; the machine of now is taken for that of the beginning.
  void learn(const Ratios& ratios, double machine = 1);

  // Counts the changes of factors: what was planned before one is out of date.
  [[nodiscard]] std::int64_t version() const { return version_; }

  // Once each time that the machine as a whole has become so much slower or faster than it was at
  // first (the median of what was observed lately, over that of the beginning): the ratio.
  static constexpr double kNoticed = 1.5;
  std::optional<double> machine_changed();

 private:
  using Cell = std::pair<CostedPart, int>;  // ranks
  // Logarithms, as the formula names them.
  struct Factors {
    double machine = 0;
    double common = 0;  // of no part
    std::map<std::string, double> common_of_parts = {};
    int no_tries_from = std::numeric_limits<int>::max();  // log2_bucket()
    std::map<Cell, double> cells = {};
    std::map<Key, double> keys = {};
  };
  [[nodiscard]] Factors factors() const;
  void publish();

  Ratios ratios_;
  double machine_ = 1;
  Factors published_;  // those that are looked up: small changes are not worth planning anew
  std::int64_t version_ = 0;
  std::map<Key, double> began_;  // exp(first)
  // Of micro-batches, the median of measured over predicted, over those.
  std::deque<double> lately_;
  double told_ = 1;            // the machine, when machine_changed() last told of it
  std::deque<double> untold_;  // of lately_, what came since then
};

}  // namespace paradyse
