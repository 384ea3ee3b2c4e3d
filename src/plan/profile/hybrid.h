// The published model (ParaDySe, arXiv 2511.13198): for each strategy a random forest and
// polynomials, of the length (and the recompute level) alone.
//
// A forest answers with means of what was measured nearby: a staircase.  Beyond what was measured
// it would stay level, so a polynomial answers there.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "src/plan/profile/fit.h"
#include "src/plan/profile/forest.h"
#include "src/plan/profile/polynomial.h"

namespace paradyse {

// What one forest is of.
struct HybridKey {
  std::string part;
  std::string strategy;
  int ranks = 1;

  friend auto operator<=>(const HybridKey&, const HybridKey&) = default;
};

struct HybridFit {
  enum class Use {
    by_range,    // forest up to the longest length of the level, polynomial beyond
    forest,      // everywhere
    polynomial,  // everywhere
  };
  struct Level {
    std::int64_t longest = 0;
    std::array<Polynomial, kPartPhases> polynomials = {};

    friend bool operator==(const Level&, const Level&) = default;
  };

  Use use = Use::by_range;
  std::array<Forest, kPartPhases> forests = {};  // of length, recompute level
  std::map<Recompute, Level> levels = {};
  double error_inside = 0;  // of polynomials; relative, one sigma, on lengths left out
  double error_beyond = 0;

  friend bool operator==(const HybridFit&, const HybridFit&) = default;
};

class HybridModel final : public TimeModel {
 public:
  [[nodiscard]] std::string name() const override { return "hybrid"; }
  [[nodiscard]] bool by_work() const override { return false; }
  // A strategy, number of ranks or recompute level that was not measured at two lengths is beyond
  // this model: `otherwise` answers.
  [[nodiscard]] PartSeconds seconds(const PartQuestion& question) const override;

  std::map<HybridKey, HybridFit> fits;
  std::shared_ptr<const TimeModel> otherwise;
};

// `probes`: parts that were measured.  Hybrid::by_strategy: forest or polynomial, whichever has the
// lower error on lengths left out.
std::shared_ptr<HybridModel> fit_hybrid(
    std::span<const PartProbe> probes,
    const FitOptions& options,
    std::shared_ptr<const TimeModel> otherwise);

HybridKey key_of(const PartProbe& probe);

}  // namespace paradyse
