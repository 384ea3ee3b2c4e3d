#include "src/run/check/check.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "paradyse/plan/planner.h"
#include "paradyse/run/gradient_error.h"
#include "paradyse/run/gradients.h"

namespace paradyse {
namespace {

// Of the loss and every gradient, in the measure of gradient_error.h.
double tolerance(const std::string& dtype) { return dtype == "float64" ? 1e-10 : 2e-5; }

// The measured peak may differ from the fold by this share; all other counts are exact.
constexpr double kPeakTolerance = 0.02;

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
std::map<std::string, at::Tensor> whole_weights(
    const CheckSubject& subject, const std::string& dtype) {
  std::map<std::string, at::Tensor> weights;
  run_local_ranks(1, {}, [&](Communicators& communicators) {
    Parameters parameters(subject.model, 1, 0, parameter_types(dtype), /*gradients=*/false);
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
    const CheckSubject& subject, const Plan& plan, const GradientAnswer& answer, CheckRow& row) {
  const Precision precision = precision_of(row.dtype);
  for (int r = 0; r < plan.ranks; ++r) {
    const std::int64_t elements =
        stored_elements(subject.model, plan.weight_domain, r % plan.weight_domain);
    const RankReport predicted = predicted_report(
        plan, subject.model, r, precision, elements * (precision.activation + precision.statistic));
    const RankReport& measured = answer.ranks[static_cast<std::size_t>(r)];
    const auto expect = [&](const char* what, std::int64_t is, std::int64_t said, double slack) {
      const auto difference = static_cast<double>(is > said ? is - said : said - is);
      if (difference > slack * static_cast<double>(said)) {
        row.counts_differ.push_back(fmt::format(
            "{}, {} recompute {}, {}, rank {} of {}: {} {}, predicted {}",
            subject.name,
            row.way,
            row.recompute,
            row.dtype,
            r,
            plan.ranks,
            what,
            is,
            said));
      }
    };
    expect("bytes sent", measured.bytes_sent, predicted.bytes_sent, 0);
    expect("messages", measured.messages, predicted.messages, 0);
    expect("saved bytes", measured.saved_bytes, predicted.saved_bytes, 0);
    expect("peak bytes", measured.peak_bytes, predicted.peak_bytes, kPeakTolerance);
  }
}

Plan plan_of(const CheckSubject& subject, const Way& way, Recompute level, int ranks) {
  std::vector<LayerChoice> layers;
  for (std::int64_t l = 0; l < subject.model.layers; ++l) {
    const auto& [attention, mlp] = way.layers[static_cast<std::size_t>(l) % way.layers.size()];
    layers.push_back(text_layer(attention, mlp, level, level));
  }
  std::vector<std::int64_t> lengths;
  for (const auto& document : subject.documents) {
    lengths.push_back(static_cast<std::int64_t>(document.size()));
  }
  return uniform_plan(subject.model, lengths, ranks, layers);
}

// Runs the plan and notes what it comes to: its error in `worst`, its counts in `row`.
void run_case(
    const CheckRequest& request,
    const CheckSubject& subject,
    const Plan& plan,
    const reference::Answer& expected,
    CheckError& worst,
    CheckRow& row) {
  const GradientAnswer answer = gradients(
      {.model = &subject.model,
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
  const auto note = [&](double error, const std::string& what) {
    const double judged = std::isfinite(error) ? error : INFINITY;  // a NaN is never largest
    if (worst.place.empty() || judged > worst.error) {
      worst = {judged, fmt::format("{}, {} ranks, {}", subject.name, plan.ranks, what)};
    }
  };
  const double difference = std::abs(answer.batch.loss - expected.loss);
  note(difference == 0 ? 0 : difference / std::abs(expected.loss), "loss");
  const GradientError error = compare_gradients(answer.gradients, expected.gradients);
  note(error.worst, "gradient of " + error.worst_name);
  compare_counts(subject, plan, answer, row);
}

}  // namespace

reference::Answer expected_answer(const CheckSubject& subject, const std::string& dtype) {
  return reference::model(
      subject.model, whole_weights(subject, dtype), subject.documents, subject.labels);
}

bool CheckRow::near() const {
  return std::ranges::all_of(worst, [&](const CheckError& one) { return one.error <= tolerance; });
}

std::vector<CheckRow> check(const CheckRequest& request) {
  std::vector<CheckRow> rows;
  for (const std::string& dtype : request.dtypes) {
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
            .tolerance = tolerance(dtype),
            .worst = std::vector<CheckError>(request.ranks.size()),
            .counts_differ = {}};
        for (std::size_t i = 0; i < request.ranks.size(); ++i) {
          for (std::size_t s = 0; s < request.subjects.size(); ++s) {
            const CheckSubject& subject = request.subjects[s];
            const Plan plan = plan_of(subject, way, level, request.ranks[i]);
            run_case(request, subject, plan, expected[s], row.worst[i], row);
          }
        }
        rows.push_back(std::move(row));
      }
    }
  }
  return request.backend->leads() ? rows : std::vector<CheckRow>{};
}

}  // namespace paradyse
