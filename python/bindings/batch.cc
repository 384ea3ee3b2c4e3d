#include <stdexcept>

#include "paradyse/plan/model_folder.h"
#include "paradyse/plan/simulate.h"
#include "python/bindings/bindings.h"
#include "src/plan/simulate/batch_question.h"

namespace paradyse::python {
namespace {

// A plan, and how good it is.
struct BatchPlan : Plan {
  std::string bound = {};
  double gap = 0;
  bool optimal = false;
  double search_seconds = 0;
  std::string explanation = {};
  double simulated_seconds = 0;
};

ClusterRequest request_of(
    const ModelFolder& model,
    const Cluster& cluster,
    const std::optional<Memory>& memory,
    const std::string& space,
    const std::vector<int>& group_sizes,
    const std::string& weight_domain,
    bool overlap,
    double reserve,
    const std::string& dtype) {
  if (!(reserve >= 0 && reserve <= 0.9)) {
    throw std::invalid_argument(
        "reserve " + std::to_string(reserve) + ": accepted is a number from 0 to 0.9");
  }
  return {
      .model = model.model,
      .cluster = memory ? with_memory(cluster, bytes_of(*memory)) : cluster,
      .space = space,
      .weight_domain = weight_domain,
      .overlapped = overlap,
      .reserve = reserve,
      .dtype = half_or_single(dtype),
      .group_sizes = group_sizes};
}

BatchPlan planned(
    const ModelFolder& model,
    const std::vector<std::int64_t>& lengths,
    const Cluster& cluster,
    const std::optional<Memory>& memory,
    const std::string& space,
    const std::vector<int>& group_sizes,
    const std::string& weight_domain,
    bool overlap,
    double reserve,
    const std::string& dtype,
    const std::string& planner,
    std::uint64_t seed,
    double moves,
    int threads,
    bool simulated) {
  const GroupingPlannerRow& row = grouping_planner(planner);
  const BatchQuestion question = batch_question(
      request_of(
          model, cluster, memory, space, group_sizes, weight_domain, overlap, reserve, dtype),
      lengths);
  const PlannedBatch found =
      answer(question, row, {.seed = seed, .moves = moves, .threads = threads});
  return {
      *found.plan,
      found.bound.name,
      found.gap(),
      found.optimal,
      found.search_seconds,
      explained(question.spaces[found.space], found.grouping),
      simulated ? question.simulated_seconds(*found.plan) : 0};
}

std::pair<double, std::string> bound(
    const ModelFolder& model,
    const std::vector<std::int64_t>& lengths,
    const Cluster& cluster,
    const std::optional<Memory>& memory,
    const std::string& space,
    const std::vector<int>& group_sizes,
    const std::string& weight_domain,
    bool overlap,
    double reserve,
    const std::string& dtype) {
  const LowerBound least = least_bound(
      batch_question(
          request_of(
              model, cluster, memory, space, group_sizes, weight_domain, overlap, reserve, dtype),
          lengths)
          .spaces);
  return {least.seconds, least.name};
}

// Binds what is asked of documents on a cluster: the arguments of request_of(), then `others`.
template <typename Function, typename... Others>
void def_on_cluster(
    nb::module_& module, const char* name, Function function, const Others&... others) {
  module.def(
      name,
      function,
      "model"_a,
      "lengths"_a,
      "cluster"_a,
      nb::kw_only(),
      "memory"_a = nb::none(),
      "space"_a = "flexsp",
      "group_sizes"_a = std::vector<int>{},
      "weight_domain"_a = "auto",
      "overlap"_a = false,
      "reserve"_a = 0.05,
      "dtype"_a = "bfloat16",
      others...,
      WithoutGil());
}

}  // namespace

void bind_batch(nb::module_& module) {
  nb::class_<BatchPlan, Plan>(module, "BatchPlan", "A plan, and how good it is.")
      .def_ro("bound", &BatchPlan::bound, "The argument that gave lower_bound_seconds.")
      .def_ro("gap", &BatchPlan::gap, "By how much the plan is above the bound, a fraction.")
      .def_ro("optimal", &BatchPlan::optimal, "Proved.")
      .def_ro("search_seconds", &BatchPlan::search_seconds, "That the planner took.")
      .def_ro("explanation", &BatchPlan::explanation, "What limits its time, for people.")
      .def_prop_ro(
          "simulated_seconds",
          [](const BatchPlan& self) {
            return self.simulated_seconds > 0 ? std::optional(self.simulated_seconds)
                                              : std::nullopt;
          },
          "With waiting and overlap; None: it was not simulated.");

  def_on_cluster(
      module,
      "plan_batch",
      planned,
      "planner"_a = "fast",
      "seed"_a = 1,
      "moves"_a = 1.0,
      "threads"_a = 1,
      "simulate"_a = false,
      "Puts documents of these lengths (tokens) into groups of different sizes and micro-batches.  "
      "The arguments are the options of `paradyse plan batch`.  The same arguments give the same "
      "plan, to the last byte, on every machine, so that ranks need not send it to one another.  "
      "Raises NoPlan where a document fits nowhere.");
  def_on_cluster(
      module,
      "bound",
      bound,
      "Seconds that no plan of these documents is below, and the name of the argument.");
}

}  // namespace paradyse::python
