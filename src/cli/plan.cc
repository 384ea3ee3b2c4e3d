// paradyse plan check: is this plan sound, does it fit, and what does each part do.
#include "paradyse/plan/plan.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/grid_models.h"
#include "paradyse/plan/index.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/text_match.h"
#include "src/plan/plan/explain.h"
#include "src/plan/published/flexsp_check.h"

namespace paradyse::cli {
namespace {

struct CheckOptions {
  std::string file;
  std::string model;
  std::string cluster;
  std::string space;
  std::optional<int> ranks;
  std::optional<std::int64_t> context;
  std::string memory_per_rank;
  std::string dtype;  // "": float32, of a described cluster bfloat16
  bool forward_only = false;
  bool explain = false;
  bool overlapped = false;
  std::string domain = "auto";
};

std::string numbers(const std::vector<std::int64_t>& values) {
  constexpr std::size_t kMost = 8;
  std::string list;
  for (std::size_t i = 0; i < values.size() && i < kMost; ++i) {
    list += (i == 0 ? "" : " ") + std::to_string(values[i]);
  }
  return values.size() > kMost ? fmt::format("{} ... ({} in all)", list, values.size()) : list;
}

// "micro-batch 0, group 1 (ranks 0 1; documents 3), attention METP, layers 0 1 2".
std::string where(const PlanGroup& group, const ExplainedProgram& program) {
  std::string text = fmt::format(
      "micro-batch {}, group {} (ranks {}{}; documents {}), {} {}",
      program.micro_batch,
      program.group,
      numbers({group.ranks.begin(), group.ranks.end()}),
      group.shares.empty() ? "" : fmt::format(" by shares {}", fmt::join(group.shares, " ")),
      group.documents.empty() ? "none" : numbers(group.documents),
      program.part,
      program.strategy);
  return program.layers.empty() ? text : text + ", layers " + numbers(program.layers);
}

Json to_json(const ExplainedProgram& program) {
  return {
      {"micro_batch", program.micro_batch},
      {"group", program.group},
      {"part", program.part},
      {"strategy", program.strategy},
      {"layers", program.layers},
      {"text", program.text}};
}

// "4 ranks (sharding group 4), 3 documents of 71 tokens, 2 micro-batches, 5 groups".
std::string summary(const Plan& plan) {
  std::int64_t tokens = 0;
  for (const std::int64_t length : plan.lengths) {
    tokens += length;
  }
  std::int64_t groups = 0;
  for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
    groups += std::ssize(micro_batch.groups);
  }
  return fmt::format(
      "model {} of {}; {}, sharding group {}; {} of {};\n{}, {}, {}",
      plan.model_name,
      counted(plan.layers, "layer"),
      counted(plan.ranks, "rank"),
      plan.weight_domain,
      counted(std::ssize(plan.lengths), "document"),
      counted(tokens, "token"),
      counted(std::ssize(plan.programs), "program"),
      counted(std::ssize(plan.micro_batches), "micro-batch"),
      counted(groups, "group"));
}

// What a space of plans asks beside the plan's own rules.
struct Space {
  const char* name = "";
  std::vector<std::string> (*problems)(const Plan& plan, const FullSpace& of_cluster) = nullptr;
  // Of a preset that is no model; null: the space has none.
  std::vector<std::string> (*preset_problems)(
      const Plan& plan, const FlexspSetting& setting, const FlexspFull& options) = nullptr;
};
constexpr Space kSpaces[] = {
    {.name = "flexsp",
     .problems = [](const Plan& plan,
                    const FullSpace& /*cluster*/) { return flexsp_space_problems(plan); },
     .preset_problems =
         [](const Plan& plan, const FlexspSetting& setting, const FlexspFull& /*options*/) {
           return flexsp_preset_problems(plan, setting);
         }},
    {.name = "full",
     .problems = flexsp_full_space_problems,
     .preset_problems = flexsp_full_preset_problems}};

// None for "".
const Space* space_named(const std::string& name) {
  std::vector<std::string> names;
  for (const Space& space : kSpaces) {
    if (name == space.name) {
      return &space;
    }
    names.emplace_back(space.name);
  }
  if (name.empty()) {
    return nullptr;
  }
  throw std::invalid_argument(fmt::format(
      "--space {}: not known{}; there are: {}",
      name,
      did_you_mean(name, names),
      fmt::join(names, ", ")));
}

// What the command line says of the preset that --model names; none: it names a model.
std::optional<FlexspSetting> preset_setting(const CheckOptions& options, std::int64_t memory) {
  FlexspSetting setting{.model = flexsp_model(options.model)};
  if (setting.model == nullptr) {
    for (const auto& [flag, given] :
         {std::pair{"--cluster", options.cluster == kFlexspCluster},
          {"--ranks", options.ranks.has_value() && options.cluster.empty()},
          {"--context", options.context.has_value()},
          {"--overlap", options.overlapped},
          {"--weight-domain", options.domain != "auto"}}) {
      if (given) {
        throw std::invalid_argument(
            std::string(flag) + " goes with a preset: --model flexsp-7b, flexsp-13b or flexsp-30b");
      }
    }
    return std::nullopt;
  }
  if (!options.cluster.empty() && options.cluster != kFlexspCluster) {
    throw std::invalid_argument(
        "--cluster " + options.cluster + ": " + options.model + " was measured only on " +
        kFlexspCluster + "; give that one, with --ranks for another number of ranks");
  }
  if (options.explain) {
    throw std::invalid_argument(
        "--explain: " + options.model +
        " is a set of cost coefficients, not a model: it has no ops to show");
  }
  setting.ranks = options.ranks.value_or(setting.ranks);
  setting.context = options.context.value_or(setting.context);
  if (memory > 0) {
    setting.memory_mb = static_cast<double>(memory) / (1024 * 1024);
  }
  return setting;
}

// What --cluster describes, with the memory that --memory-per-rank says; none: a preset, or nothing
// was said.
std::optional<Cluster> described_cluster(const CheckOptions& options, std::int64_t memory) {
  if (options.cluster.empty() || options.cluster == kFlexspCluster) {
    return std::nullopt;
  }
  return cluster_with(options.cluster, options.ranks.value_or(0), memory);
}

// The rules of the space full on that cluster; of a plan for another than the presets' that is not
// described, none that speaks of nodes.
FullSpace full_space(const Plan& plan, const std::optional<Cluster>& cluster) {
  if (!cluster) {
    return plan.cluster_name == kFlexspCluster ? FullSpace{} : FullSpace{.node = 0, .light = true};
  }
  return {.node = std::min(cluster->ranks_per_node, cluster->ranks()), .light = true};
}

// All that is wrong, with the model's sizes, a preset's or neither.
std::vector<std::string> all_problems(
    const Plan& plan,
    const CheckContext& context,
    const Space* space,
    const FullSpace& of_cluster,
    const std::optional<FlexspSetting>& preset,
    const CheckOptions& options) {
  std::vector<std::string> found = problems(plan, context);
  const auto add = [&](const std::vector<std::string>& more) {
    found.insert(found.end(), more.begin(), more.end());
  };
  if (space != nullptr) {
    add(space->problems(plan, of_cluster));
  }
  if (preset) {
    const bool node =
        options.domain == "node" || (options.domain == "auto" && plan.weight_domain < plan.ranks);
    add(space->preset_problems(
        plan,
        *preset,
        {.overlapped = options.overlapped || plan.messages.overlap, .node_domain = node}));
  }
  return found;
}

// How full ranks are, and what they have: of each kind of device the rank that holds most and the
// one that holds least.
struct DeviceMemory {
  std::string device;      // "": nobody says which
  std::int64_t bytes = 0;  // that each has; 0: not known
  int first = 0;           // its ranks
  int ranks = 0;
  int fullest = 0;
  int emptiest = 0;
};

std::vector<DeviceMemory> memory_of_devices(
    const std::vector<PredictedBytes>& held,
    const std::optional<Cluster>& cluster,
    std::int64_t memory) {
  std::vector<DeviceMemory> all;
  if (cluster) {
    for (const DeviceClass& one : cluster->devices) {
      all.push_back({.device = one.name, .bytes = one.memory_bytes, .ranks = one.count});
    }
  } else {
    all.push_back({.device = {}, .bytes = memory, .ranks = static_cast<int>(held.size())});
  }
  int first = 0;
  for (DeviceMemory& device : all) {
    device.first = device.fullest = device.emptiest = first;
    for (int rank = first; rank < first + device.ranks; ++rank) {
      const auto total = [&](int of) { return held[idx(of)].total(); };
      device.fullest = total(rank) > total(device.fullest) ? rank : device.fullest;
      device.emptiest = total(rank) < total(device.emptiest) ? rank : device.emptiest;
    }
    first += device.ranks;
  }
  return all;
}

Json memory_json(const std::vector<PredictedBytes>& held, const std::vector<DeviceMemory>& all) {
  Json devices = Json::array();
  for (const DeviceMemory& one : all) {
    const PredictedBytes& most = held[idx(one.fullest)];
    devices.push_back(
        {{"device", one.device.empty() ? Json(nullptr) : Json(one.device)},
         {"first_rank", one.first},
         {"ranks", one.ranks},
         {"device_bytes", one.bytes},
         {"fullest_rank", one.fullest},
         {"peak_bytes", most.total()},
         {"static_bytes", most.static_bytes},
         {"saved_bytes", most.saved},
         {"transient_bytes", most.transient},
         {"least_peak_bytes", held[idx(one.emptiest)].total()}});
  }
  return devices;
}

void print_memory(
    const std::vector<PredictedBytes>& held,
    const std::vector<DeviceMemory>& all,
    const std::string& dtype) {
  for (const DeviceMemory& one : all) {
    const PredictedBytes& most = held[idx(one.fullest)];
    fmt::print(
        "memory in {}{}: rank {} needs most, {} of {}\n  static {}, saved {}, transient {}; the "
        "lowest rank needs {}\n",
        dtype,
        one.device.empty() ? "" : ", " + counted(one.ranks, "rank") + " on " + one.device,
        one.fullest,
        bytes_text(most.total()),
        bytes_text(one.bytes),
        bytes_text(most.static_bytes),
        bytes_text(most.saved),
        bytes_text(most.transient),
        bytes_text(held[idx(one.emptiest)].total()));
  }
}

int run_plan_check(const CheckOptions& options, const Common& common) {
  const std::int64_t memory = memory_limit(options.memory_per_rank);
  if (options.model.empty() && (memory > 0 || options.explain)) {
    throw std::invalid_argument(
        std::string(memory > 0 ? "--memory-per-rank" : "--explain") +
        " needs --model, which gives the sizes: give its folder or TOML file");
  }
  const std::optional<FlexspSetting> preset = preset_setting(options, memory);
  const Space* space = space_named(preset && options.space.empty() ? "flexsp" : options.space);
  expect_one_of("--weight-domain", options.domain, {"auto", "world", "node"});
  if (preset && std::string(space->name) == "flexsp" &&
      (options.overlapped || options.domain == "node")) {
    throw std::invalid_argument(
        "--overlap and --weight-domain node need --space full: the space of the FlexSP paper adds "
        "times up and shards weights over all ranks");
  }
  const std::optional<Cluster> cluster = described_cluster(options, memory);
  if (cluster && options.model.empty()) {
    throw std::invalid_argument(
        "--cluster " + options.cluster +
        " needs --model, from whose sizes memory is computed: give its folder or TOML file");
  }
  const Plan plan = read_plan(options.file);
  std::optional<ModelShape> model;
  std::optional<GridShape> grid;
  const std::string dtype = !options.dtype.empty() ? options.dtype
                            : cluster              ? "bfloat16"  // as plan batch takes it
                                                   : "float32";
  CheckContext context{
      .precision = precision_of(dtype_option(dtype)), .training = !options.forward_only};
  if (is_grid_model(options.model)) {
    grid = read_grid_shape(options.model);
    context.grid = &*grid;
  } else if (!options.model.empty() && !preset) {
    model = open_planned(options.model, "--model").shape;
    context.model = &*model;
  }
  if (cluster) {
    context.memory_of_ranks = memory_of_ranks(*cluster);
  } else if (memory > 0 && !preset) {
    context.memory_per_rank = memory;
  }
  const FullSpace of_cluster = full_space(plan, cluster);
  const std::vector<std::string> found =
      all_problems(plan, context, space, of_cluster, preset, options);
  const bool knows_memory = cluster || context.memory_per_rank;
  std::vector<PredictedBytes> held;
  std::vector<DeviceMemory> devices;
  if (found.empty() && knows_memory) {
    held = bytes_of_ranks(
        plan, grid ? grid_model(*grid) : text_model(*model), context.precision, context.training);
    devices = memory_of_devices(held, cluster, memory);
  }
  // a cluster of this many ranks may be another all the same
  const std::string note =
      cluster && !plan.cluster_name.empty() && plan.cluster_name != cluster->name
          ? "the plan says that it is for the cluster '" + plan.cluster_name + "', this is '" +
                cluster->name + "'"
          : "";
  std::vector<ExplainedProgram> programs;
  if (options.explain && found.empty()) {
    programs =
        explained_programs(plan, grid ? grid_model(*grid) : text_model(*model), context.training);
  }
  if (common.json) {
    Json json = {
        {"ok", found.empty()},
        {"problems", found},
        {"hash", hash(plan)},
        {"summary", summary(plan)},
        {"ranks", plan.ranks},
        {"documents", plan.lengths.size()},
        {"micro_batches", plan.micro_batches.size()}};
    if (knows_memory) {
      json["dtype"] = dtype;
    }
    if (!held.empty()) {
      json["memory"] = memory_json(held, devices);
      json["peak_bytes_of_ranks"] = Json::array();
      for (const PredictedBytes& one : held) {
        json["peak_bytes_of_ranks"].push_back(one.total());
      }
    }
    if (!note.empty()) {
      json["note"] = note;
    }
    if (options.explain) {
      json["programs"] = Json::array();
      for (const ExplainedProgram& one : programs) {
        json["programs"].push_back(to_json(one));
      }
    }
    print_json(json);
  } else if (found.empty()) {
    fmt::print("{} {}\n{}\n", verdict("ok", true), hash(plan), summary(plan));
    print_memory(held, devices, dtype);
    if (!note.empty()) {
      fmt::print("note: {}\n", note);
    }
    if (!knows_memory && !preset) {
      fmt::print(
          "not checked: {}\n",
          options.model.empty() ? "the model's sizes (--model) and memory"
                                : "memory (--cluster FILE or --memory-per-rank)");
    }
    if (space != nullptr && std::string(space->name) == "full" && of_cluster.node == 0) {
      fmt::print("not checked: how groups are placed in nodes (--cluster FILE)\n");
    }
    for (const ExplainedProgram& one : programs) {
      const PlanMicroBatch& micro_batch = plan.micro_batches[one.micro_batch];
      fmt::print("\n{}\n{}", where(micro_batch.groups[one.group], one), one.text);
    }
  } else {
    for (const std::string& problem : found) {
      fmt::print("{}: {}\n", options.file, problem);
    }
    fmt::print("{} found\n", counted(std::ssize(found), "problem"));
  }
  return found.empty() ? kOk : kFailed;
}

}  // namespace

void add_plan(CLI::App& app, Common& common) {
  CLI::App& plan = new_commands(app, "plan", "Make plans and check them");
  auto [command, options] = add_command<CheckOptions>(
      plan, common, "check", "Check a plan file and list all its errors", run_plan_check);
  command->add_option("FILE", options->file, "Plan file")->required();
  command->add_option(
      "--model",
      options->model,
      "Model folder or TOML file of the plan; also checks that ranks call equal collectives.  Or a "
      "preset of the FlexSP paper: flexsp-7b, flexsp-13b, flexsp-30b");
  command->add_option(
      "--space",
      options->space,
      "Also check that the plan belongs to this search space: flexsp (the default for a preset) or "
      "full");
  command->add_flag(
      "--overlap",
      options->overlapped,
      "For a preset in --space full: check its seconds as plan batch --overlap computes them");
  command
      ->add_option(
          "--weight-domain",
          options->domain,
          "For a preset in --space full: world or node; auto: the plan's")
      ->capture_default_str();
  command->add_option(
      "--cluster",
      options->cluster,
      "Cluster file (configs/clusters/): check the plan against its nodes and the memory of its "
      "devices; needs --model.  For a preset: a100-40gb-8x8");
  command
      ->add_option(
          "--ranks",
          options->ranks,
          "With --cluster FILE: use this many of its ranks, as in plan batch --ranks.  For a "
          "preset: number of ranks (default: 64)")
      ->transform(whole_numbers(1));
  command
      ->add_option(
          "--context",
          options->context,
          "For a preset: tokens of the longest document (default: 192000)")
      ->transform(whole_numbers(1));
  command->add_option(
      "--memory-per-rank",
      options->memory_per_rank,
      "Check that a step fits this memory, as in 512MiB; needs --model.  With --cluster: replaces "
      "the memory of its devices.  For a preset: default 30GiB");
  command->add_option(
      "--dtype",
      options->dtype,
      "Data type assumed for memory: float32, float64, bfloat16 or float16 (default: float32; with "
      "--cluster bfloat16, as in plan batch)");
  command->add_flag(
      "--forward-only",
      options->forward_only,
      "Check memory for evaluation: no backward pass, only weights are kept");
  command->add_flag(
      "--explain", options->explain, "Print the ops of each part on each group; needs --model");
  add_plan_layers(plan, common);
  add_plan_batch(plan, common);
  add_plan_layout(plan, common);
}

}  // namespace paradyse::cli
