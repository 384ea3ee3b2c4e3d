#include "src/run/train/summary_json.h"

#include <cmath>

#include "src/plan/report/compared_json.h"
#include "src/plan/report/prediction_error.h"
#include "src/run/data/data_report.h"

namespace paradyse {

using Json = nlohmann::ordered_json;  // keys in the order in which they are documented

namespace {

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// With how far off the run's predictions were: a difference within that says nothing.
Json best_static(const TrainSummary& s) {
  if (!s.best_static) {
    return nullptr;
  }
  return {
      {"strategy", s.best_static->strategy},
      {"ratio", s.best_static->ratio()},
      {"seconds", s.best_static->seconds},
      {"ours", s.best_static->ours},
      {"steps", s.best_static->batches},
      {"prediction_error", s.prediction_error},
      {"measured_over_predicted", s.measured_over_predicted},
      {"within_error", within_error(s.best_static->ratio(), s.prediction_error)}};
}

}  // namespace

Json json_of(const TrainSummary& s) {
  Json evaluations = Json::array();
  for (const EvaluatedStep& one : s.evaluations) {
    evaluations.push_back(Json{{"step", one.step}, {"loss", finite(one.loss)}});
  }
  return {
      {"model",
       {{"weights", s.model.weights}, {"random", s.model.random}, {"notes", s.model.notes}}},
      {"steps", s.steps},
      {"of_steps", s.of_steps},
      {"resumed_at", s.resumed_at},
      {"interrupted", s.interrupted},
      {"first_loss", finite(s.first_loss)},
      {"last_loss", finite(s.last_loss)},
      {"loss_steps", s.loss_steps},
      {"steps_without_label", s.steps_without_label},
      {"repeatable", s.repeatable},
      {"eval_loss", finite(s.eval_loss)},
      {"evaluations", evaluations},
      {"tokens", s.tokens},
      {"seconds", s.seconds},
      {"tokens_per_s", s.seconds > 0 ? static_cast<double>(s.tokens) / s.seconds : 0.0},
      {"predicted_seconds", s.predicted_seconds},
      {"idle_share", s.idle_share},
      {"late_plans", s.late_plans},
      {"peak_bytes", s.peak_bytes},
      {"steps_by_strategy", s.steps_by_strategy},
      {"best_static", best_static(s)},
      {"compared", json_of(s.compared)},
      {"data", json_of(s.data)},
      {"eval_data", s.eval_data ? json_of(*s.eval_data) : Json(nullptr)}};
}

}  // namespace paradyse
