#include "src/run/measure/profile_subject.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/index.h"
#include "paradyse/plan/layout_planner.h"
#include "src/plan/base/sha256.h"
#include "src/plan/layout/dims_text.h"
#include "src/run/measure/machine.h"

namespace paradyse {
namespace {

constexpr std::int64_t kMostLayers = 2;  // layers are alike

ProfileHeader header_of(
    const std::string& model,
    const std::string& sha256,
    std::int64_t hidden,
    std::int64_t layers,
    int ranks,
    Dtype dtype,
    const Backend& backend,
    c10::Device device) {
  const std::string machine = machine_name(device);
  return {
      .machine = machine,
      .machine_sha256 = sha256_hex(machine),
      .model = model,
      .model_sha256 = sha256,
      .hidden = hidden,
      .layers = std::min(kMostLayers, layers),
      .ranks = ranks,
      .cores = shared_cores(ranks, backend, device),
      .backend = backend.name(),
      .device = device.is_cpu() ? "cpu" : "cuda",
      .dtype = dtype};
}

// --- language models -----------------------------------------------------------------------------

// Sizes between one rank and all of which groups fill the ranks: a power of two each.
std::vector<int> sizes_between(int ranks) {
  std::vector<int> sizes;
  for (int size = 2; size < ranks; size *= 2) {
    if (ranks % size == 0) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

// Whether groups of `size` ranks can run it beside others of their weight domain.
bool suits_groups(const Strategy& s, const Model& model, int size, int ranks) {
  const Task group{
      .part = model.part("attention"),
      .documents = {.lengths = {}, .cuts = Cuts(idx(size))},
      .domain = ranks};
  return !s.one_rank && s.verb == Verb::gather &&
         misfits(group, {.part = "attention", .strategy = s.name}).empty();
}

// All layers alike, in groups of so many ranks, side by side, each with such a document.
Plan plan_of(
    const ModelShape& model,
    const LayerChoice& layer,
    std::int64_t length,
    int of_group,
    int ranks) {
  const int groups = ranks / of_group;
  Plan plan = uniform_plan(
      model,
      std::vector<std::int64_t>(idx(groups), length),
      ranks,
      std::vector<LayerChoice>(idx(model.layers), layer));
  if (groups > 1 && of_group > 1) {
    std::vector<PlanGroup>& its = plan.micro_batches.front().groups;
    const std::string program = its.front().program;
    its.clear();
    for (int g = 0; g < groups; ++g) {
      PlanGroup& group = its.emplace_back(
          PlanGroup{.ranks = {}, .documents = {std::int64_t{g}}, .program = program});
      for (int r = 0; r < of_group; ++r) {
        group.ranks.push_back(g * of_group + r);
      }
    }
  }
  return plan;
}

std::vector<ProfileStep> text_steps(const ProfileRequest& request, const ModelShape& cut) {
  const Model model = text_model(request.model);
  std::vector<ProfileStep> all;
  const auto add = [&](const LayerChoice& layer, std::int64_t length, int ranks, int round) {
    ProfileStep& step = all.emplace_back();
    step.probe = {
        .attention = part_of(layer, "attention").strategy,
        .mlp = part_of(layer, "mlp").strategy,
        .recompute = to_string(layer.front().recompute),
        .ranks = ranks,
        .length = length};
    step.plan = plan_of(cut, layer, length, ranks, request.ranks);
    step.what = fmt::format(
        "{}, {} tokens{}",
        name(layer),
        length,
        ranks == request.ranks ? "" : fmt::format(" in groups of {}", ranks));
    step.round = round;
  };
  const auto add_level = [&](int round, std::int64_t length, Recompute level) {
    // Each verb with every attention in turn: ranks wait in one part for what delays them in the
    // other.
    auto turn = idx(round);
    for (const Strategy& s : strategies("attention")) {
      if (request.ranks == 1 && !s.one_rank) {
        continue;  // on one rank all strategies compute alike
      }
      const Verb mlp = s.one_rank ? Verb::gather : kVerbs[turn++ % std::size(kVerbs)];
      add(text_layer(s.name, to_string(mlp), level, level),
          length,
          s.one_rank ? 1 : request.ranks,
          round);
    }
    if (level != Recompute::none) {
      return;  // what making again takes is known from all ranks together
    }
    for (const int size : sizes_between(request.ranks)) {
      for (const Strategy& s : strategies("attention")) {
        if (suits_groups(s, model, size, request.ranks)) {
          add(text_layer(s.name, "gather", level, level), length, size, round);
        }
      }
    }
  };
  // The most telling levels first, at all lengths.
  for (int round = 0; round < kProfileRounds; ++round) {
    for (const auto& levels :
         {std::pair(Recompute::none, Recompute::full),
          std::pair(Recompute::light, Recompute::attention_output)}) {
      for (const std::int64_t length : request.lengths) {
        add_level(round, length, levels.first);
        add_level(round, length, levels.second);
      }
    }
  }
  return all;
}

ProfileSubject text_subject(const ProfileRequest& request) {
  ModelShape cut = request.model;
  cut.layers = std::min(kMostLayers, cut.layers);
  return {
      .header = profile_header(request),
      .model = text_model(cut),
      .layers = request.model.layers,
      .of_layers =
          [shape = request.model](std::int64_t layers) {
            ModelShape of = shape;
            of.layers = layers;
            return text_model(of);
          },
      .optimizer_layers = {0, cut.layers, request.model.layers},
      .kernels = request.model,
      .steps = text_steps(request, cut)};
}

// --- video and protein models --------------------------------------------------------------------

std::vector<ProfileStep> grid_steps(const ProfileRequest& request, const Model& cut) {
  // The layouts are those of the largest size, so that each is measured at all.
  const auto ways_at = [&](Recompute level) {
    const DimSizes& dims = request.sizes.back();
    LayoutTask task{
        .model = &cut,
        .documents = packed({rows_of(*request.grid, dims)}, request.ranks, cut.causal),
        .recompute = {.parts = level},
        .seconds = {}};
    task.documents.dims = dims;
    return layout_ways(task, model_type(*request.grid));
  };
  const std::vector<LayoutWay> plain = ways_at(Recompute::none);
  const std::vector<LayoutWay> again = ways_at(Recompute::full);
  std::vector<ProfileStep> all;
  for (int round = 0; round < kProfileRounds; ++round) {
    for (const DimSizes& dims : request.sizes) {
      for (const std::vector<LayoutWay>* ways : {&plain, &again}) {
        for (const LayoutWay& way : *ways) {
          const std::string level = to_string(ways == &plain ? Recompute::none : Recompute::full);
          const std::int64_t rows = rows_of(*request.grid, dims);
          ProfileStep& step = all.emplace_back();
          step.probe = {
              .attention = way.name,
              .mlp = "layout of " + text_of(dims),
              .recompute = level,
              .ranks = request.ranks,
              .length = rows};
          step.plan = way.plan;
          step.plan.lengths = {rows};
          step.plan.dims = dims;
          step.what = fmt::format("{} layout, {}, {}", way.name, level, text_of(dims));
          step.round = round;
        }
      }
    }
  }
  return all;
}

ProfileSubject grid_subject(const ProfileRequest& request) {
  const GridShape& shape = *request.grid;
  const std::int64_t layers = layers_of(shape);
  const Model cut = grid_model(with_layers(shape, std::min(kMostLayers, layers)));
  ProfileSubject subject{
      .header = profile_header(request),
      .model = cut,
      .layers = layers,
      .of_layers = [shape](std::int64_t count) { return grid_model(with_layers(shape, count)); },
      .optimizer_layers = {std::min(kMostLayers, layers), layers},
      .steps = grid_steps(request, cut)};
  if (const auto* const video = std::get_if<StditShape>(&shape)) {
    subject.kernels.hidden = video->hidden;
    subject.kernels.head_dim = video->hidden / video->heads;
    subject.kernels.ffn = video->mlp_hidden;
  } else {
    const auto& protein = std::get<EvoformerShape>(shape);
    subject.kernels.hidden = protein.msa_hidden;
    subject.kernels.head_dim = protein.head_dim;
    subject.kernels.ffn = protein.transition * protein.msa_hidden;
  }
  return subject;
}

}  // namespace

ProfileHeader profile_header(
    const ModelShape& model, int ranks, Dtype dtype, const Backend& backend, c10::Device device) {
  ModelShape one_layer = model;
  one_layer.layers = std::min<std::int64_t>(1, model.layers);
  return header_of(
      model.architecture,
      fingerprint(one_layer),
      model.hidden,
      model.layers,
      ranks,
      dtype,
      backend,
      device);
}

ProfileHeader profile_header(
    const GridShape& model, int ranks, Dtype dtype, const Backend& backend, c10::Device device) {
  const auto* const video = std::get_if<StditShape>(&model);
  return header_of(
      architecture(model),
      fingerprint(with_layers(model, 1)),
      video != nullptr ? video->hidden : std::get<EvoformerShape>(model).msa_hidden,
      layers_of(model),
      ranks,
      dtype,
      backend,
      device);
}

ProfileHeader profile_header(const ProfileRequest& request) {
  const auto of = [&](const auto& model) {
    return profile_header(model, request.ranks, request.dtype, *request.backend, request.device);
  };
  return request.grid ? of(*request.grid) : of(request.model);
}

ProfileSubject profile_subject(const ProfileRequest& request) {
  return request.grid ? grid_subject(request) : text_subject(request);
}

std::vector<DimSizes> profile_sizes(const GridShape& model, const BatchSizes& samples) {
  const DimSizes& largest = *std::ranges::max_element(
      samples.dims, {}, [&](const DimSizes& dims) { return rows_of(model, dims); });
  std::vector<DimSizes> sizes;
  for (const std::int64_t share : {4, 2, 1}) {
    DimSizes dims = largest;
    for (auto& [name, size] : dims) {
      size = std::max<std::int64_t>(1, size / share);
    }
    if (sizes.empty() || rows_of(model, sizes.back()) < rows_of(model, dims)) {
      sizes.push_back(std::move(dims));
    }
  }
  return sizes;
}

}  // namespace paradyse
