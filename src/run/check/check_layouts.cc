#include "src/run/check/check_layouts.h"

#include <random>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/index.h"
#include "paradyse/plan/layout_planner.h"
#include "src/run/check/check_case.h"
#include "src/run/reference/grid_reference.h"

namespace paradyse {
namespace {

// Two clips, or an alignment.
struct Samples {
  std::vector<Sample> all;
  std::map<std::string, std::int64_t> dims;
  std::int64_t rows = 0;
};

Samples samples_of(const GridShape& shape, const Model& model) {
  const bool video = std::holds_alternative<StditShape>(shape);
  Samples samples;
  samples.dims = video ? std::map<std::string, std::int64_t>{{"frames", 5}, {"patches", 6}}
                       : std::map<std::string, std::int64_t>{
                             {"sequences", 5}, {"residues", 7}, {"i", 7}, {"j", 7}};
  samples.rows = video ? 30 : 35;
  std::mt19937_64 random(7);
  for (int s = 0; s < (video ? 2 : 1); ++s) {
    Sample& sample = samples.all.emplace_back();
    for (const Stream& input : model.inputs()) {
      std::vector<std::int64_t> sizes;
      for (const std::string& dim : input.rows) {
        if (dim != "batch") {
          sizes.push_back(samples.dims.at(dim));
        }
      }
      sizes.push_back(input.columns);
      at::Tensor& numbers = sample.inputs[input.name] = at::empty(sizes, at::kDouble);
      auto* data = numbers.mutable_data_ptr<double>();
      for (std::int64_t i = 0; i < numbers.numel(); ++i) {
        data[i] = static_cast<double>(random() >> 11U) * 0x1p-52 - 1;  // from -1 to 1
      }
    }
    for (std::int64_t row = 0; !video && row < samples.rows; ++row) {
      const auto label = static_cast<std::int32_t>(random() % kMsaClasses);
      sample.labels.push_back(random() % 3 == 0 ? label : -1);
    }
  }
  return samples;
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
  Samples samples = samples_of(request.shape, model);
  const CheckCase of{
      .name = request.name,
      .model = model,
      .fill = fill_widely,
      .samples = samples.all,
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
        reference::grid_model(request.shape, whole_weights(model, fill_widely, dtype), samples.all);
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
              std::vector<std::int64_t>(samples.all.size(), samples.rows),
              request.ranks[i],
              model.causal);
          task.documents.dims = samples.dims;
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
