#include "src/run/check/check_case.h"

#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/gradients.h"
#include "src/run/check/own_rounding.h"
#include "src/run/kernels/kernels.h"

namespace paradyse {

namespace {

struct Tolerance {
  double loss = 0;
  double gradient = 0;  // in the measure of gradients.h
};

// Narrow types: multiples of their rounding.  Measured over the built-in subjects and small models
// of video and proteins, all ways and recompute levels and 1 to 4 ranks: 0.61 of the loss.  Each
// gradient is held to its own condition (own_rounding.h), none to more than is said here.
Tolerance tolerance(Dtype dtype) {
  if (narrow(dtype)) {
    return {.loss = 0.8 * rounding(dtype), .gradient = widest_narrow_limit(dtype)};
  }
  const double both = dtype == Dtype::float64 ? 1e-10 : 2e-5;
  return {.loss = both, .gradient = both};
}

}  // namespace

CheckRow empty_row(const std::string& way, LayerRecompute level, Dtype dtype, std::size_t ranks) {
  const Tolerance within = tolerance(dtype);
  return {
      .way = way,
      .recompute = to_string(level),
      .dtype = dtype,
      .losses = {ranks, {.tolerance = within.loss, .place = ""}},
      .gradients = {ranks, {.tolerance = within.gradient, .place = ""}},
      .counts_differ = {}};
}

void add_wave(const at::Tensor& vector, double height, double step) {
  const at::Tensor place = at::arange(vector.size(0), at::kFloat);
  vector.add_(height * at::cos(step * place).to(vector.device()));
}

void keep_from_corners(PartParameters& part, const Model& model) {
  const Part& of = *model.part(part.weights.part);
  if (of.kind != "mlp" || of.shape.activation != Activation::relu) {
    return;
  }
  const Interval biases = part.weights.vectors_of(Role::in_bias);
  for (std::int64_t i = biases.begin; i < biases.end; ++i) {
    add_wave(part.vectors[idx(i)], 1.8, std::numbers::pi);
  }
}

std::map<std::string, at::Tensor> whole_weights(
    const Model& model, const std::function<void(Parameters& parameters)>& fill, Dtype dtype) {
  std::map<std::string, at::Tensor> weights;
  run_local_ranks(1, {}, [&](Communicators& communicators) {
    Parameters parameters(model, 1, 0, parameter_types(dtype), /*gradients=*/false);
    fill(parameters);
    collect(
        parameters,
        Which::weights,
        communicators.world(),
        [&](const std::string& name, const at::Tensor& tensor) { weights[name] = tensor; });
  });
  for (auto& [name, tensor] : weights) {  // outside collect()'s inference mode: autograd needs them
    tensor = tensor.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  }
  return weights;
}

namespace {

// The measured peak may differ from the fold by this share; all other counts are exact.
constexpr double kPeakTolerance = 0.02;
// ATen's narrow products and flash attention do without the float32 scratch of our loops, which the
// fold counts: it is a bound there, and the peak lower by up to this share (measured in the
// smallest subject: 0.25).
constexpr double kScratchTolerance = 0.4;

// Of the short documents of a check the longest goes by cuDNN, where there is one, beside those
// that flash takes.
constexpr std::int64_t kDenseFrom = 16;

// Says in the row what the run counted but the folds did not say.
void compare_counts(
    const CheckCase& of,
    const Plan& plan,
    const GradientAnswer& answer,
    bool by_library,
    CheckRow& row) {
  const double lower = by_library && narrow(row.dtype) ? kScratchTolerance : kPeakTolerance;
  const Precision precision = precision_of(row.dtype);
  for (int r = 0; r < plan.ranks; ++r) {
    const RankReport predicted = predicted_report(plan, of.model, r, precision);
    const RankReport& measured = answer.ranks[idx(r)];
    // Within these shares of what was said.
    const auto expect = [&](const char* what,
                            std::int64_t is,
                            std::int64_t said,
                            double below = 0,
                            double above = 0) {
      const auto more = static_cast<double>(is - said);
      if (more > above * static_cast<double>(said) || -more > below * static_cast<double>(said)) {
        row.counts_differ.push_back(fmt::format(
            "{}, {} recompute {}, {}, rank {} of {}: {} {}, predicted {}",
            of.name,
            row.way,
            row.recompute,
            to_string(row.dtype),
            r,
            plan.ranks,
            what,
            is,
            said));
      }
    };
    expect("bytes sent", measured.bytes_sent, predicted.bytes_sent);
    expect("messages", measured.messages, predicted.messages);
    expect("saved bytes", measured.saved_bytes, predicted.saved_bytes);
    expect("peak bytes", measured.peak_bytes, predicted.peak_bytes, lower, kPeakTolerance);
  }
}

// Keeps the worse of the two.
void note(CheckError found, CheckError& worst) {
  found.error = std::isfinite(found.error) ? found.error : INFINITY;  // a NaN is never largest
  if (worst.place.empty() || found.share() > worst.share()) {
    worst = std::move(found);
  }
}

}  // namespace

std::map<std::string, double> narrow_limits(
    const CheckCase& of, const reference::Weights& weights, Dtype dtype) {
  if (!narrow(dtype) || !of.backend->leads()) {
    return {};
  }
  std::map<std::string, double> limits = own_rounding(
      weights,
      [&](const reference::Weights& moved) {
        return reference::answer(of.model, moved, {.items = of.items}).gradients;
      },
      dtype,
      of.narrow_judged_as);
  for (auto& [name, limit] : limits) {
    limit = narrow_limit(limit, dtype, of.behind_scores(name));
  }
  return limits;
}

void run_case(
    const CheckCase& of,
    const Plan& plan,
    const reference::Answer& expected,
    std::size_t i,
    CheckRow& row) {
  const GradientAnswer answer = gradients(
      {.model = of.model,
       .fill = of.fill,
       .plan = &plan,
       .items = of.items,
       .dtype = row.dtype,
       .backend = of.backend,
       .device = of.device,
       .attention_dense_from = kDenseFrom});
  if (!of.backend->leads()) {
    return;
  }
  const std::string where = fmt::format("{}, {} ranks, ", of.name, plan.ranks);
  const double difference = std::abs(answer.batch.loss - expected.loss);
  note(
      {.error = difference == 0 ? 0 : difference / std::abs(expected.loss),
       .tolerance = row.losses[i].tolerance,
       .place = where + "loss"},
      row.losses[i]);
  const double widest = tolerance(row.dtype).gradient;
  for (const auto& [name, error] : gradient_errors(
           answer.gradients,
           expected.gradients,
           narrow(row.dtype) ? of.narrow_judged_as : std::map<std::string, std::string>{})) {
    const auto limit = of.narrow_limits.find(name);
    note(
        {.error = error,
         .tolerance = limit == of.narrow_limits.end() ? widest : limit->second,
         .place = where + "gradient of " + name},
        row.gradients[i]);
  }
  const bool by_library = kernels_for(of.device).name != cpu_kernels().name;
  compare_counts(of, plan, answer, by_library, row);
}

}  // namespace paradyse
