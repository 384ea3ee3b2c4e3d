// paradyse-lab flexsp plan: batches on the cluster of the FlexSP publication, from its
// coefficients.
#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lab/cli/commands.h"
#include "lab/flexsp/presets.h"
#include "src/cli/planned_batch.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/base/text_match.h"

namespace paradyse::cli {
namespace {

struct FlexspPlanOptions {
  std::string model;
  BatchOptions batch;
};

FlexspSetting setting_of(const BatchOptions& options, const FlexspModel& model) {
  FlexspSetting setting{.model = &model, .context = options.context};
  if (options.ranks > 0) {
    setting.ranks = options.ranks;
  }
  if (const std::int64_t memory = memory_of(options); memory > 0) {
    setting.memory_mb = static_cast<double>(memory) / (1024 * 1024);
  }
  return setting;
}

// Spaces to choose from: a weight domain each.
std::vector<GroupSpace> preset_spaces(
    const BatchOptions& options,
    const FlexspSetting& setting,
    const std::vector<std::int64_t>& lengths) {
  expect_of_space(options.space, options.overlapped, options.domain);
  if (options.space == "flexsp") {
    return {flexsp_space(setting, lengths)};
  }
  std::vector<GroupSpace> spaces;
  for (const bool node_domain : {false, true}) {
    const bool one_node = setting.ranks <= kFlexspNode && options.domain == "auto";
    if (options.domain != (node_domain ? "world" : "node") && !(node_domain && one_node)) {
      try {
        spaces.push_back(flexsp_full_space(
            setting, {.overlapped = options.overlapped, .node_domain = node_domain}, lengths));
      } catch (const std::invalid_argument&) {
        if (options.domain != "auto" || !node_domain) {
          throw;  // else states leave no memory in a node: the world is all there is
        }
      }
    }
  }
  return spaces;
}

std::string remedy(
    const BatchOptions& options, const FlexspSetting& setting, std::int64_t longest) {
  const auto takes = [&](const FlexspSetting& other) {
    try {
      const std::vector<GroupSpace> spaces = preset_spaces(options, other, {longest});
      return std::ranges::any_of(
          spaces, [](const GroupSpace& space) { return too_long(space.task).empty(); });
    } catch (const std::invalid_argument&) {
      return false;  // states leave no memory
    }
  };
  // whole nodes where weights are cut over each
  const int step = options.domain == "node" ? kFlexspNode : 1;
  const std::int64_t steps = least(1, kMostPlannedRanks / step, [&](std::int64_t number) {
    FlexspSetting other = setting;
    other.ranks = static_cast<int>(number) * step;
    return takes(other);
  });
  const std::int64_t memory_mb = least(1, std::int64_t{1} << 30, [&](std::int64_t megabytes) {
    FlexspSetting other = setting;
    other.memory_mb = static_cast<double>(megabytes);
    return takes(other);
  });
  return what_would_fit(steps * step, static_cast<double>(memory_mb));
}

int run_flexsp_plan(const FlexspPlanOptions& options, const Common& common) {
  const FlexspModel& model = known_flexsp_model(options.model);
  return planned_batch(
      options.batch, common, [&](const std::vector<std::int64_t>& lengths) -> BatchQuestion {
        const FlexspSetting setting = setting_of(options.batch, model);
        const std::int64_t longest = std::ranges::max(lengths);
        return {
            .spaces = preset_spaces(options.batch, setting, lengths),
            .what_would_do =
                [&options, setting, longest] { return remedy(options.batch, setting, longest); },
            .simulated_seconds = {}};
      });
}

}  // namespace

const FlexspModel& known_flexsp_model(const std::string& name) {
  if (const FlexspModel* const model = flexsp_model(name)) {
    return *model;
  }
  std::vector<std::string> names;
  for (const FlexspModel& one : flexsp_models()) {
    names.emplace_back(one.name);
  }
  throw std::invalid_argument(fmt::format(
      "--model {}: there is no such preset{}; presets are {}",
      name,
      did_you_mean(name, names),
      fmt::join(names, ", ")));
}

void add_flexsp_plan(CLI::App& flexsp, Common& common) {
  auto [command, options] = add_command<FlexspPlanOptions>(
      flexsp,
      common,
      "plan",
      "Plan a batch on the publication's cluster, 64 x A100-40GB, eight a node",
      run_flexsp_plan);
  command
      ->add_option(
          "--model",
          options->model,
          "flexsp-7b, flexsp-13b or flexsp-30b, with as many positions as --context")
      ->required();
  add_batch_options(*command, options->batch);
  command
      ->add_option(
          "--solver-seconds",
          options->batch.how.solver_seconds,
          "With --planner flexsp-milp: time limit of the MILP of a micro-batch")
      ->check(seconds())
      ->capture_default_str();
}

}  // namespace paradyse::cli
