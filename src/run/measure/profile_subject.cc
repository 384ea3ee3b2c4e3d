#include "src/run/measure/profile_subject.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "src/plan/base/sha256.h"
#include "src/plan/layout/dims_text.h"
#include "src/run/measure/machine.h"

namespace paradyse {
namespace {

// Layers are alike, or those of a period differ.
std::int64_t cut_layers(const Model& model) {
  if (!model.of_sizes && model.stacks().size() > 1) {
    return model.layers;  // nobody says how many of each kind fewer have
  }
  return std::min(std::max<std::int64_t>(2, model.period()), model.layers);
}

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

// Groups of so many ranks in place of a micro-batch's, side by side, each with one document.
void put_side_by_side(PlanMicroBatch& micro, int of_group, int ranks) {
  const PlanGroup like = micro.groups.front();
  micro.groups.clear();
  for (int first = 0; first < ranks; first += of_group) {
    PlanGroup& group = micro.groups.emplace_back(like);
    group.documents = {first / of_group};
    group.ranks.resize(idx(of_group));
    std::iota(group.ranks.begin(), group.ranks.end(), first);
  }
}

// Weights whole while it lasts, in several micro-batches like its one.
void have_weights_whole(Plan& plan) {
  const int count = micro_batches_of_whole(plan.lengths.front());
  plan.messages.reshard_after_backward = false;
  const PlanMicroBatch like = plan.micro_batches.front();
  const std::vector<std::int64_t> lengths = plan.lengths;
  for (int m = 1; m < count; ++m) {
    PlanMicroBatch& micro = plan.micro_batches.emplace_back(like);
    for (PlanGroup& group : micro.groups) {
      for (std::int64_t& document : group.documents) {
        document += m * std::ssize(lengths);
      }
    }
    plan.lengths.insert(plan.lengths.end(), lengths.begin(), lengths.end());
  }
}

// " in groups of 2, whole weights", as far as it is so.
std::string how_text(int of_group, int ranks, bool whole) {
  return (of_group == ranks ? "" : fmt::format(" in groups of {}", of_group)) +
         (whole ? ", whole weights" : "");
}

// --- language models -----------------------------------------------------------------------------

// Whether groups of `size` ranks can run it, gathering weights from `domain` ranks.
bool suits_groups(const Strategy& s, const Model& model, int size, int domain) {
  const Task group{
      .part = model.part("attention"),
      .documents = {.lengths = {}, .cuts = Cuts(idx(size))},
      .domain = domain};
  return !s.one_rank && s.verb == Verb::gather &&
         misfits(group, {.part = "attention", .strategy = s.name}).empty();
}

// All layers alike, in groups of so many ranks, side by side, each with such a document.
Plan plan_of(
    const Model& model, const LayerChoice& layer, std::int64_t length, int of_group, int ranks) {
  const int groups = ranks / of_group;
  Plan plan = uniform_plan(
      model,
      std::vector<std::int64_t>(idx(groups), length),
      ranks,
      std::vector<LayerChoice>(idx(model.layers), layer));
  if (groups > 1 && of_group > 1) {
    put_side_by_side(plan.micro_batches.front(), of_group, ranks);
  }
  return plan;
}

std::vector<ProfileStep> text_steps(const ProfileRequest& request, const Model& cut) {
  const Model& model = request.model;
  std::vector<ProfileStep> all;
  const auto add =
      [&](const LayerChoice& layer, std::int64_t length, int ranks, bool whole, int round) {
        ProfileStep& step = all.emplace_back();
        step.probe = {
            .attention = part_of(layer, "attention").strategy,
            .mlp = part_of(layer, "mlp").strategy,
            .recompute = to_string(layer.front().recompute),
            .ranks = ranks,
            .length = length,
            .reshard_after_backward = !whole};
        step.plan = plan_of(cut, layer, length, ranks, request.ranks);
        step.what = fmt::format(
            "{}, {} tokens{}", name(layer), length, how_text(ranks, request.ranks, whole));
        if (whole) {
          have_weights_whole(step.plan);
        }
        step.round = round;
      };
  // In groups of so many ranks, side by side.
  const auto add_groups =
      [&](int size, std::int64_t length, Recompute level, bool whole, int round) {
        for (const Strategy& s : strategies("attention")) {
          if ((size == 1) == s.one_rank &&
              (size == 1 || suits_groups(s, model, size, whole ? 1 : request.ranks))) {
            add(text_layer(s.name, "gather", level, level), length, size, whole, round);
          }
        }
      };
  const std::vector<int> between = sizes_between(request.ranks);
  // With weights whole, which tells computing from gathers.
  const auto add_whole = [&](int round, std::int64_t length, Recompute level) {
    add_groups(1, length, level, true, round);
    add_groups(request.ranks, length, level, true, round);
    // what making again takes is known from all ranks together
    for (const int size : level == Recompute::none ? between : std::vector<int>()) {
      add_groups(size, length, level, true, round);
    }
  };
  const auto add_sharded = [&](int round, std::int64_t length, Recompute level) {
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
          false,
          round);
    }
    for (const int size : level == Recompute::none ? between : std::vector<int>()) {
      add_groups(size, length, level, false, round);
    }
  };
  // The most telling levels first, at all lengths; and what takes least before what gathers.
  for (int round = 0; round < kProfileRounds; ++round) {
    for (const auto& [first, second] :
         {std::pair(Recompute::none, Recompute::full),
          std::pair(Recompute::light, Recompute::attention_output)}) {
      for (const std::int64_t length : request.lengths) {
        if (request.ranks > 1) {
          add_whole(round, length, first);
          add_whole(round, length, second);
        }
      }
      for (const std::int64_t length : request.lengths) {
        add_sharded(round, length, first);
        add_sharded(round, length, second);
      }
    }
  }
  return all;
}

// --- video and protein models --------------------------------------------------------------------

std::vector<ProfileStep> grid_steps(const ProfileRequest& request, const Model& cut) {
  // The layouts are those of the largest size, so that each is measured at all.
  const auto ways_at = [&](Recompute level) {
    const DimSizes& dims = request.sizes.back();
    LayoutTask task{
        .model = &cut,
        .documents = packed({cut.rows(dims)}, request.ranks, cut.causal),
        .recompute = {.parts = level},
        .seconds = {}};
    task.documents.dims = dims;
    return layout_ways(task);
  };
  // Of smaller groups the layout that sends least, each group with a sample.
  const auto grouped = [&](int size, Recompute level) {
    const DimSizes& dims = request.sizes.back();
    LayoutTask task{
        .model = &cut,
        .documents = packed({cut.rows(dims)}, size, cut.causal),
        .domain = request.ranks,
        .recompute = {.parts = level},
        .seconds = {}};
    task.documents.dims = dims;
    Plan plan = plan_of(task, plan_layouts(task, cut.layers));
    plan.model_name = cut.name;
    plan.model_sha256 = cut.sha256;
    plan.ranks = plan.weight_domain = request.ranks;
    put_side_by_side(plan.micro_batches.front(), size, request.ranks);
    return plan;
  };
  std::vector<int> sizes = sizes_between(request.ranks);
  if (request.ranks > 1) {
    sizes.insert(sizes.begin(), 1);
  }
  std::map<std::pair<int, Recompute>, Plan> groups;  // [ranks, level]
  for (const int size : sizes) {
    for (const Recompute level : {Recompute::none, Recompute::full}) {
      groups[{size, level}] = grouped(size, level);
    }
  }
  const std::vector<LayoutWay> plain = ways_at(Recompute::none);
  const std::vector<LayoutWay> again = ways_at(Recompute::full);
  std::vector<ProfileStep> all;
  const auto add = [&](const std::string& layout,
                       Recompute recompute,
                       const Plan& plan,
                       int ranks,
                       const DimSizes& dims,
                       bool whole,
                       int round) {
    const std::string level = to_string(recompute);
    const std::int64_t rows = cut.rows(dims);
    ProfileStep& step = all.emplace_back();
    step.probe = {
        .attention = layout,
        .mlp = "layout of " + text_of(dims),
        .recompute = level,
        .ranks = ranks,
        .length = rows,
        .reshard_after_backward = !whole};
    step.plan = plan;
    step.plan.lengths.assign(plan.micro_batches.front().groups.size(), rows);
    step.plan.dims = dims;
    step.what = fmt::format(
        "{} layout, {}, {}{}", layout, level, text_of(dims), how_text(ranks, request.ranks, whole));
    if (whole) {
      have_weights_whole(step.plan);
    }
    step.round = round;
  };
  // Groups that lack room for a sample have some where it is made again.
  const auto level_that_fits = [&](int size, const DimSizes& dims) {
    Plan plan = groups.at({size, Recompute::none});
    plan.lengths.assign(plan.micro_batches.front().groups.size(), cut.rows(dims));
    plan.dims = dims;
    const std::vector<PredictedBytes> of_ranks =
        bytes_of_ranks(plan, cut, precision_of(request.dtype), /*training=*/true);
    const bool fits = request.memory_per_rank == 0 ||
                      std::ranges::all_of(of_ranks, [&](const PredictedBytes& bytes) {
                        return bytes.total() <= request.memory_per_rank;
                      });
    return fits ? Recompute::none : Recompute::full;
  };
  // What is planned first, at all sizes, with weights whole, which tells computing from gathers,
  // and with gathers; then what others would run.
  constexpr const char* kPlanned = "planned";
  const auto add_ways = [&](const std::vector<LayoutWay>& ways,
                            Recompute level,
                            const DimSizes& dims,
                            bool ours,
                            bool whole,
                            int round) {
    for (const LayoutWay& way : ways) {
      if ((way.name == kPlanned) == ours) {
        add(way.name, level, way.plan, request.ranks, dims, whole, round);
      }
    }
  };
  const auto add_all = [&](bool ours, bool whole, int round) {
    for (const DimSizes& dims : request.sizes) {
      add_ways(plain, Recompute::none, dims, ours, whole, round);
      for (const int size : ours ? sizes : std::vector<int>()) {
        const Recompute level = level_that_fits(size, dims);
        add(kPlanned, level, groups.at({size, level}), size, dims, whole, round);
      }
      add_ways(again, Recompute::full, dims, ours, whole, round);
    }
  };
  for (int round = 0; round < kProfileRounds; ++round) {
    if (request.ranks > 1) {
      add_all(/*ours=*/true, /*whole=*/true, round);
    }
    add_all(/*ours=*/true, /*whole=*/false, round);
    add_all(/*ours=*/false, /*whole=*/false, round);
  }
  return all;
}

}  // namespace

int micro_batches_of_whole(std::int64_t length) {
  constexpr std::int64_t kLong = 4096;  // of so many one after a cold one says enough
  const std::int64_t least = length < kLong ? 4 : 2;
  constexpr std::int64_t kMore = 28;
  constexpr std::int64_t kTokens = 2048;
  return static_cast<int>(least + std::min(kMore, kTokens / std::max<std::int64_t>(1, length)));
}

ProfileHeader profile_header(
    const Model& model, int ranks, Dtype dtype, Backend& backend, c10::Device device) {
  const std::string machine = machine_name(device);
  return {
      .machine = machine,
      .machine_sha256 = sha256_hex(machine),
      .model = model.name,
      // of a family's models whatever their layers
      .model_sha256 = model.of_sizes
                          ? with_layers(model, std::min<std::int64_t>(1, model.layers)).sha256
                          : model.sha256,
      .hidden = model.streams.front().columns,
      .layers = cut_layers(model),
      .ranks = ranks,
      .ranks_per_node = backend.ranks_per_node(ranks),
      .cores = shared_cores(ranks, backend, device),
      .backend = backend.name(),
      .device = device.is_cpu() ? "cpu" : "cuda",
      .dtype = dtype};
}

ProfileHeader profile_header(const ProfileRequest& request) {
  return profile_header(
      request.model, request.ranks, request.dtype, *request.backend, request.device);
}

ProfileSubject profile_subject(const ProfileRequest& request) {
  const std::int64_t layers = request.model.layers;
  const Model cut = with_layers(request.model, cut_layers(request.model));
  std::vector<std::int64_t> optimizer_layers = {cut.layers, layers};
  if (!cut.of_samples()) {
    optimizer_layers.insert(optimizer_layers.begin(), 0);
  }
  return {
      .header = profile_header(request),
      .model = cut,
      .layers = layers,
      .optimizer_layers = std::move(optimizer_layers),
      .steps = cut.of_samples() ? grid_steps(request, cut) : text_steps(request, cut)};
}

std::vector<DimSizes> profile_sizes(const Model& model, const BatchSizes& samples) {
  constexpr std::int64_t kLeastExtent = 32;  // of the longest dim of sizes below a quarter
  const DimSizes& largest = *std::ranges::max_element(
      samples.dims, {}, [&](const DimSizes& dims) { return model.rows(dims); });
  std::vector<DimSizes> sizes;
  for (const std::int64_t share : {16, 8, 4, 2, 1}) {
    DimSizes dims = largest;
    for (auto& [name, size] : dims) {
      size = std::max<std::int64_t>(1, size / share);
    }
    // time or memory may end it before the largest, and a fit takes three sizes
    const bool worth = share <= 4 || std::ranges::max(dims | std::views::values) >= kLeastExtent;
    if (worth && (sizes.empty() || model.rows(sizes.back()) < model.rows(dims))) {
      sizes.push_back(std::move(dims));
    }
  }
  return sizes;
}

}  // namespace paradyse
