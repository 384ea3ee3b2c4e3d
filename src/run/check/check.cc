#include "src/run/check/check.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "paradyse/plan/index.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/gradient_error.h"
#include "paradyse/run/gradients.h"
#include "src/run/device/through_aten.h"

namespace paradyse {
namespace {

struct Tolerance {
  double loss = 0;
  double gradient = 0;  // in the measure of gradient_error.h
};

// Narrow types: multiples of their rounding.  Measured over the built-in subjects, all ways and
// recompute levels and 1 to 4 ranks, through our loops and through ATen, as multiples: 0.46 of the
// loss, 16 (bfloat16) and 24 (float16) of a gradient.
Tolerance tolerance(Dtype dtype) {
  if (narrow(dtype)) {
    const double rounding = dtype == Dtype::bfloat16 ? 0x1p-8 : 0x1p-11;
    return {.loss = 0.8 * rounding, .gradient = 30 * rounding};
  }
  const double both = dtype == Dtype::float64 ? 1e-10 : 2e-5;
  return {.loss = both, .gradient = both};
}

// The measured peak may differ from the fold by this share; all other counts are exact.
constexpr double kPeakTolerance = 0.02;
// ATen's narrow products and flash attention do without the float32 scratch of our loops, which the
// fold counts: it is a bound there, and the peak lower by up to this share (measured in the
// smallest subject: 0.25).
constexpr double kScratchTolerance = 0.4;

// Key biases move all scores of a query alike where nothing turns keys by their places: their
// gradient is zero in exact arithmetic.  What is left is rounding, of the size of the query bias's.
std::map<std::string, std::string> key_biases(const ModelShape& model) {
  std::map<std::string, std::string> found;
  if (!model.learned_positions) {
    return found;
  }
  const Model built = text_model(model);
  for (const ModelPart& one : built.parts) {
    const PartWeights weights = one.part->weights(1);
    const Interval biases = weights.vectors_of(Role::in_bias);
    if (one.part->kind == "attention" && biases.size() == 3) {  // q, k, v apart
      const auto name = [&](std::int64_t i) {
        return layer_prefix(weights, one.layer) + weights.vectors[idx(i)].name;
      };
      found[name(biases.begin + 1)] = name(biases.begin);
    }
  }
  return found;
}

// What one layer runs, and the layer after it, and so on in turn.
struct Way {
  std::string name;                                         // "UlyssesZ"
  std::vector<std::pair<std::string, std::string>> layers;  // attention, mlp
};

// Every strategy with its own verb and with the others; layers that differ.
std::vector<Way> ways(const std::vector<std::string>& wanted) {
  std::vector<Way> all;
  for (const Strategy& s : strategies("attention")) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), s.name) == wanted.end()) {
      continue;
    }
    for (const Verb mlp : {Verb::hold, Verb::gather, Verb::pass}) {
      if (!s.one_rank || mlp == Verb::gather) {  // one rank is not the whole domain
        all.push_back(
            {.name = s.name + "+" + to_string(mlp), .layers = {{s.name, to_string(mlp)}}});
      }
    }
  }
  Way mixed{.name = "mixed layers", .layers = {}};
  for (const Way& way : all) {
    if (!strategy("attention", way.layers[0].first).one_rank) {
      mixed.layers.push_back(way.layers[0]);
    }
  }
  std::reverse(mixed.layers.begin(), mixed.layers.end());
  if (mixed.layers.size() > 2) {
    // neighbours differ in both parts
    mixed.layers = {mixed.layers.front(), mixed.layers.back()};
    all.push_back(mixed);
  }
  return all;
}

// The weights as a rank of this dtype holds them, whole and in float64.
std::map<std::string, at::Tensor> whole_weights(const CheckSubject& subject, Dtype dtype) {
  std::map<std::string, at::Tensor> weights;
  run_local_ranks(1, {}, [&](Communicators& communicators) {
    Parameters parameters(
        text_model(subject.model), 1, 0, parameter_types(dtype), /*gradients=*/false);
    subject.fill(parameters);
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

// Says in the row what the run counted but the folds did not say.
void compare_counts(
    const CheckSubject& subject,
    const Plan& plan,
    const GradientAnswer& answer,
    bool by_library,
    CheckRow& row) {
  const double lower = by_library && narrow(row.dtype) ? kScratchTolerance : kPeakTolerance;
  const Precision precision = precision_of(row.dtype);
  const Model model = text_model(subject.model);
  for (int r = 0; r < plan.ranks; ++r) {
    const std::int64_t elements =
        stored_elements(model, plan.weight_domain, r % plan.weight_domain);
    const RankReport predicted = predicted_report(
        plan, model, r, precision, elements * (precision.activation + precision.statistic));
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
            subject.name,
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

Plan plan_of(const CheckSubject& subject, const Way& way, Recompute level, int ranks) {
  std::vector<LayerChoice> layers;
  for (std::int64_t l = 0; l < subject.model.layers; ++l) {
    const auto& [attention, mlp] = way.layers[idx(l) % way.layers.size()];
    layers.push_back(text_layer(attention, mlp, level, level));
  }
  std::vector<std::int64_t> lengths;
  for (const auto& document : subject.documents) {
    lengths.push_back(static_cast<std::int64_t>(document.size()));
  }
  return uniform_plan(subject.model, lengths, ranks, layers);
}

// Keeps the worse of the two.
void note(double error, const std::string& place, CheckError& worst) {
  const double judged = std::isfinite(error) ? error : INFINITY;  // a NaN is never largest
  if (worst.place.empty() || judged > worst.error) {
    worst.error = judged;
    worst.place = place;
  }
}

// Runs the subject this way on the i-th number of ranks and notes in the row what it comes to.
void run_case(
    const CheckRequest& request,
    const CheckSubject& subject,
    const Plan& plan,
    const reference::Answer& expected,
    std::size_t i,
    CheckRow& row) {
  const GradientAnswer answer = gradients(
      {.model = text_model(subject.model),
       .fill = subject.fill,
       .plan = &plan,
       .documents = subject.documents,
       .labels = subject.labels,
       .dtype = row.dtype,
       .backend = request.backend,
       .device = request.device});
  if (!request.backend->leads()) {
    return;
  }
  const std::string where = fmt::format("{}, {} ranks, ", subject.name, plan.ranks);
  const double difference = std::abs(answer.batch.loss - expected.loss);
  note(difference == 0 ? 0 : difference / std::abs(expected.loss), where + "loss", row.losses[i]);
  const GradientError error = compare_gradients(
      answer.gradients,
      expected.gradients,
      narrow(row.dtype) ? key_biases(subject.model) : std::map<std::string, std::string>{});
  note(error.worst, where + "gradient of " + error.worst_name, row.gradients[i]);
  const bool by_library = !request.device.is_cpu() || aten_kernels();
  compare_counts(subject, plan, answer, by_library, row);
}

}  // namespace

reference::Answer expected_answer(const CheckSubject& subject, Dtype dtype) {
  return reference::model(
      subject.model, whole_weights(subject, dtype), subject.documents, subject.labels);
}

const CheckError& CheckRow::worst(std::size_t i) const {
  return gradients[i].error > losses[i].error ? gradients[i] : losses[i];
}

bool CheckRow::near() const {
  return std::ranges::all_of(losses, &CheckError::near) &&
         std::ranges::all_of(gradients, &CheckError::near);
}

std::vector<CheckRow> check(const CheckRequest& request) {
  std::vector<CheckRow> rows;
  for (const Dtype dtype : request.dtypes) {
    const Tolerance within = tolerance(dtype);
    std::vector<reference::Answer> expected;
    for (const CheckSubject& subject : request.subjects) {
      expected.push_back(request.expected(subject, dtype));
    }
    for (const Way& way : ways(request.strategies)) {
      for (const Recompute level : kRecomputeLevels) {
        CheckRow row{
            .way = way.name,
            .recompute = to_string(level),
            .dtype = dtype,
            .losses = {request.ranks.size(), {.tolerance = within.loss, .place = ""}},
            .gradients = {request.ranks.size(), {.tolerance = within.gradient, .place = ""}},
            .counts_differ = {}};
        for (std::size_t i = 0; i < request.ranks.size(); ++i) {
          for (std::size_t s = 0; s < request.subjects.size(); ++s) {
            const CheckSubject& subject = request.subjects[s];
            const Plan plan = plan_of(subject, way, level, request.ranks[i]);
            run_case(request, subject, plan, expected[s], i, row);
          }
        }
        rows.push_back(std::move(row));
      }
    }
  }
  return request.backend->leads() ? rows : std::vector<CheckRow>{};
}

}  // namespace paradyse
