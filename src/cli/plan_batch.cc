// paradyse plan batch: which document goes into which group of which micro-batch, on a cluster that
// is described by a file or a preset.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/cluster.h"
#include "paradyse/run/accountant.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/plan/base/lengths_file.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/text_match.h"
#include "src/plan/published/flexsp.h"
#include "src/plan/search/grouping/batch.h"
#include "src/plan/simulate/cluster_space.h"

namespace paradyse::cli {
namespace {

struct PlanBatchOptions {
  std::string model;
  std::string cluster;
  std::string lengths;
  std::int64_t context = 192'000;
  std::string space = "flexsp";
  std::int64_t batch = 512;
  std::string planner = "fast";
  bool exact = false;
  int ranks = 0;
  std::string memory;
  double reserve = 0.05;
  bool overlapped = false;
  std::string domain = "auto";
  std::string dtype = "bfloat16";
  std::string out;
  bool explain = false;
  GroupingOptions how;
};

// The documents of the batch, in the order of the file.
struct Batch {
  std::vector<std::int64_t> lengths;
  std::int64_t dropped = 0;  // longer than the context, before the batch was full
};

Batch batch_of(const PlanBatchOptions& options) {
  Batch batch;
  for (const std::int64_t n : read_lengths(options.lengths)) {
    if (std::ssize(batch.lengths) == options.batch) {
      break;
    }
    if (n > options.context) {
      ++batch.dropped;
    } else {
      batch.lengths.push_back(n);
    }
  }
  if (batch.lengths.empty()) {
    throw std::invalid_argument(fmt::format(
        "{}: all {} documents are longer than the context of {} tokens; give a larger --context",
        options.lengths,
        batch.dropped,
        options.context));
  }
  return batch;
}

std::int64_t memory_of(const PlanBatchOptions& options) {
  if (options.memory.empty()) {
    return 0;
  }
  std::int64_t bytes = 0;
  try {
    bytes = parse_bytes(options.memory);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("--memory: ") + error.what());
  }
  if (bytes < 1) {
    throw std::invalid_argument("--memory " + options.memory + ": must be at least one byte");
  }
  return bytes;
}

FlexspSetting setting_of(const PlanBatchOptions& options, const FlexspModel& model) {
  FlexspSetting setting{.model = &model, .context = options.context};
  if (options.ranks > 0) {
    setting.ranks = options.ranks;
  }
  if (const std::int64_t memory = memory_of(options); memory > 0) {
    setting.memory_mb = static_cast<double>(memory) / (1024 * 1024);
  }
  return setting;
}

// Refuses what is called like a preset and is neither that nor a file.
void expect_model(const std::string& model) {
  if (flexsp_model(model) == nullptr && model.starts_with("flexsp") &&
      !std::filesystem::exists(model)) {
    std::vector<std::string> names;
    for (const FlexspModel& one : flexsp_models()) {
      names.emplace_back(one.name);
    }
    throw std::invalid_argument(fmt::format(
        "--model {}: there is no such file and no such preset{}; presets are {}",
        model,
        did_you_mean(model, names),
        fmt::join(names, ", ")));
  }
}

void expect_of_space(const PlanBatchOptions& options) {
  if (options.space == "flexsp" && (options.overlapped || options.domain == "node")) {
    throw std::invalid_argument(
        "--overlap and --weight-domain node need --space full: the space of the FlexSP paper adds "
        "times up and shards weights over all ranks");
  }
}

// Spaces to choose from: a weight domain each.
std::vector<GroupSpace> preset_spaces(
    const PlanBatchOptions& options,
    const FlexspSetting& setting,
    const std::vector<std::int64_t>& lengths) {
  if (!options.cluster.empty() && options.cluster != kFlexspCluster) {
    throw std::invalid_argument(
        "--cluster " + options.cluster + ": " + options.model + " was measured only on " +
        kFlexspCluster + "; give that one, with --ranks for another number of ranks");
  }
  expect_of_space(options);
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

// A model on a described cluster.
struct Described {
  ModelShape model;
  Cluster cluster;
  ClusterSpaceOptions how;
  int node = 1;  // ranks of one
};

Described described(const PlanBatchOptions& options) {
  if (options.cluster.empty()) {
    throw std::invalid_argument(
        "plan batch: --model " + options.model +
        " takes --cluster FILE (configs/clusters/); presets are flexsp-7b, flexsp-13b, flexsp-30b "
        "on " +
        kFlexspCluster);
  }
  if (options.cluster == kFlexspCluster) {
    throw std::invalid_argument(
        "--cluster a100-40gb-8x8 works only with the presets flexsp-7b, flexsp-13b and flexsp-30b; "
        "for another model give a file such as configs/clusters/64xA100-40GB.toml");
  }
  const ModelShape model = without_dropout(open_planned(options.model, "--model").shape);
  expect_of_space(options);
  Cluster cluster = cluster_with(options.cluster, options.ranks, memory_of(options));
  ClusterSpaceOptions how{
      .flexsp = options.space == "flexsp",
      .overlapped = options.overlapped,
      .weight_domain = 0,
      .reserve = options.reserve,
      .simulation = {
          .precision =
              precision_of(dtype_option(options.dtype, {"bfloat16", "float16", "float32"}))}};
  const int node = std::min(cluster.ranks_per_node, cluster.ranks());
  if (options.domain == "node") {
    how.weight_domain = node;
  }
  return {.model = model, .cluster = std::move(cluster), .how = how, .node = node};
}

std::vector<GroupSpace> cluster_spaces(
    const PlanBatchOptions& options,
    const Described& given,
    const std::vector<std::int64_t>& lengths) {
  std::vector<GroupSpace> spaces = {cluster_space(given.model, given.cluster, given.how, lengths)};
  if (options.domain == "auto" && options.space == "full" && given.node < given.cluster.ranks() &&
      given.cluster.ranks() % given.node == 0) {
    ClusterSpaceOptions how = given.how;
    how.weight_domain = given.node;
    try {
      spaces.push_back(cluster_space(given.model, given.cluster, how, lengths));
    } catch (const std::invalid_argument&) {
      return spaces;  // states leave no memory in a node: the world is all there is
    }
  }
  return spaces;
}

// --- what would take the longest document --------------------------------------------------------

constexpr int kMostOfPreset = 1 << 16;
constexpr int kMostOfCluster = 512;  // of a weight domain that is simulated

// The least number from `low` to `high` that will do, of which all above do too; none does: 0.
std::int64_t least(
    std::int64_t low, std::int64_t high, const std::function<bool(std::int64_t)>& does) {
  if (!does(high)) {
    return 0;
  }
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (does(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

std::string remedy(std::int64_t ranks, double memory_mb) {
  const std::string memory =
      fmt::format("--memory {}GiB", fmt::format("{:.1f}", std::ceil(memory_mb / 102.4) / 10));
  return ranks > 0
             ? fmt::format(
                   "; it would fit with {} ranks (--ranks {}), or with {}", ranks, ranks, memory)
             : fmt::format("; it would fit with {}", memory);
}

std::string remedy(
    const PlanBatchOptions& options, const FlexspSetting& setting, std::int64_t longest) {
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
  const std::int64_t steps = least(1, kMostOfPreset / step, [&](std::int64_t number) {
    FlexspSetting other = setting;
    other.ranks = static_cast<int>(number) * step;
    return takes(other);
  });
  const std::int64_t memory_mb = least(1, std::int64_t{1} << 30, [&](std::int64_t megabytes) {
    FlexspSetting other = setting;
    other.memory_mb = static_cast<double>(megabytes);
    return takes(other);
  });
  return remedy(steps * step, static_cast<double>(memory_mb));
}

std::string remedy(const Described& given, std::int64_t longest) {
  std::int64_t memory = std::numeric_limits<std::int64_t>::max();
  for (const DeviceClass& device : given.cluster.devices) {
    memory = std::min(memory, device.memory_bytes);
  }
  const auto takes = [&](std::int64_t nodes) {
    Cluster other = given.cluster;
    set_ranks(other, static_cast<int>(nodes) * given.node);
    return memory_for(given.model, other, given.how, longest) <= memory;
  };
  // more nodes do not help where a document stays in one
  const bool grows = given.how.weight_domain == 0 && given.cluster.uniform();
  std::int64_t nodes = 0;
  std::int64_t more = given.cluster.ranks() / given.node;
  while (grows && nodes == 0 && 2 * more * given.node <= kMostOfCluster) {
    nodes = least(more + 1, 2 * more, takes);
    more *= 2;
  }
  const std::int64_t needed = memory_for(given.model, given.cluster, given.how, longest);
  const double memory_mb = static_cast<double>(needed) / (1024 * 1024);
  return remedy(nodes * given.node, memory_mb);
}

int run_plan_batch(const PlanBatchOptions& options, const Common& common) {
  expect_one_of("--space", options.space, {"flexsp", "full"});
  expect_one_of("--weight-domain", options.domain, {"auto", "world", "node"});
  const GroupingPlannerRow& planner = grouping_planner(options.exact ? "exact" : options.planner);
  const FlexspModel* preset = flexsp_model(options.model);
  expect_model(options.model);
  const Batch batch = batch_of(options);
  const auto begin = std::chrono::steady_clock::now();
  const std::int64_t longest = std::ranges::max(batch.lengths);
  std::vector<GroupSpace> spaces;
  std::function<std::string()> what_would_do;
  std::function<double(const Plan& plan)> simulated_seconds;  // none: a preset is no model
  if (preset != nullptr) {
    const FlexspSetting setting = setting_of(options, *preset);
    spaces = preset_spaces(options, setting, batch.lengths);
    what_would_do = [&options, setting, longest] { return remedy(options, setting, longest); };
  } else {
    const Described given = described(options);
    spaces = cluster_spaces(options, given, batch.lengths);
    what_would_do = [given, longest] { return remedy(given, longest); };
    simulated_seconds = [given](const Plan& plan) {
      return plan.weight_domain > kMostOfCluster
                 ? 0
                 : simulate(plan, given.model, given.cluster, given.how.simulation).seconds;
    };
  }
  std::optional<Waiting> waiting(std::in_place, "planning", common.json);
  PlannedBatch planned = plan_batch(spaces, planner, options.how);
  if (!planned.plan) {
    const bool fits = std::ranges::any_of(
        spaces, [](const GroupSpace& space) { return too_long(space.task).empty(); });
    throw std::invalid_argument("no plan: " + planned.why_not + (fits ? "" : what_would_do()));
  }
  // All that came between lengths and plan, what groups cost included.
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  planned.plan->planner_seconds = seconds;
  if (!options.out.empty()) {
    write_plan(options.out, *planned.plan);
  }
  // what the planner adds up, played with what waits and what travels beside work
  const double simulated = simulated_seconds ? simulated_seconds(*planned.plan) : 0;
  waiting.reset();
  const std::string played = simulated > 0
                                 ? fmt::format(
                                       "simulated {:.6g} s,\nwhich includes waiting and overlapped "
                                       "communication (docs/internals/simulate.md)",
                                       simulated)
                                 : "";
  const GroupSpace& space = spaces[planned.space];
  const std::size_t micro_batches = planned.plan->micro_batches.size();
  if (common.json) {
    Json json = {
        {"planner", planner.name},
        {"space", space.name},
        {"ranks", planned.plan->ranks},
        {"weight_domain", planned.plan->weight_domain},
        {"documents", batch.lengths.size()},
        {"dropped", batch.dropped},
        {"seconds", planned.seconds},
        {"simulated_seconds", simulated > 0 ? Json(simulated) : Json(nullptr)},
        {"lower_bound_seconds", planned.plan->predicted.lower_bound_seconds.value_or(0)},
        {"bound", planned.bound.name},
        {"gap", planned.gap()},
        {"area_bound_seconds", area_bound(space.task).seconds + space.batch_seconds},
        {"optimal", planned.optimal},
        {"planner_seconds", seconds},
        {"search_seconds", planned.search_seconds},
        {"micro_batches", micro_batches},
        {"hash", hash(*planned.plan)}};
    if (options.explain) {
      json["explanation"] = explained(space, planned.grouping);
    }
    print_json(json);
    return kOk;
  }
  fmt::print(
      "{:.6g} s for {} ({} dropped: longer than {}) on {},\nsharding group {}, in {}: predicted, "
      "without overlap{}\nlower bound {:.6g} s ({}): gap {}{}; {} took {:.1f} ms\n",
      planned.seconds,
      counted(std::ssize(batch.lengths), "document"),
      batch.dropped,
      options.context,
      counted(planned.plan->ranks, "rank"),
      planned.plan->weight_domain,
      counted(std::ssize(planned.plan->micro_batches), "micro-batch"),
      played.empty() ? "" : "; " + played,
      planned.bound.seconds,
      planned.bound.name,
      percent_text(planned.gap(), 2),
      planned.optimal ? ", optimal" : "",
      planner.name,
      1000 * seconds);
  if (options.explain) {
    fmt::print("{}", explained(space, planned.grouping));
  }
  return kOk;
}

}  // namespace

void add_plan_batch(CLI::App& plan, Common& common) {
  auto [command, options] = add_command<PlanBatchOptions>(
      plan,
      common,
      "batch",
      "Plan a batch on a described cluster, in groups of different sizes",
      run_plan_batch);
  command
      ->add_option(
          "--model",
          options->model,
          "Model folder or TOML file; or a preset: flexsp-7b, flexsp-13b, flexsp-30b")
      ->required();
  command->add_option(
      "--cluster",
      options->cluster,
      "Cluster file (configs/clusters/); for a preset: a100-40gb-8x8 (default)");
  command
      ->add_option("--lengths", options->lengths, "File with one document length (tokens) a line")
      ->required();
  command
      ->add_option(
          "--context",
          options->context,
          "Longest document in tokens; longer ones are dropped.  For a preset: its number of "
          "positions")
      ->transform(whole_numbers(1))
      ->capture_default_str();
  command
      ->add_option(
          "--batch", options->batch, "Number of documents: the first ones that are not dropped")
      ->transform(whole_numbers(1))
      ->capture_default_str();
  command
      ->add_option(
          "--space",
          options->space,
          "Search space.  flexsp: that of the FlexSP paper, Ulysses on 1, 2, 4, ... ranks; full: "
          "groups of any size, any attention strategy and recompute level")
      ->capture_default_str();
  std::string names;
  for (const GroupingPlannerRow& row : grouping_planners()) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : "; ", row.name, row.summary);
  }
  command->add_option("--planner", options->planner, names)->capture_default_str();
  command->add_flag(
      "--exact", options->exact, "Find the optimum of a small batch; short for --planner exact");
  command
      ->add_option(
          "--ranks",
          options->ranks,
          "Number of ranks instead of the cluster's; for a preset (default: 64)")
      ->transform(whole_numbers(1, kMostOfPreset));
  command->add_option(
      "--memory",
      options->memory,
      "Memory of a rank, as in 40GiB, instead of the cluster's or the preset's");
  command
      ->add_option(
          "--reserve", options->reserve, "Share of a device's memory left free; not for presets")
      ->check(numbers(0, 0.9))
      ->capture_default_str();
  command->add_flag(
      "--overlap",
      options->overlapped,
      "With --space full: weight gathers and rings overlap with computation");
  command
      ->add_option(
          "--weight-domain",
          options->domain,
          "With --space full: ranks that shard the weights together, world or node; auto: the "
          "faster one")
      ->capture_default_str();
  command
      ->add_option(
          "--dtype", options->dtype, "Data type of the model's operations; not for presets")
      ->capture_default_str();
  command->add_option("--seed", options->how.seed, "Random seed of the planner")
      ->transform(whole_numbers(0))
      ->capture_default_str();
  command
      ->add_option(
          "--moves",
          options->how.moves,
          "With --planner fast: search budget, as a multiple of the default")
      ->check(numbers(0, 1000))
      ->capture_default_str();
  command
      ->add_option(
          "--threads",
          options->how.threads,
          "With --planner fast: number of threads; the plan does not depend on it")
      ->transform(whole_numbers(1, 1024))
      ->capture_default_str();
  command
      ->add_option(
          "--solver-seconds",
          options->how.solver_seconds,
          "With --planner flexsp-milp: time limit of the MILP of a micro-batch")
      ->check(seconds())
      ->capture_default_str();
  command->add_option("--out", options->out, "Write the plan file")->check(writable_file());
  command->add_flag("--explain", options->explain, "Explain what limits the plan's time");
}

}  // namespace paradyse::cli
