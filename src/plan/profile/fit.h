// Cost models fitted to a profile, and the costs file that keeps them.
//
// Two models, both kept and compared on lengths they have not seen:
//   hybrid      as published (ParaDySe, arXiv 2511.13198): for each strategy a random forest inside
//               the profiled range and a polynomial of degree 1 to 3, chosen by AIC, beyond it; of
//               seconds by phase and of peak memory
//   structured  for each strategy non-negative least squares on what is counted: operations,
//               bytes, calls and collectives; so a s^2 + b s + c, rising in s, and good for other
//               shapes and numbers of ranks.  Peak memory is the program's fold
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/detail/time_model.h"
#include "paradyse/plan/profile.h"

namespace paradyse {

// How the hybrid model divides its work between forest and polynomial.
enum class Hybrid {
  by_range,     // forest inside the profiled range, polynomial beyond
  by_strategy,  // forest for some strategies, polynomial for others: what is better on held-out
};

struct FitOptions {
  Hybrid hybrid = Hybrid::by_range;
  int trees = 50;  // as published
  int depth = 10;
  std::uint64_t seed = 1;
};

// Mean and worst relative error of the seconds of a part on lengths left out of the fit.
struct HeldOutError {
  std::string model;  // "structured", "hybrid"
  std::string part;   // "step": of whole steps; "peak memory": of bytes; "": of all parts but both
  std::string strategy;  // "": all of the part
  bool beyond = false;   // longer than all that was fitted (up to 4 x), else inside the range
  std::int64_t probes = 0;
  double mean = 0;
  double worst = 0;
  // Mean of predicted / measured - 1: above 0, too much was predicted.  Files of before have none.
  std::optional<double> bias = {};
  // What a measurement errs by as a prediction of its own repetition: the mean difference of one
  // from the median of the others.  No model can be expected to err less.  None: it was measured
  // once.
  std::optional<double> floor = {};
  int ranks = 0;  // of groups of so many, of a part or step as a whole; 0: of groups of any size

  friend bool operator==(const HeldOutError&, const HeldOutError&) = default;
};

struct Costs {
  ProfileHeader header;
  std::shared_ptr<const TimeModel> structured = {};
  std::shared_ptr<const TimeModel> hybrid = {};
  std::string best = {};       // name of the one with the lower held-out error: the default
  double memory_overhead = 0;  // measured peak over counted peak, less one: the largest seen
  double optimizer_seconds_per_byte = 0;  // of what is stored a rank: weights, gradients, moments
  double step_seconds = 0;                // of a step, whatever its size
  std::vector<HeldOutError> errors = {};
  // Tokens; what a run on these GPUs goes by.  None: not measured, or a file of before.
  std::optional<std::int64_t> attention_dense_from = {};

  // Of a step what is no micro-batch: the update of so many bytes of the fullest rank.
  [[nodiscard]] double update_seconds(std::int64_t bytes) const;
  [[nodiscard]] const TimeModel& model() const;  // the best
  // "structured" or "hybrid"; "": the best.  Throws std::invalid_argument for another name.
  [[nodiscard]] std::shared_ptr<const TimeModel> model(const std::string& name) const;
};

// The hybrid model without its forests: polynomials inside the profiled range, too.
std::shared_ptr<const TimeModel> without_forest(const Costs& costs);

// Whole steps are what is fitted: the seconds of a step's parts are taken in the proportions that
// were measured and add up to what the step took.  Throws std::invalid_argument for a profile that
// lacks something for a fit.
Costs fit(const Profile& profile, const FitOptions& options = {});
// Three measured lengths of one strategy of each part: what is lacking, and what to do; "":
// nothing.
std::string lacks_for_a_fit(const Profile& profile);
// Strategies with fewer measured lengths ("attention METP"): others of their part answer for them.
std::vector<std::string> left_out_of_a_fit(const Profile& profile);

// SHA-256 of what write_costs writes.
std::string fingerprint(const Costs& costs);

// The costs file is JSON ("paradyse-costs", version 2), in docs/internals/costs.md.  write_costs
// puts the whole file in place at once; read_costs throws std::invalid_argument naming file and
// JSON path.
void write_costs(const Costs& costs, const std::filesystem::path& file);
Costs read_costs(const std::filesystem::path& file);

}  // namespace paradyse
