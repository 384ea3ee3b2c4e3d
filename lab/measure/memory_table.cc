#include "lab/measure/memory_table.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "paradyse/run/gradients.h"
#include "src/run/check/check_case.h"
#include "src/run/data/synthetic_items.h"
#include "src/run/reference/naive_memory.h"
#include "src/run/reference/reference.h"

namespace paradyse {
namespace {

using Dims = std::map<std::string, std::int64_t>;
using Weights = std::map<std::string, at::Tensor>;

// What a row does beside the rows before it.
struct Means {
  std::string name;
  LayerRecompute recompute = {};
  std::int64_t tiles = 1;
  Dtype dtype = Dtype::float32;
  bool offload = false;
  int ranks = 1;
};

std::vector<Means> all_means(const MemoryRequest& request) {
  Means now{.name = "+ tiled attention"};
  std::vector<Means> all = {now};
  const auto add = [&](std::string name) {
    now.name = std::move(name);
    all.push_back(now);
  };
  now.recompute = {.parts = Recompute::full};
  add("+ recompute");
  now.recompute.layer = true;
  add("+ whole layers");
  now.tiles = request.tiles;
  add("+ chunking");
  now.dtype = Dtype::bfloat16;
  add("+ mixed precision");
  now.offload = true;
  add("+ offload");
  for (const int ranks : request.ranks) {
    now.ranks = ranks;
    add("+ " + std::to_string(ranks) + " ranks");
  }
  return all;
}

// A model and one batch of it.
class Subject {
 public:
  Subject(const MemoryRequest& request, const Dims& dims)
      : request_(request), model_(request.model), dims_(dims) {
    items_ = synthetic_items(
        model_,
        {.lengths = lengths(),
         .dims = std::vector<DimSizes>(model_.of_samples() ? lengths().size() : 0, dims)});
  }

  [[nodiscard]] const Model& model() const { return model_; }

  [[nodiscard]] reference::Answer naive(const Weights& weights) const {
    return reference::answer(model_, weights, {.items = items_of(items_)});
  }

  [[nodiscard]] Plan plan(const Means& means) const {
    Plan plan = model_.of_samples() ? layout(means) : split(means);
    for (auto& [name, runs] : plan.programs) {
      std::vector<LayerChoice> layers = choices(runs);
      for (LayerChoice& layer : layers) {
        for (PartChoice& part : layer) {
          part.offload = means.offload;
        }
      }
      runs = runs_of(layers);
    }
    return plan;
  }

  [[nodiscard]] GradientAnswer run(const Plan& plan, Dtype dtype) const {
    return gradients(
        {.model = model_, .fill = fill, .plan = &plan, .items = items_of(items_), .dtype = dtype});
  }

  static void fill(Parameters& parameters) { parameters.initialize(1); }

 private:
  [[nodiscard]] std::vector<std::int64_t> lengths() const {
    const std::int64_t length = model_.of_samples() ? model_.rows(dims_) : dims_.at("tokens");
    return std::vector<std::int64_t>(idx(request_.samples), length);
  }
  [[nodiscard]] Plan layout(const Means& means) const {
    LayoutTask task{
        .model = &model_,
        .documents = packed(lengths(), means.ranks, model_.causal),
        .recompute = means.recompute,
        .tiles = means.tiles,
        .seconds = {}};
    task.documents.dims = dims_;
    return plan_of(task, plan_layouts(task, model_.layers));
  }
  [[nodiscard]] Plan split(const Means& means) const {
    LayerChoice layer = text_layer(means.ranks > 1 ? "UlyssesZ" : "DataZ", "gather");
    set_recompute(layer, means.recompute);
    if (means.tiles > 1) {
      set_options(layer, {{kTilesOption, means.tiles}});
    }
    return uniform_plan(
        model_, lengths(), means.ranks, std::vector<LayerChoice>(idx(model_.layers), layer));
  }

  const MemoryRequest& request_;
  Model model_;
  Dims dims_;
  std::vector<OwnedItem> items_;
};

// Of the fullest rank, and of all together.
std::pair<std::int64_t, std::int64_t> counted(
    const Plan& plan, const Model& model, Precision precision) {
  std::int64_t most = 0;
  std::int64_t all = 0;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const std::int64_t peak = predicted_report(plan, model, rank, precision).peak_bytes;
    most = std::max(most, peak);
    all += peak;
  }
  return {most, all};
}

Weights as(const Weights& weights, const at::TensorOptions& options) {
  Weights converted;
  for (const auto& [name, tensor] : weights) {
    converted[name] = tensor.to(options);
  }
  return converted;
}

double relative(double is, double should) {
  return is == should ? 0 : std::abs(is - should) / std::abs(should);
}

}  // namespace

std::vector<MemoryRow> memory_table(const MemoryRequest& request) {
  const Subject subject(request, request.dims);
  const Subject small(request, request.small_dims);
  const Model& model = subject.model();
  const Weights exact = whole_weights(model, Subject::fill, Dtype::float64);
  const Weights weights = as(exact, at::kFloat);
  const reference::Answer expected = small.naive(exact);
  if (std::ranges::all_of(expected.documents, [](const auto& one) { return one.count == 0; })) {
    throw std::invalid_argument(
        "memory: such a small sample has no scored elements, so errors mean nothing; take a "
        "larger one");
  }
  const auto measures = [&](std::int64_t bytes) {
    return request.measured_bytes == 0 || bytes <= request.measured_bytes;
  };
  std::vector<MemoryRow> rows;
  {
    MemoryRow& row = rows.emplace_back(MemoryRow{.name = "naive"});
    const Weights sizes = as(weights, at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
    // the leaves are copies of the weights, which are there besides
    row.counted_bytes = reference::counted_peak([&] { (void)subject.naive(sizes); });
    if (measures(row.counted_bytes)) {
      const reference::Measured run = reference::measured([&] { return subject.naive(weights); });
      row.measured_bytes = run.peak_bytes;
      row.seconds = run.seconds;
    }
    const reference::Answer narrow = small.naive(weights);
    row.loss_error = relative(narrow.loss, expected.loss);
    row.gradient_error = compare_gradients(narrow.gradients, expected.gradients).worst;
  }
  const std::vector<Means> rungs = all_means(request);
  for (const Means& means : rungs) {
    if (request.progress) {
      request.progress(&means - rungs.data(), std::ssize(rungs), means.name);
    }
    MemoryRow& row = rows.emplace_back(
        MemoryRow{.name = means.name, .ranks = means.ranks, .dtype = means.dtype});
    const Plan plan = subject.plan(means);
    std::int64_t all = 0;
    std::tie(row.counted_bytes, all) = counted(plan, model, precision_of(means.dtype));
    if (measures(all)) {
      const GradientAnswer run = subject.run(plan, means.dtype);
      std::int64_t most = 0;
      for (const RankReport& rank : run.ranks) {
        most = std::max(most, rank.peak_bytes);
      }
      row.measured_bytes = most;
      row.seconds = std::accumulate(
          run.batch.micro_batch_seconds.begin(), run.batch.micro_batch_seconds.end(), 0.0);
    }
    const GradientAnswer run = small.run(small.plan(means), means.dtype);
    row.loss_error = relative(run.batch.loss, expected.loss);
    row.gradient_error = compare_gradients(run.gradients, expected.gradients).worst;
  }
  return rows;
}

}  // namespace paradyse
