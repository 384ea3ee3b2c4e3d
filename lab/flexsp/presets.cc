#include "lab/flexsp/presets.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace paradyse {
namespace {

// Released with the publication; 16 L h s bytes is its 4 tensors x 2 passes x 2 bytes.
constexpr std::array<FlexspModel, 3> kModels = {{
    {"flexsp-7b", 4.4804, 5.128e-6, 0.1839576, 629.36, 7.117, 7.850, 32, 4096},
    {"flexsp-13b", 4.2204, 9.2852e-6, 0.3060189, 1132.56, 13.116, 14.032, 40, 5120},
    {"flexsp-30b", 3.4174, 15.4262e-6, 0.8035742, 2789.36, 31.525, 32.715, 60, 6656},
}};
constexpr std::array<double, 6> kAllToAll = {119.54, 104.07, 96.5, 10.33, 5.94, 4.87};  // 2, 4, ...
constexpr int kNode = kFlexspNode;
constexpr double kBytesOfState = 16;  // of a parameter, over all ranks

double of_power_of_two(int log2_ranks) {
  if (log2_ranks == 0) {
    return std::numeric_limits<double>::infinity();
  }
  constexpr int kMeasured = static_cast<int>(kAllToAll.size());
  return log2_ranks <= kMeasured ? kAllToAll[idx(log2_ranks - 1)]
                                 : kAllToAll.back() * std::pow(0.9, log2_ranks - kMeasured);
}

}  // namespace

double FlexspModel::parameters(std::int64_t context) const {
  const double thousands = static_cast<double>(context) / 1000;
  return parameters_192k + (parameters_384k - parameters_192k) * (thousands - 192) / 192;
}

std::span<const FlexspModel> flexsp_models() { return kModels; }

const FlexspModel* flexsp_model(const std::string& name) {
  for (const FlexspModel& model : kModels) {
    if (name == model.name) {
      return &model;
    }
  }
  return nullptr;
}

double flexsp_all_to_all(int ranks) {
  const auto above =
      static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1)));  // log2, rounded up
  if (std::has_single_bit(static_cast<unsigned>(ranks)) || ranks > kNode) {
    return of_power_of_two(above);
  }
  const double part = std::log2(ranks) - (above - 1);
  return std::pow(of_power_of_two(above - 1), 1 - part) * std::pow(of_power_of_two(above), part);
}

std::int64_t flexsp_tokens_per_rank(const FlexspSetting& setting) {
  const double states =
      kBytesOfState * 1024 * setting.model->parameters(setting.context) / setting.ranks;
  return static_cast<std::int64_t>(
      std::floor((setting.memory_mb - states) / setting.model->activation_mb));
}

namespace {

// The megabytes a token, and how often what is computed and sent, of a level of recompute.
struct Level {
  Recompute recompute = Recompute::none;
  double activation = 1;  // of the model's
  double a1 = 1;
  double a2 = 1;
  double sent = 1;  // by all-to-alls
  double ring = 1;  // by rings
};
constexpr Level kLevels[] = {
    {.recompute = Recompute::none},
    {.recompute = Recompute::attention_output,
     .activation = 1.3 / 4.4804,
     .a2 = 1.19,
     .sent = 1.375},
    {.recompute = Recompute::full,
     .activation = 1.0 / 4.4804,
     .a1 = 1.33,
     .a2 = 1.33,
     .sent = 1.5,
     .ring = 4.0 / 3},
};
constexpr double kBorder = 44;    // GB/s across the border of a node, of all its ranks together
constexpr int kColumns = 128;     // of a head
constexpr double kGradients = 4;  // bytes of a parameter, summed over nodes

double to_mb(double bytes) { return bytes / (1024 * 1024); }

// 1, 2, ... ranks of a node; then nodes: 2, 3, ... 8, and 1.5 times and twice every power of two.
std::vector<int> full_sizes(int ranks, bool inside_nodes) {
  std::vector<int> sizes;
  for (int d = 1; d <= std::min(kNode, ranks); ++d) {
    sizes.push_back(d);
  }
  for (int nodes = 2; !inside_nodes && nodes * kNode <= ranks; ++nodes) {
    const int top = static_cast<int>(std::bit_floor(static_cast<unsigned>(nodes)));
    if (nodes <= kNode || 2 * (nodes - top) == top || nodes == top) {
      sizes.push_back(nodes * kNode);
    }
  }
  return sizes;
}

// Milliseconds of a group of d ranks for a document: square s^2 + linear s, or, where a ring hides
// behind attention, max(square s^2, hidden s) + linear s; all divided by d.
struct Milliseconds {
  double square = 0;
  double linear = 0;
  double hidden = 0;

  [[nodiscard]] double at(std::int64_t tokens, int ranks) const {
    const auto s = static_cast<double>(tokens);
    return (std::max(square * s * s, hidden * s) + linear * s) / ranks;
  }
};

// The preset's head: what the plan says.
GroupSpace empty_space(const FlexspSetting& setting, std::vector<std::int64_t> lengths) {
  const FlexspModel& model = *setting.model;
  GroupSpace space{
      .name = "flexsp",
      .task =
          {.ranks = setting.ranks,
           .lengths = std::move(lengths),
           .types = {},
           .seconds = {},
           .micro_batch_seconds = model.b1_ms / 1000},
      .programs = {},
      .idle = uniform_program(model.layers, "DataZ", "gather", Recompute::none),
      .weight_domain = setting.ranks,
      .model_name = model.name,
      .model_sha256 = {},
      .layers = model.layers,
      .cluster_name = kFlexspCluster,
      .cluster_sha256 = {}};
  return space;
}

void add_type(
    GroupSpace& space,
    GroupType type,
    const std::string& core,
    Recompute recompute,
    const Milliseconds& ms) {
  for (const std::int64_t length : space.task.lengths) {
    space.task.seconds.push_back(ms.at(length, type.ranks) / 1000);
  }
  LayerRuns program = uniform_program(space.layers, core, "gather", recompute);
  if (core == "USP") {
    set_options(program.front().choice, {{"ulysses_degree", kNode}});
  }
  space.programs.push_back(std::move(program));
  space.task.types.push_back(std::move(type));
}

std::string type_name(int ranks, const std::string& core, Recompute recompute) {
  return std::to_string(ranks) + " x " + core +
         (recompute == Recompute::none ? "" : ", recompute " + to_string(recompute));
}

void require_ranks(const FlexspSetting& setting) {
  if (setting.ranks < 1) {
    throw std::invalid_argument(
        std::string(setting.model->name) + ": " + std::to_string(setting.ranks) +
        " ranks: at least 1 is needed");
  }
}

[[noreturn]] void no_room(const FlexspSetting& setting, int domain) {
  throw std::invalid_argument(
      std::string(setting.model->name) + ": 16 bytes a parameter over " + std::to_string(domain) +
      " ranks leave no memory for a token: give more ranks or memory");
}

// Megabytes of a rank beside states that are cut over `domain` ranks.
double memory_beside_states(const FlexspSetting& setting, int domain) {
  return setting.memory_mb -
         kBytesOfState * 1024 * setting.model->parameters(setting.context) / domain;
}

}  // namespace

GroupSpace flexsp_space(const FlexspSetting& setting, std::vector<std::int64_t> lengths) {
  require_ranks(setting);
  const FlexspModel& model = *setting.model;
  const std::int64_t room = flexsp_tokens_per_rank(setting);
  if (room < 1) {
    no_room(setting, setting.ranks);
  }
  GroupSpace space = empty_space(setting, std::move(lengths));
  for (int d = 1; d <= setting.ranks; d *= 2) {
    const std::string core = d == 1 ? "DataZ" : "UlyssesZ";
    const double sent = to_mb(16.0 * model.layers * model.hidden) / flexsp_all_to_all(d);
    add_type(
        space,
        {.name = type_name(d, core, Recompute::none), .ranks = d, .capacity = d * room},
        core,
        Recompute::none,
        {.square = model.a1_ms, .linear = model.a2_ms + sent});
  }
  check(space.task);
  return space;
}

GroupingTask flexsp_task(const FlexspSetting& setting, std::vector<std::int64_t> lengths) {
  return flexsp_space(setting, std::move(lengths)).task;
}

GroupSpace flexsp_full_space(
    const FlexspSetting& setting, const FlexspFull& options, std::vector<std::int64_t> lengths) {
  require_ranks(setting);
  const FlexspModel& model = *setting.model;
  const int domain = options.node_domain ? std::min(kNode, setting.ranks) : setting.ranks;
  if (setting.ranks % domain != 0) {
    throw std::invalid_argument(
        std::string(model.name) + ": " + std::to_string(setting.ranks) +
        " ranks are not whole nodes of " + std::to_string(kNode) +
        ": weights cannot be sharded over each node; give a multiple of that, or shard them over "
        "all ranks");
  }
  const double memory = memory_beside_states(setting, domain);
  if (memory < model.activation_mb) {
    no_room(setting, domain);
  }
  GroupSpace space = empty_space(setting, std::move(lengths));
  space.name = "full";
  space.weight_domain = domain;
  space.task.node = kNode;
  space.task.overlapped = options.overlapped;
  space.messages.overlap = options.overlapped;
  const double parameters_gb =
      model.parameters(setting.context) * 1024 * 1024 * 1024 / 1e9;  // of 10^9
  if (options.node_domain) {
    // ZeRO-3 sends two bytes of a parameter three times
    space.task.micro_batch_seconds = 6 * parameters_gb / flexsp_all_to_all(2);
    const int nodes = (setting.ranks + kNode - 1) / kNode;
    space.batch_seconds =
        nodes > 1 ? kGradients * parameters_gb * (nodes - 1) / nodes / kBorder : 0;
  }
  const double heads = static_cast<double>(model.hidden) / kColumns;
  const double sizes_of_state = to_mb(model.layers * static_cast<double>(model.hidden));
  for (const int d : full_sizes(setting.ranks, options.node_domain)) {
    for (const Level& level : kLevels) {
      const auto room =
          static_cast<std::int64_t>(memory / (model.activation_mb * level.activation));
      const double a1 = model.a1_ms * level.a1;
      const double a2 = model.a2_ms * level.a2;
      const auto add = [&](const std::string& core, const Milliseconds& ms) {
        add_type(
            space,
            {.name = type_name(d, core, level.recompute), .ranks = d, .capacity = d * room},
            core,
            level.recompute,
            ms);
      };
      // What goes round a ring beside attention, in milliseconds a token of the group.
      const auto ring = [&](const std::string& core, double ms, double beside) {
        if (options.overlapped) {
          add(core, {.square = a1, .linear = a2 + beside, .hidden = d * ms});
        } else {
          add(core, {.square = a1, .linear = a2 + beside + d * ms});
        }
      };
      if (d == 1) {
        add("DataZ", {.square = a1, .linear = a2});
        continue;
      }
      const bool even = std::has_single_bit(static_cast<unsigned>(d));
      const double fullest = even ? 1 : std::max(1.0, std::ceil(heads / d) * d / heads);
      const double all_to_all = 16 * sizes_of_state * level.sent;
      add("UlyssesZ",
          {.square = a1 * fullest, .linear = a2 + fullest * all_to_all / flexsp_all_to_all(d)});
      const double around = 12 * sizes_of_state * level.ring;
      ring("MegatronCZ", around * (d - 1) / d / (d <= kNode ? flexsp_all_to_all(2) : kBorder), 0);
      if (d > kNode) {
        const double nodes = static_cast<double>(d) / kNode;
        ring(
            "USP",
            around / kNode * (nodes - 1) / nodes / (kBorder / kNode),
            all_to_all / flexsp_all_to_all(kNode));
      }
    }
  }
  check(space.task);
  return space;
}

}  // namespace paradyse
