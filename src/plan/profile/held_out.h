// Errors of a model on lengths that it has not seen.
//
//   inside  each length in turn is left out of the fit, and predicted for all that was measured
//   both
//           at a shorter and at a longer one
//   beyond  what is up to a quarter of the longest length is fitted, and what is longer predicted,
//           for all that has three lengths in the fit
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/plan/profile/fit.h"

namespace paradyse {

struct HeldOut {
  std::size_t probe = 0;
  bool beyond = false;
  double predicted = 0;  // seconds of the three phases
  double error = 0;      // predicted / measured - 1
};

using Fitter = std::function<std::shared_ptr<const TimeModel>(std::span<const PartProbe>)>;

// `probes`: parts that were measured.  Of more lengths than `folds` several are left out at once,
// the first, the one `folds` after it, ...: for choices made inside of a fit.
std::vector<HeldOut> held_out(
    std::span<const PartProbe> probes,
    const Fitter& fitter,
    std::size_t folds = std::numeric_limits<std::size_t>::max());

// Sums over some of them.
struct ErrorSum {
  std::int64_t probes = 0;
  double sum = 0;
  double signed_sum = 0;
  double squares = 0;
  double worst = 0;
  std::int64_t repeated = 0;  // those that were measured more than once
  double floor_sum = 0;

  void add(double error, std::optional<double> floor = {});
  [[nodiscard]] double mean() const;
  [[nodiscard]] double root_mean_square() const;
};

struct ErrorSums {
  ErrorSum inside;
  ErrorSum beyond;

  void add(const HeldOut& one, std::optional<double> floor = {});
  // What models are chosen by: the mean of both means, of one where only that was measured.
  [[nodiscard]] double mean() const;
};

// HeldOutError::floor of each probe of a pooled profile, from the rounds that it was made of.
using Floors = std::vector<std::optional<double>>;
Floors floors_of(std::span<const PartProbe> pooled, std::span<const PartProbe> rounds);
Floors floors_of(std::span<const StepProbe> pooled, std::span<const StepProbe> rounds);

// Rows of each part and strategy, each part (strategy ""), and all (part "" and strategy ""); then
// of all by the size of groups, where there are several.
// `floors`: of the probes; none: not known.
std::vector<HeldOutError> error_rows(
    const std::string& model,
    std::span<const PartProbe> probes,
    const std::vector<HeldOut>& held_out,
    const Floors& floors = {});

// Rows of whole steps (part "step") of each attention, of all, and of all by the size of groups:
// their parts' predictions summed over `layers` layers, against what the step took.  `floors`: of
// the steps.
std::vector<HeldOutError> step_error_rows(
    const std::string& model,
    std::span<const PartProbe> probes,
    const std::vector<HeldOut>& held_out,
    std::span<const StepProbe> steps,
    std::int64_t layers,
    const Floors& floors = {});

PartQuestion question_of(const PartProbe& probe);
double total_seconds(const PartProbe& probe);

}  // namespace paradyse
