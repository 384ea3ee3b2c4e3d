#include "src/run/check/check_layouts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "src/plan/base/number_text.h"
#include "src/run/check/check_case.h"
#include "src/run/data/synthetic_items.h"

namespace paradyse {
namespace {

// Sizes that few ranks divide.
DimSizes dims_of(const Model& model) {
  static const DimSizes kSizes = {
      {"frames", 5},
      {"patches", 6},
      {"text", 3},
      {"sequences", 5},
      {"extra_sequences", 6},
      {"residues", 7},
      {"i", 7},
      {"j", 7}};
  DimSizes dims = kSizes;
  std::erase_if(dims, [&](const auto& one) { return !model.has_dim(one.first); });
  return dims;
}

// Weights of which no gradient vanishes, whatever the model begins with: behind a product that is
// zero, or of scores so large that attention takes one row alone, a gradient is zero or the
// rounding of what is left of large terms, and no mistake in it is found.  So no matrix is zero, no
// product is much larger than what it is of, and vectors are apart from 0 and 1.
void fill_grid_widely(Parameters& parameters) {
  for (PartParameters& part : parameters.parts()) {
    for (Matrix& matrix : part.weights.matrices) {
      const std::int64_t terms = matrix.transposed ? matrix.rows : matrix.cols;
      matrix.begin = Begin::normal;
      matrix.deviation = std::min(0.2, 1 / std::sqrt(static_cast<double>(terms)));
    }
  }
  parameters.initialize(11);
  for (PartParameters& part : parameters.parts()) {
    for (const at::Tensor& vector : part.vectors) {
      add_wave(vector, 0.25, 1);
    }
    keep_from_corners(part, parameters.model());
  }
}

}  // namespace

reference::Answer expected_of_samples(
    const Model& model, const reference::Weights& weights, const std::vector<Item>& samples) {
  return reference::answer(model, weights, {.items = samples});
}

std::vector<CheckRow> check_layouts(const LayoutCheckRequest& request) {
  const Model& model = request.model;
  const DimSizes dims = dims_of(model);
  const std::vector<Sample> samples =
      synthetic_samples(model, dims, model.has_dim("batch") ? 2 : 1);
  CheckCase of{
      .name = request.name,
      .model = model,
      .fill = fill_grid_widely,
      .items = items_of(samples),
      // pairs are read as biases of scores
      .behind_scores = [pairs = model.has_dim("i")](const std::string&) { return pairs; },
      .backend = request.backend,
      .device = request.device};
  // All ways on a number of ranks; they are the same ones on each.
  const auto ways_on = [&](int ranks, LayerRecompute level) {
    LayoutTask task{.model = &model, .documents = {}, .recompute = level, .seconds = {}};
    task.documents =
        packed(std::vector<std::int64_t>(samples.size(), model.rows(dims)), ranks, model.causal);
    task.documents.dims = dims;
    return layout_ways(task);
  };
  std::vector<CheckRow> rows;
  const std::int64_t all =
      std::ssize(request.dtypes) * std::ssize(kCheckedLevels) * std::ssize(request.ranks);
  std::int64_t done = 0;
  for (const Dtype dtype : request.dtypes) {
    const reference::Weights weights = whole_weights(model, fill_grid_widely, dtype);
    const reference::Answer expected = request.expected(model, weights, of.items);
    of.narrow_limits = narrow_limits(of, weights, dtype);
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
