#include "src/run/check/check_layouts.h"

#include <map>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/index.h"
#include "paradyse/plan/layout_planner.h"
#include "src/plan/base/number_text.h"
#include "src/run/check/check_case.h"
#include "src/run/data/synthetic_samples.h"
#include "src/run/reference/grid_reference.h"

namespace paradyse {
namespace {

// Two clips, or an alignment, of sizes that few ranks divide.
std::map<std::string, std::int64_t> dims_of(const GridShape& shape) {
  if (!std::holds_alternative<StditShape>(shape)) {
    return {{"sequences", 5}, {"residues", 7}, {"i", 7}, {"j", 7}};
  }
  std::map<std::string, std::int64_t> dims = {{"frames", 5}, {"patches", 6}};
  if (std::get<StditShape>(shape).caption_channels > 0) {
    dims["text"] = 3;
  }
  return dims;
}

// Weights wide enough that no mistake hides behind them, and vectors apart from 0 and 1.
void fill_grid_widely(Parameters& parameters) {
  parameters.initialize(11);
  for (PartParameters& part : parameters.parts()) {
    part.stack.mul_(10);
    for (const at::Tensor& vector : part.vectors) {
      add_wave(vector, 0.25, 1);
    }
    keep_from_corners(part, parameters.model());
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
      .fill = fill_grid_widely,
      .samples = samples,
      .backend = request.backend,
      .device = request.device};
  // All ways on a number of ranks; they are the same ones on each.
  const auto ways_on = [&](int ranks, LayerRecompute level) {
    LayoutTask task{.model = &model, .documents = {}, .recompute = level, .seconds = {}};
    task.documents =
        packed(std::vector<std::int64_t>(samples.size(), video ? 30 : 35), ranks, model.causal);
    task.documents.dims = dims;
    return layout_ways(task, model_type(request.shape));
  };
  std::vector<CheckRow> rows;
  const std::int64_t all =
      std::ssize(request.dtypes) * std::ssize(kCheckedLevels) * std::ssize(request.ranks);
  std::int64_t done = 0;
  for (const Dtype dtype : request.dtypes) {
    const reference::Answer expected = reference::grid_model(
        request.shape, whole_weights(model, fill_grid_widely, dtype), samples);
    std::map<std::pair<std::size_t, LayerRecompute>, CheckRow> found;  // by way
    for (const LayerRecompute level : kCheckedLevels) {
      for (std::size_t i = 0; i < request.ranks.size(); ++i, ++done) {
        if (request.progress) {
          request.progress(done, all, counted(request.ranks[i], "rank"));
        }
        const std::vector<LayoutWay> ways = ways_on(request.ranks[i], level);
        for (std::size_t way = 0; way < ways.size(); ++way) {
          const auto [row, fresh] = found.try_emplace(
              {way, level}, empty_row(ways[way].name, level, dtype, request.ranks.size()));
          Plan plan = ways[way].plan;
          plan.messages.overlap = true;
          run_case(of, plan, expected, i, row->second);
        }
      }
    }
    for (auto& [way, row] : found) {
      rows.push_back(std::move(row));
    }
  }
  return request.backend->leads() ? rows : std::vector<CheckRow>{};
}

}  // namespace paradyse
