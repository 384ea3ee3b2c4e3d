// The structured model: the seconds of a phase are a sum of what it does, each amount times the
// seconds that a unit of it takes, and a constant.
//
// Words.  *Rates* are these seconds a unit; none is ever 0, so seconds rise strictly with every
// amount of the same calls.  *Spilled* bytes are those that a call touches beyond what a core's
// cache keeps for it: they come at another price, so that seconds are convex in the length, as
// measured. Rates are fitted from the general to the special, each fit drawn towards the one
// before, so that what the measurements of one strategy cannot tell apart is taken from all
// strategies:
//   prior (kernels and collectives alone) -> machine (all probes) -> part -> strategy -> size of a
//   group, where several were measured -> phase
// Between sizes that were measured seconds lie on a line over the logarithm of the size; beyond
// them the strategy's own rates answer, which all sizes were fitted to.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "paradyse/plan/detail/time_model.h"
#include "paradyse/plan/profile.h"

namespace paradyse {

// Seconds of a unit of each amount, of a spilled byte, and of a phase that does anything at all.
struct Rates {
  static constexpr std::size_t kSpilled = Amounts::kCount;
  static constexpr std::size_t kPhase = Amounts::kCount + 1;
  static constexpr std::size_t kCount = Amounts::kCount + 2;
  // Bytes of a call that stay in a core's cache.  Of 20 KB to 2 MB the one with the least errors
  // beyond the fitted lengths, on an EPYC with 1 MiB of level 2 a core (docs/internals/costs.md).
  static constexpr double kCachedBytes = 5e5;
  std::array<double, kCount> values{};

  [[nodiscard]] double seconds(const Amounts& amounts) const;
  friend bool operator==(const Rates&, const Rates&) = default;
};
using PhaseRates = std::array<Rates, kPartPhases>;

// Of a strategy; joint: of a part, of the machine.
struct FittedRates {
  PhaseRates rates = {};
  std::int64_t longest = 0;  // length that was measured
  double error_inside = 0;   // relative, one sigma, on lengths left out; up to `longest`
  double error_beyond = 0;

  friend bool operator==(const FittedRates&, const FittedRates&) = default;
};

class Structured final : public TimeModel {
 public:
  [[nodiscard]] std::string name() const override { return "structured"; }
  [[nodiscard]] bool by_work() const override { return true; }
  // What was measured does with what was; of a part of which nothing was, all do.
  [[nodiscard]] bool compares(const std::string& part, const std::string& strategy) const override {
    return strategies.contains({part, strategy}) || !parts.contains(part);
  }
  [[nodiscard]] PartSeconds seconds(const PartQuestion& question) const override;
  // The strategy's, whatever the group; of one that was not measured the part's; of another part
  // the machine's.
  [[nodiscard]] const FittedRates& rates_for(
      const std::string& part, const std::string& strategy) const;

  FittedRates machine;
  std::map<std::string, FittedRates> parts;
  std::map<std::pair<std::string, std::string>, FittedRates> strategies;  // part, strategy
  // Of strategies that were measured in groups of several sizes, where their own rates are better
  // on lengths left out than those of all.  Costs files of before have none.
  struct Sizes {
    std::map<int, FittedRates> rates = {};  // by ranks of a group

    friend bool operator==(const Sizes&, const Sizes&) = default;
  };
  std::map<std::pair<std::string, std::string>, Sizes> sizes;
};

// What a machine does alone: kernels on one core, collectives among ranks.  What was not measured
// is taken from MachineNumbers.
Rates prior_rates(const Profile& profile);

// How hard a fit is drawn towards the one before: 1 counts as much as all measurements together.
struct Pull {
  double strategy = 1e-4;
  double phase = 1e-2;
  bool one_for_all_phases = false;
  bool by_size = false;  // sizes of groups have rates of their own, drawn to their strategy's alike
};

// `probes`: parts that were measured.
std::shared_ptr<Structured> fit_structured(
    std::span<const PartProbe> probes, const Rates& prior, const Pull& pull);

// For each strategy the pull, of a handful, with the least error on lengths left out; with it is
// decided whether sizes of groups have rates of their own.
std::shared_ptr<Structured> fit_structured(std::span<const PartProbe> probes, const Rates& prior);

}  // namespace paradyse
