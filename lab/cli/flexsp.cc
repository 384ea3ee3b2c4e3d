// paradyse-lab flexsp check: does a plan belong to the FlexSP publication's space of plans, or to
// ours that extends it, and does it take the seconds that it says.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lab/cli/commands.h"
#include "lab/flexsp/space_check.h"
#include "paradyse/plan/cluster.h"
#include "src/cli/inputs.h"
#include "src/cli/planned_batch.h"
#include "src/plan/base/number_text.h"

namespace paradyse::cli {
namespace {

struct FlexspCheckOptions {
  std::string file;
  std::string model;  // a preset; "": the plan is for another model
  std::string space = "flexsp";
  std::string cluster;
  std::optional<int> ranks;
  std::optional<std::int64_t> context;
  std::string memory;
  bool overlapped = false;
  std::string domain = "auto";
};

// What is said of the preset; none: the plan is for another model.
std::optional<FlexspSetting> setting_of(const FlexspCheckOptions& options) {
  if (options.model.empty()) {
    for (const auto& [flag, given] :
         {std::pair{"--ranks", options.ranks.has_value() && options.cluster.empty()},
          {"--context", options.context.has_value()},
          {"--memory", !options.memory.empty()},
          {"--overlap", options.overlapped},
          {"--weight-domain", options.domain != "auto"}}) {
      if (given) {
        throw std::invalid_argument(
            std::string(flag) + " needs a preset: --model flexsp-7b, flexsp-13b or flexsp-30b");
      }
    }
    return std::nullopt;
  }
  FlexspSetting setting{.model = &known_flexsp_model(options.model)};
  if (!options.cluster.empty()) {
    throw std::invalid_argument(
        "--cluster " + options.cluster + ": " + options.model + " was measured only on " +
        kFlexspCluster + "; leave it out, with --ranks for another number of ranks");
  }
  setting.ranks = options.ranks.value_or(setting.ranks);
  setting.context = options.context.value_or(setting.context);
  if (const std::int64_t memory = memory_limit(options.memory); memory > 0) {
    setting.memory_mb = static_cast<double>(memory) / (1024 * 1024);
  }
  return setting;
}

// Ranks of a node of the cluster file; of a plan for another cluster than the presets' that is not
// described, 0: nothing that speaks of nodes is asked.
FullSpace full_space(const FlexspCheckOptions& options, const Plan& plan) {
  if (options.cluster.empty()) {
    return plan.cluster_name == kFlexspCluster ? FullSpace{} : FullSpace{.node = 0, .light = true};
  }
  const Cluster cluster = cluster_with(options.cluster, options.ranks.value_or(0), 0);
  return {.node = std::min(cluster.ranks_per_node, cluster.ranks()), .light = true};
}

int run_flexsp_check(const FlexspCheckOptions& options, const Common& common) {
  const bool full = options.space == "full";
  expect_of_space(options.space, options.overlapped, options.domain);
  const std::optional<FlexspSetting> setting = setting_of(options);
  const Plan plan = read_plan(options.file);
  const FullSpace space = full_space(options, plan);
  std::vector<std::string> found = problems(plan);
  const auto add = [&](const std::vector<std::string>& more) {
    found.insert(found.end(), more.begin(), more.end());
  };
  add(full ? flexsp_full_space_problems(plan, space) : flexsp_space_problems(plan));
  if (setting) {
    const bool node =
        options.domain == "node" || (options.domain == "auto" && plan.weight_domain < plan.ranks);
    add(full ? flexsp_full_preset_problems(
                   plan,
                   *setting,
                   {.overlapped = options.overlapped || plan.messages.overlap, .node_domain = node})
             : flexsp_preset_problems(plan, *setting));
  }
  if (common.json) {
    print_json({{"ok", found.empty()}, {"problems", found}, {"hash", hash(plan)}});
    return found.empty() ? kOk : kFailed;
  }
  for (const std::string& problem : found) {
    fmt::print("{}: {}\n", options.file, problem);
  }
  if (found.empty()) {
    fmt::print("{} {}\n", verdict("ok", true), hash(plan));
    if (full && space.node == 0) {
      fmt::print("not checked: how groups are placed in nodes (--cluster FILE)\n");
    }
  } else {
    fmt::print("{} found\n", counted(std::ssize(found), "problem"));
  }
  return found.empty() ? kOk : kFailed;
}

}  // namespace

void add_flexsp(CLI::App& app, Common& common) {
  CLI::App& flexsp = new_commands(
      app, "flexsp", "The FlexSP publication's models and cluster, from its coefficients");
  add_flexsp_plan(flexsp, common);
  auto [command, options] = add_command<FlexspCheckOptions>(
      flexsp,
      common,
      "check",
      "Check that a plan belongs to a search space, and the seconds of a preset's plan",
      run_flexsp_check);
  command->add_option("FILE", options->file, "Plan file")->required();
  command->add_option(
      "--model",
      options->model,
      "The plan is for this preset: flexsp-7b, flexsp-13b or flexsp-30b");
  command
      ->add_option(
          "--space", options->space, "flexsp: that of the paper; full: plan batch's largest")
      ->capture_default_str();
  command->add_option(
      "--cluster",
      options->cluster,
      "With --space full, without --model: cluster file of the plan");
  command
      ->add_option(
          "--ranks",
          options->ranks,
          "Number of ranks instead of the cluster's or the preset's (64)")
      ->transform(whole_numbers(1));
  command
      ->add_option(
          "--context", options->context, "Tokens of the longest document (default: 192000)")
      ->transform(whole_numbers(1));
  command->add_option("--memory", options->memory, "Memory of a rank (default: 30GiB)");
  command->add_flag(
      "--overlap",
      options->overlapped,
      "With --space full: check seconds as flexsp plan --overlap computes them");
  command
      ->add_option(
          "--weight-domain",
          options->domain,
          "With --space full: ranks that shard the weights, world or node; auto: the plan's")
      ->capture_default_str();
}

}  // namespace paradyse::cli
