// paradyse plan batch: which document goes into which group of which micro-batch, on a cluster that
// is described by a file or a preset.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>

#include <fmt/format.h>

#include "paradyse/plan/cluster.h"
#include "paradyse/run/accountant.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/plan/base/lengths_file.h"
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
    throw std::invalid_argument("--memory " + options.memory + ": at least one byte is needed");
  }
  return bytes;
}

// Spaces to choose from: a weight domain each.
std::vector<GroupSpace> preset_spaces(
    const PlanBatchOptions& options, FlexspSetting setting, const Batch& batch) {
  if (!options.cluster.empty() && options.cluster != kFlexspCluster) {
    throw std::invalid_argument(
        "--cluster " + options.cluster + ": " + options.model + " was measured on " +
        kFlexspCluster + " alone; give that, with --ranks for another number of them");
  }
  if (options.ranks > 0) {
    setting.ranks = options.ranks;
  }
  setting.context = options.context;
  if (const std::int64_t memory = memory_of(options); memory > 0) {
    setting.memory_mb = static_cast<double>(memory) / (1024 * 1024);
  }
  if (options.space == "flexsp") {
    if (options.overlapped || options.domain == "node") {
      throw std::invalid_argument(
          "--overlap and --weight-domain node are of --space full: the published space adds times "
          "up and cuts weights over all ranks");
    }
    return {flexsp_space(setting, batch.lengths)};
  }
  std::vector<GroupSpace> spaces;
  for (const bool node_domain : {false, true}) {
    const bool one_node = setting.ranks <= kFlexspNode && options.domain == "auto";
    if (options.domain != (node_domain ? "world" : "node") && !(node_domain && one_node)) {
      try {
        spaces.push_back(flexsp_full_space(
            setting,
            {.overlapped = options.overlapped, .node_domain = node_domain},
            batch.lengths));
      } catch (const std::invalid_argument&) {
        if (options.domain != "auto" || !node_domain) {
          throw;  // else states leave no memory in a node: the world is all there is
        }
      }
    }
  }
  return spaces;
}

std::vector<GroupSpace> cluster_spaces(const PlanBatchOptions& options, const Batch& batch) {
  if (options.cluster.empty()) {
    throw std::invalid_argument(
        "plan batch: --model " + options.model +
        " takes --cluster FILE (configs/clusters/); presets are flexsp-7b, flexsp-13b, flexsp-30b "
        "on " +
        kFlexspCluster);
  }
  if (options.cluster == kFlexspCluster) {
    throw std::invalid_argument(
        "--cluster a100-40gb-8x8 has bandwidths for the presets flexsp-7b, flexsp-13b and "
        "flexsp-30b alone; for another model give a file, as configs/clusters/64xA100-40GB.toml");
  }
  const ModelShape model =
      without_dropout(reading([&] { return open_model(options.model); }, "--model").shape);
  Cluster cluster = read_cluster(options.cluster);
  if (options.ranks > 0) {
    if (!cluster.uniform() ||
        (options.ranks > cluster.ranks_per_node && options.ranks % cluster.ranks_per_node != 0)) {
      throw std::invalid_argument(fmt::format(
          "--ranks {}: {} has {} ranks a node{}; give whole nodes of one kind of device",
          options.ranks,
          options.cluster,
          cluster.ranks_per_node,
          cluster.uniform() ? "" : " of several kinds"));
    }
    cluster.devices.resize(1);
    cluster.devices.front().count = options.ranks;
    cluster.ranks_per_node = std::min(cluster.ranks_per_node, options.ranks);
  }
  if (const std::int64_t memory = memory_of(options); memory > 0) {
    for (DeviceClass& device : cluster.devices) {
      device.memory_bytes = memory;
    }
  }
  ClusterSpaceOptions how{
      .flexsp = options.space == "flexsp",
      .overlapped = options.overlapped,
      .weight_domain = 0,
      .reserve = options.reserve,
      .simulation = {
          .precision =
              precision_of(dtype_option(options.dtype, {"bfloat16", "float16", "float32"}))}};
  std::vector<GroupSpace> spaces;
  const int node = std::min(cluster.ranks_per_node, cluster.ranks());
  if (options.domain != "node") {
    spaces.push_back(cluster_space(model, cluster, how, batch.lengths));
  }
  if (options.domain == "node" || (options.domain == "auto" && options.space == "full" &&
                                   node < cluster.ranks() && cluster.ranks() % node == 0)) {
    how.weight_domain = node;
    try {
      spaces.push_back(cluster_space(model, cluster, how, batch.lengths));
    } catch (const std::invalid_argument&) {
      if (options.domain == "node") {
        throw;
      }
    }
  }
  return spaces;
}

void write_plan(const std::string& path, const Plan& plan) {
  std::ofstream file(path, std::ios::binary);
  file << to_json(plan);
  file.close();
  if (!file) {
    throw std::runtime_error(
        path + ": cannot be written; check the folder's permissions and the free disk space");
  }
}

// The least number of ranks of a preset that takes the longest document, for a refusal.
std::string least_that_fits(const PlanBatchOptions& options, const Batch& batch) {
  const FlexspModel* model = flexsp_model(options.model);
  if (model == nullptr) {
    return "";
  }
  const std::int64_t longest = *std::ranges::max_element(batch.lengths);
  constexpr int kMost = 1 << 20;
  for (int ranks = 1; ranks <= kMost; ranks *= 2) {
    FlexspSetting setting{.model = model, .ranks = ranks, .context = options.context};
    if (const std::int64_t memory = memory_of(options); memory > 0) {
      setting.memory_mb = static_cast<double>(memory) / (1024 * 1024);
    }
    if (flexsp_tokens_per_rank(setting) * ranks >= longest) {
      return fmt::format("; {} ranks would take it", ranks);
    }
  }
  return "; no number of ranks takes it: give more memory";
}

int run_plan_batch(const PlanBatchOptions& options, const Common& common) {
  expect_one_of("--space", options.space, {"flexsp", "full"});
  expect_one_of("--weight-domain", options.domain, {"auto", "world", "node"});
  const GroupingPlannerRow& planner = grouping_planner(options.exact ? "exact" : options.planner);
  const FlexspModel* preset = flexsp_model(options.model);
  const Batch batch = batch_of(options);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<GroupSpace> spaces = preset != nullptr
                                             ? preset_spaces(options, {.model = preset}, batch)
                                             : cluster_spaces(options, batch);
  PlannedBatch planned = plan_batch(spaces, planner, options.how);
  if (!planned.plan) {
    throw std::invalid_argument("no plan: " + planned.why_not + least_that_fits(options, batch));
  }
  // All that came between lengths and plan, what groups cost included.
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  planned.plan->planner_seconds = seconds;
  if (!options.out.empty()) {
    write_plan(options.out, *planned.plan);
  }
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
      "{:.6g} s for {} documents ({} dropped: longer than {}) on {} ranks, weight domain {}, in {} "
      "micro-batches\n"
      "at best {:.6g} s ({}): gap {:.2f} %{}; {} took {:.1f} ms\n",
      planned.seconds,
      batch.lengths.size(),
      batch.dropped,
      options.context,
      planned.plan->ranks,
      planned.plan->weight_domain,
      micro_batches,
      planned.bound.seconds,
      planned.bound.name,
      100 * planned.gap(),
      planned.optimal ? ", the optimum" : "",
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
      "Plan a global batch over groups of different sizes on a described cluster",
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
      "Cluster file (configs/clusters/); of a preset: a100-40gb-8x8, the default");
  command->add_option("--lengths", options->lengths, "File with a document's tokens a line")
      ->required();
  command
      ->add_option(
          "--context", options->context, "Longer documents are dropped; of a preset its positions")
      ->check(whole_numbers(1))
      ->capture_default_str();
  command->add_option("--batch", options->batch, "Documents: the first so many that are kept")
      ->check(whole_numbers(1))
      ->capture_default_str();
  command
      ->add_option(
          "--space",
          options->space,
          "flexsp: as published, Ulysses on 1, 2, 4, ... ranks; full: any size, core and level of "
          "recompute")
      ->capture_default_str();
  std::string names;
  for (const GroupingPlannerRow& row : grouping_planners()) {
    names += fmt::format("{}{} ({})", names.empty() ? "" : "; ", row.name, row.summary);
  }
  command->add_option("--planner", options->planner, names)->capture_default_str();
  command->add_flag("--exact", options->exact, "The optimum, of a small batch: --planner exact");
  command
      ->add_option("--ranks", options->ranks, "Instead of the cluster's; of a preset (default: 64)")
      ->check(whole_numbers(1, 1 << 16));
  command->add_option(
      "--memory", options->memory, "Of a rank, as in 40GiB, instead of the cluster's or preset's");
  command
      ->add_option(
          "--reserve", options->reserve, "Share of a device's memory left free; not of presets")
      ->check(numbers(0, 0.9))
      ->capture_default_str();
  command->add_flag(
      "--overlap",
      options->overlapped,
      "With --space full: gathering weights, and rings, hide behind computing");
  command
      ->add_option(
          "--weight-domain",
          options->domain,
          "With --space full: world or node; auto takes the better")
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Of a model: what operations work in")
      ->capture_default_str();
  command->add_option("--seed", options->how.seed, "Of what a planner draws")
      ->check(whole_numbers(0))
      ->capture_default_str();
  command
      ->add_option("--moves", options->how.moves, "Budget of the fast planner, times its default")
      ->check(numbers(0, 1000))
      ->capture_default_str();
  command
      ->add_option("--threads", options->how.threads, "Of the fast planner; the plan is the same")
      ->check(whole_numbers(1, 1024))
      ->capture_default_str();
  command
      ->add_option(
          "--solver-seconds",
          options->how.solver_seconds,
          "Of --planner published: limit of the MILP of a micro-batch")
      ->check(seconds())
      ->capture_default_str();
  command->add_option("--out", options->out, "Write the plan file");
  command->add_flag("--explain", options->explain, "Say what binds");
}

}  // namespace paradyse::cli
