// paradyse plan check: is this plan sound, does it fit, and what does each part do.
#include "paradyse/plan/plan.h"

#include <cstdio>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/grid_models.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
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
  std::string dtype = "float32";
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

// "4 ranks (weight domain 4), 3 documents of 71 tokens, 2 micro-batches, 5 groups".
std::string summary(const Plan& plan) {
  std::int64_t tokens = 0;
  for (const std::int64_t length : plan.lengths) {
    tokens += length;
  }
  std::size_t groups = 0;
  for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
    groups += micro_batch.groups.size();
  }
  return fmt::format(
      "model {} of {} layers; {} ranks, weight domain {}; {} documents of {} tokens; {} programs, "
      "{} micro-batches, {} groups",
      plan.model_name,
      plan.layers,
      plan.ranks,
      plan.weight_domain,
      plan.lengths.size(),
      tokens,
      plan.programs.size(),
      plan.micro_batches.size(),
      groups);
}

// What a space of plans asks beside the plan's own rules.
struct Space {
  const char* name = "";
  std::vector<std::string> (*problems)(const Plan& plan) = nullptr;
  // Of a preset that is no model; null: the space has none.
  std::vector<std::string> (*preset_problems)(
      const Plan& plan, const FlexspSetting& setting, const FlexspFull& options) = nullptr;
};
constexpr Space kSpaces[] = {
    {.name = "flexsp",
     .problems = flexsp_space_problems,
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
         {std::pair{"--cluster", !options.cluster.empty()},
          {"--ranks", options.ranks.has_value()},
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
        "--cluster " + options.cluster + ": " + options.model + " was measured on " +
        kFlexspCluster + " alone; give that, with --ranks for another number of them");
  }
  if (options.explain) {
    throw std::invalid_argument(
        "--explain: " + options.model + " is coefficients, no model: it has no ops to show");
  }
  setting.ranks = options.ranks.value_or(setting.ranks);
  setting.context = options.context.value_or(setting.context);
  if (memory > 0) {
    setting.memory_mb = static_cast<double>(memory) / (1024 * 1024);
  }
  return setting;
}

// All that is wrong, with the model's sizes, a preset's or neither.
std::vector<std::string> all_problems(
    const Plan& plan,
    const CheckContext& context,
    const Space* space,
    const std::optional<FlexspSetting>& preset,
    const CheckOptions& options) {
  std::vector<std::string> found = problems(plan, context);
  const auto add = [&](const std::vector<std::string>& more) {
    found.insert(found.end(), more.begin(), more.end());
  };
  if (space != nullptr) {
    add(space->problems(plan));
  }
  if (preset) {
    const bool node =
        options.domain == "node" || (options.domain == "auto" && plan.weight_domain < plan.ranks);
    add(space->preset_problems(
        plan, *preset, {.overlapped = options.overlapped, .node_domain = node}));
  }
  return found;
}

int run_plan_check(const CheckOptions& options, const Common& common) {
  const std::int64_t memory = memory_limit(options.memory_per_rank);
  if (options.model.empty() && (memory > 0 || options.explain)) {
    throw std::invalid_argument(
        std::string(memory > 0 ? "--memory-per-rank" : "--explain") +
        " needs --model: sizes are the model's; give its folder or TOML file");
  }
  const std::optional<FlexspSetting> preset = preset_setting(options, memory);
  const Space* space = space_named(preset && options.space.empty() ? "flexsp" : options.space);
  expect_one_of("--weight-domain", options.domain, {"auto", "world", "node"});
  if (preset && std::string(space->name) == "flexsp" &&
      (options.overlapped || options.domain == "node")) {
    throw std::invalid_argument(
        "--overlap and --weight-domain node are of --space full: the published space adds times up "
        "and cuts weights over all ranks");
  }
  const Plan plan = read_plan(options.file);
  std::optional<ModelShape> model;
  std::optional<GridShape> grid;
  CheckContext context{
      .precision = precision_of(dtype_option(options.dtype)), .training = !options.forward_only};
  if (is_grid_model(options.model)) {
    grid = read_grid_shape(options.model);
    context.grid = &*grid;
  } else if (!options.model.empty() && !preset) {
    model = reading([&] { return open_model(options.model); }).shape;
    context.model = &*model;
  }
  if (memory > 0 && !preset) {
    context.memory_per_rank = memory;
  }
  const std::vector<std::string> found = all_problems(plan, context, space, preset, options);
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
    if (options.explain) {
      json["programs"] = Json::array();
      for (const ExplainedProgram& one : programs) {
        json["programs"].push_back(to_json(one));
      }
    }
    print_json(json);
  } else if (found.empty()) {
    fmt::print("ok {}\n{}\n", hash(plan), summary(plan));
    if (memory == 0 && !preset) {
      fmt::print(
          "not checked: {}\n",
          options.model.empty() ? "the model's sizes (--model) and memory"
                                : "memory (--memory-per-rank)");
    }
    for (const ExplainedProgram& one : programs) {
      const PlanMicroBatch& micro_batch = plan.micro_batches[one.micro_batch];
      fmt::print("\n{}\n{}", where(micro_batch.groups[one.group], one), one.text);
    }
  } else {
    for (const std::string& problem : found) {
      fmt::print("{}: {}\n", options.file, problem);
    }
    fmt::print("{} problem{} found\n", found.size(), found.size() == 1 ? "" : "s");
  }
  return found.empty() ? kOk : kFailed;
}

}  // namespace

void add_plan(CLI::App& app, Common& common) {
  CLI::App* plan = app.add_subcommand("plan", "Make and check plans");
  plan->require_subcommand(1);
  auto [command, options] = add_command<CheckOptions>(
      *plan, common, "check", "Say everything that is wrong with a plan file", run_plan_check);
  command->add_option("FILE", options->file, "Plan file")->required();
  command->add_option(
      "--model",
      options->model,
      "Model folder or TOML file that the plan is for; proves equal collectives too.  Or a preset "
      "of "
      "the FlexSP publication: flexsp-7b, flexsp-13b, flexsp-30b");
  command->add_option(
      "--space",
      options->space,
      "Also check that the plan is of this space: flexsp (the default for a preset) or full");
  command->add_flag(
      "--overlap",
      options->overlapped,
      "Of a preset in --space full: its seconds are those of plan batch --overlap");
  command
      ->add_option(
          "--weight-domain",
          options->domain,
          "Of a preset in --space full: world or node; auto takes the plan's")
      ->capture_default_str();
  command->add_option("--cluster", options->cluster, "Of a preset: a100-40gb-8x8");
  command->add_option("--ranks", options->ranks, "Of a preset (default: 64)")
      ->check(whole_numbers(1));
  command
      ->add_option(
          "--context",
          options->context,
          "Of a preset: tokens of the longest document (default: 192000)")
      ->check(whole_numbers(1));
  command->add_option(
      "--memory-per-rank",
      options->memory_per_rank,
      "Check that a step fits, as in 512MiB; needs --model.  Of a preset: its memory (default: "
      "30GiB)");
  command
      ->add_option("--dtype", options->dtype, "Of that step: float32, float64, bfloat16 or float16")
      ->capture_default_str();
  command->add_flag(
      "--forward-only",
      options->forward_only,
      "That step is of evaluation: no backward pass, weights alone stay");
  command->add_flag(
      "--explain", options->explain, "Print the ops of each part on each group; needs --model");
  add_plan_layers(*plan, common);
  add_plan_batch(*plan, common);
  add_plan_layout(*plan, common);
}

}  // namespace paradyse::cli
