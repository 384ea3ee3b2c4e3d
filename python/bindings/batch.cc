#include <stdexcept>

#include "paradyse/plan/model_folder.h"
#include "paradyse/plan/simulate.h"
#include "python/bindings/bindings.h"
#include "src/plan/search/batch/torch_groups.h"
#include "src/plan/search/layouts/samples_file.h"
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

// Of a batch that has a plan.
BatchPlan batch_plan(
    const PlannedBatch& found, const std::vector<GroupSpace>& spaces, double simulated_seconds) {
  return {
      *found.plan,
      found.bound.name,
      found.gap(),
      found.optimal,
      found.search_seconds,
      explained(spaces[found.space], found.grouping),
      simulated_seconds};
}

BatchQuestion question_of(const ClusterRequest& request, const std::vector<std::int64_t>& lengths) {
  if (request.model.of_samples() && lengths.empty()) {  // of either kind
    return samples_question(request, {});
  }
  if (request.model.of_samples()) {
    throw std::invalid_argument(
        "lengths are for language models: " + request.model.name +
        " is a video or protein model; give samples, a dict of sizes each: " +
        sample_form(request.model));
  }
  return batch_question(request, lengths);
}

BatchQuestion question_of(const ClusterRequest& request, const std::vector<DimSizes>& samples) {
  if (!request.model.of_samples()) {
    throw std::invalid_argument(
        "samples are for video and protein models: " + request.model.name +
        " is a language model; give the lengths of its documents");
  }
  return samples_question(request, sizes_of_samples(request.model, samples));
}

// Batch: the lengths of documents, or the sizes of samples.
template <typename Batch>
BatchPlan planned(
    const ModelFolder& model,
    const Batch& batch,
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
  const BatchQuestion question = question_of(
      request_of(
          model, cluster, memory, space, group_sizes, weight_domain, overlap, reserve, dtype),
      batch);
  const PlannedBatch found =
      answer(question, row, {.seed = seed, .moves = moves, .threads = threads});
  return batch_plan(
      found, question.spaces, simulated ? question.simulated_seconds(*found.plan) : 0);
}

BatchPlan groups_planned(
    const std::vector<std::int64_t>& lengths,
    const std::vector<TorchGroupCost>& groups,
    int ranks,
    const ModelFolder* model,
    std::int64_t layers,
    int node,
    int weight_domain,
    double micro_batch_seconds,
    double batch_seconds,
    const std::string& planner,
    std::uint64_t seed,
    double moves,
    int threads) {
  TorchRequest request{
      .layers = layers,
      .ranks = ranks,
      .node = node,
      .weight_domain = weight_domain,
      .micro_batch_seconds = micro_batch_seconds,
      .batch_seconds = batch_seconds,
      .lengths = lengths,
      .groups = groups};
  if (model != nullptr) {
    request.model_name = model->model.name;
    request.model_sha256 = model->model.sha256;
    request.layers = model->model.layers;
  }
  const GroupingPlannerRow& row = grouping_planner(planner);
  const BatchQuestion question{
      .spaces = torch_spaces(request),
      .what_would_do = [] { return "; give more ranks or memory, or shorter documents"; },
      .simulated_seconds = {}};
  PlannedBatch found = answer(question, row, {.seed = seed, .moves = moves, .threads = threads});
  if (weight_domain == 0) {
    without_meeting(found, question.spaces[found.space]);
  }
  return batch_plan(found, question.spaces, 0);
}

template <typename Batch>
std::pair<double, std::string> bound(
    const ModelFolder& model,
    const Batch& batch,
    const Cluster& cluster,
    const std::optional<Memory>& memory,
    const std::string& space,
    const std::vector<int>& group_sizes,
    const std::string& weight_domain,
    bool overlap,
    double reserve,
    const std::string& dtype) {
  const LowerBound least = least_bound(
      question_of(
          request_of(
              model, cluster, memory, space, group_sizes, weight_domain, overlap, reserve, dtype),
          batch)
          .spaces);
  return {least.seconds, least.name};
}

using Lengths = std::vector<std::int64_t>;
using Samples = std::vector<DimSizes>;

// Binds what is asked of a batch on a cluster: the arguments of request_of(), then `others`.
template <typename Function, typename... Others>
void def_on_cluster(
    nb::module_& module,
    const char* name,
    const char* batch,
    Function function,
    const Others&... others) {
  module.def(
      name,
      function,
      "model"_a,
      nb::arg(batch),
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

  const auto def_plan_batch = [&](const char* batch, auto function, const char* doc) {
    def_on_cluster(
        module,
        "plan_batch",
        batch,
        function,
        "planner"_a = "fast",
        "seed"_a = 1,
        "moves"_a = 1.0,
        "threads"_a = 1,
        "simulate"_a = false,
        doc);
  };
  def_plan_batch(
      "lengths",
      planned<Lengths>,
      "Puts documents of these lengths (tokens) into groups of different sizes and micro-batches.  "
      "The arguments are the options of `paradyse plan batch`.  The same arguments give the same "
      "plan, to the last byte, on every machine, so that ranks need not send it to one another.  "
      "Raises NoPlan where a document fits nowhere.");
  def_plan_batch(
      "samples",
      planned<Samples>,
      "The same for samples of a video or protein model, a dict of sizes each, as in {'frames': "
      "16, 'patches': 256}.");
  nb::class_<TorchGroupCost>(
      module,
      "GroupCost",
      "Predicted cost of groups with this number of ranks and this recomputation.")
      .def(
          "__init__",
          [](TorchGroupCost* self,
             int ranks,
             std::int64_t capacity,
             std::vector<double> seconds,
             double fixed_seconds,
             std::string recompute) {
            new (self) TorchGroupCost{
                .ranks = ranks,
                .capacity = capacity,
                .seconds = std::move(seconds),
                .fixed_seconds = fixed_seconds,
                .recompute = std::move(recompute)};
          },
          "ranks"_a,
          "capacity"_a,
          "seconds"_a,
          "fixed_seconds"_a = 0.0,
          "recompute"_a = "none")
      .def_ro("ranks", &TorchGroupCost::ranks)
      .def_ro("capacity", &TorchGroupCost::capacity, "Tokens of all its documents, at most.")
      .def_ro("seconds", &TorchGroupCost::seconds, "Of each document, forward and backward.")
      .def_ro(
          "fixed_seconds",
          &TorchGroupCost::fixed_seconds,
          "Of a group, in addition to its documents.")
      .def_ro("recompute", &TorchGroupCost::recompute, "'none', or 'layer': whole layers.");

  module.def(
      "plan_groups",
      groups_planned,
      "lengths"_a,
      "groups"_a,
      "ranks"_a,
      nb::kw_only(),
      "model"_a = nb::none(),
      "layers"_a = 1,
      "node"_a = 0,
      "weight_domain"_a = 0,
      "micro_batch_seconds"_a = 0.0,
      "batch_seconds"_a = 0.0,
      "planner"_a = "fast",
      "seed"_a = 1,
      "moves"_a = 1.0,
      "threads"_a = 1,
      WithoutGil(),
      "Plans documents of these lengths (tokens) by given costs of groups (GroupCost), as "
      "paradyse.torch does: one rank alone or several by Ulysses, layers recomputed as wholes or "
      "not.  node: ranks of one, 0: all.  weight_domain: ranks over which weights are sharded; 0: "
      "each rank has them whole, and groups wait for no others.  Raises NoPlan where a document "
      "fits nowhere.");
  def_on_cluster(
      module,
      "bound",
      "lengths",
      bound<Lengths>,
      "Seconds that no plan of these documents is below, and the name of the argument.");
  def_on_cluster(module, "bound", "samples", bound<Samples>, "The same for samples.");
}

}  // namespace paradyse::python
