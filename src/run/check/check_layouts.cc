#include "src/run/check/check_layouts.h"

#include <stdexcept>
#include <utility>

#include "paradyse/plan/index.h"
#include "paradyse/plan/layout_planner.h"
#include "src/run/check/check_case.h"
#include "src/run/data/synthetic_samples.h"
#include "src/run/reference/grid_reference.h"

namespace paradyse {
namespace {

// Two clips, or an alignment, of sizes that few ranks divide.
std::map<std::string, std::int64_t> dims_of(const GridShape& shape) {
  return std::holds_alternative<StditShape>(shape)
             ? std::map<std::string, std::int64_t>{{"frames", 5}, {"patches", 6}}
             : std::map<std::string, std::int64_t>{
                   {"sequences", 5}, {"residues", 7}, {"i", 7}, {"j", 7}};
}

// Weights wide enough that no mistake hides behind them, and vectors apart from 0 and 1.
void fill_widely(Parameters& parameters) {
  parameters.initialize(11);
  for (PartParameters& part : parameters.parts()) {
    part.stack.mul_(10);
    for (const at::Tensor& vector : part.vectors) {
      const at::Tensor place = at::arange(vector.size(0), at::kFloat);
      at::Tensor(vector).add_(0.25 * at::cos(place).to(vector.device()));
    }
  }
}

}  // namespace

std::vector<CheckRow> check_layouts(const LayoutCheckRequest& request) {
  const Model model = grid_model(request.shape);
  const std::map<std::string, std::int64_t> dims = dims_of(request.shape);
  const bool video = std::holds_alternative<StditShape>(request.shape);
  const std::vector<Sample> samples = synthetic_samples(model, dims, video ? 2 : 1);
  const CheckCase of{
      .name = request.name,
      .model = model,
      .fill = fill_widely,
      .samples = samples,
      .backend = request.backend,
      .device = request.device};
  std::vector<std::pair<std::string, std::vector<PartChoice>>> ways = {{"planned", {}}};
  for (LayoutRival& rival : layout_rivals(model_type(request.shape), model)) {
    ways.emplace_back(rival.name, std::move(rival.parts));
  }
  std::vector<CheckRow> rows;
  for (const Dtype dtype : request.dtypes) {
    if (narrow(dtype)) {
      throw std::invalid_argument(
          std::string("check: models of several dims run in float64 and float32, not in ") +
          to_string(dtype));
    }
    const Tolerance within = tolerance(dtype);
    const reference::Answer expected =
        reference::grid_model(request.shape, whole_weights(model, fill_widely, dtype), samples);
    for (const auto& [name, parts] : ways) {
      for (const Recompute level : kRecomputeLevels) {
        CheckRow row{
            .way = name,
            .recompute = to_string(level),
            .dtype = dtype,
            .losses = {request.ranks.size(), {.tolerance = within.loss, .place = ""}},
            .gradients = {request.ranks.size(), {.tolerance = within.gradient, .place = ""}},
            .counts_differ = {}};
        for (std::size_t i = 0; i < request.ranks.size(); ++i) {
          LayoutTask task{.model = &model, .documents = {}, .recompute = level, .seconds = {}};
          task.documents = packed(
              std::vector<std::int64_t>(samples.size(), video ? 30 : 35),
              request.ranks[i],
              model.causal);
          task.documents.dims = dims;
          LayerChoice layer = parts;
          for (PartChoice& part : layer) {
            part.recompute = level;
          }
          const Plan plan = layer.empty()
                                ? plan_of(task, plan_layouts(task, model.layers))
                                : plan_of(task, std::vector<LayerChoice>(idx(model.layers), layer));
          run_case(of, plan, expected, i, row);
        }
        rows.push_back(std::move(row));
      }
    }
  }
  return request.backend->leads() ? rows : std::vector<CheckRow>{};
}

}  // namespace paradyse
