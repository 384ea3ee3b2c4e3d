// What is planned by measured costs, as training plans.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <stdexcept>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/model_folder.h"
#include "python/bindings/bindings.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/plan/size_limits.h"
#include "src/plan/profile/run_costs.h"
#include "src/plan/search/batch/document_plans.h"
#include "src/plan/search/batch/document_request.h"
#include "src/plan/simulate/batch_question.h"

namespace paradyse::python {
namespace {

// The task of a document or of a batch whose longest has `length` tokens.
PlanningTask task_of(
    const ModelFolder& model,
    std::int64_t length,
    const Costs& costs,
    std::optional<int> ranks,
    const std::optional<Memory>& memory,
    const std::string& attention,
    const std::string& mlp,
    const std::string& recompute,
    bool offload,
    const std::string& planner) {
  if (length < 1) {
    throw std::invalid_argument(
        "length " + std::to_string(length) + ": a document has at least 1 token");
  }
  if (ranks.value_or(1) < 1 || ranks.value_or(1) > kMostPlannedRanks) {
    throw std::invalid_argument(
        "ranks " + std::to_string(*ranks) + ": accepted are 1 to " +
        std::to_string(kMostPlannedRanks));
  }
  expect_language_model(model);
  expect_counted_alone(model.model, std::array{length});
  PlanningTask task = planning_task(
      {.model = model.model,
       .length = length,
       .ranks = ranks.value_or(costs.header.ranks),
       .dtype = costs.header.dtype,
       .attention = attention,
       .mlp = mlp,
       .recompute = recompute,
       .offload = offload,
       .memory_per_rank = memory ? bytes_of(*memory) : 0,
       .planner = planner});
  go_by(costs, task);
  return task;
}

DocumentPlan plan_document(
    const ModelFolder& model,
    std::int64_t length,
    const Costs& costs,
    std::optional<int> ranks,
    const std::optional<Memory>& memory,
    const std::string& attention,
    const std::string& mlp,
    const std::string& recompute,
    bool offload,
    const std::string& planner) {
  DocumentPlans plans(
      task_of(model, length, costs, ranks, memory, attention, mlp, recompute, offload, planner));
  if (std::optional<DocumentPlan> found = plans.best(length, plans.task().ranks)) {
    return *std::move(found);
  }
  throw NoPlan("no plan: " + plans.refusal(length));
}

Plan plan_step(
    const ModelFolder& model,
    const std::vector<std::int64_t>& lengths,
    const Costs& costs,
    std::optional<int> ranks,
    const std::optional<Memory>& memory,
    const std::string& attention,
    const std::string& mlp,
    const std::string& recompute,
    bool offload,
    const std::string& layer_planner,
    const std::string& planner) {
  if (lengths.empty()) {
    throw std::invalid_argument("a batch needs at least one document");
  }
  const auto [least, most] = std::ranges::minmax(lengths);
  PlanningTask task = task_of(
      model,
      least < 1 ? least : most,
      costs,
      ranks,
      memory,
      attention,
      mlp,
      recompute,
      offload,
      layer_planner);
  task.batch_planner = planner;
  BatchPlanner::Answer answer = batch_planner(std::move(task))->plan(lengths);
  if (!answer.plan) {
    throw NoPlan("no plan: " + answer.why_not);
  }
  answer.plan->planner_seconds.reset();  // a clock says them
  return *std::move(answer.plan);
}

// Binds what is planned by costs: the arguments of task_of(), then `others`.
template <typename Function, typename... Others>
void def_by_costs(
    nb::module_& module,
    const char* name,
    Function function,
    const char* planned,
    const Others&... others) {
  module.def(
      name,
      function,
      "model"_a,
      nb::arg(planned),
      nb::kw_only(),
      "costs"_a,
      "ranks"_a = nb::none(),
      "memory"_a = nb::none(),
      "attention"_a = "auto",
      "mlp"_a = "auto",
      "recompute"_a = "auto",
      "offload"_a = false,
      others...,
      WithoutGil());
}

}  // namespace

void bind_costs(nb::module_& module) {
  nb::class_<DocumentPlan>(module, "DocumentPlan", "The layers that a document runs on a group.")
      .def_ro("program", &DocumentPlan::program)
      .def_ro("seconds", &DocumentPlan::seconds, "Forward and backward, predicted.")
      .def_prop_ro("static_bytes", [](const DocumentPlan& self) { return self.bytes.static_bytes; })
      .def_prop_ro("saved_bytes", [](const DocumentPlan& self) { return self.bytes.saved; })
      .def_prop_ro("transient_bytes", [](const DocumentPlan& self) { return self.bytes.transient; })
      .def_prop_ro("peak_bytes", [](const DocumentPlan& self) { return self.bytes.total(); });

  def_by_costs(
      module,
      "plan_document",
      plan_document,
      "length",
      "planner"_a = "exact",
      "What each layer of a model runs for one document of this many tokens on a group.  As "
      "`paradyse plan layers --model --fitted`; ranks: by default those of the costs.");
  def_by_costs(
      module,
      "plan_step",
      plan_step,
      "lengths",
      "layer_planner"_a = "exact",
      "planner"_a = "groups",
      "Puts documents of these lengths into groups and micro-batches by measured costs, as "
      "`paradyse train` does.  The arguments are the keys of a run file: planner is "
      "parallel.batch_planner.");
}

}  // namespace paradyse::python
