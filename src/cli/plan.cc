// paradyse plan check: is this plan sound, does it fit, and what does each part do.
#include "paradyse/plan/plan.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/detail/index.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/printable.h"
#include "src/plan/plan/explain.h"

namespace paradyse::cli {
namespace {

struct PlanCheckOptions {
  std::string file;
  std::string model;
  std::string cluster;
  std::optional<int> ranks;
  std::string memory_per_rank;
  std::string dtype;  // "": float32, of a described cluster bfloat16
  bool forward_only = false;
  bool explain = false;
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

// What --cluster describes, with the memory that --memory-per-rank says; none: nothing was said.
std::optional<Cluster> described_cluster(const PlanCheckOptions& options, std::int64_t memory) {
  if (options.cluster.empty()) {
    return std::nullopt;
  }
  return cluster_with(options.cluster, options.ranks.value_or(0), memory);
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

int run_plan_check(const PlanCheckOptions& options, const Common& common) {
  const std::int64_t memory = memory_limit(options.memory_per_rank);
  if (options.model.empty() && (memory > 0 || options.explain)) {
    throw std::invalid_argument(
        std::string(memory > 0 ? "--memory-per-rank" : "--explain") +
        " needs --model, which gives the sizes: give its folder or TOML file");
  }
  if (options.ranks && options.cluster.empty()) {
    throw std::invalid_argument(
        "--ranks needs --cluster FILE: it limits the ranks of that cluster");
  }
  const std::optional<Cluster> cluster = described_cluster(options, memory);
  if (cluster && options.model.empty()) {
    throw std::invalid_argument(
        "--cluster " + options.cluster +
        " needs --model, from whose sizes memory is computed: give its folder or TOML file");
  }
  const Plan plan = read_plan(options.file);
  const std::string dtype = !options.dtype.empty() ? options.dtype
                            : cluster              ? "bfloat16"  // as plan batch takes it
                                                   : "float32";
  CheckContext context{
      .precision = precision_of(dtype_option(dtype)), .training = !options.forward_only};
  if (!options.model.empty()) {
    const ModelFolder folder = reading([&] { return open_model(options.model); }, "--model");
    say_notes(folder);
    context.model = folder.model;
  }
  if (cluster) {
    context.memory_of_ranks = memory_of_ranks(*cluster);
  } else if (memory > 0) {
    context.memory_per_rank = memory;
  }
  const std::vector<std::string> found = problems(plan, context);
  const bool knows_memory = cluster || context.memory_per_rank;
  std::vector<PredictedBytes> held;
  std::vector<DeviceMemory> devices;
  if (found.empty() && knows_memory) {
    held = bytes_of_ranks(plan, *context.model, context.precision, context.training);
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
    programs = explained_programs(plan, *context.model, context.training);
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
    fmt::print("{} {}\n{}\n", verdict("ok", true), hash(plan), printable(summary(plan)));
    print_memory(held, devices, dtype);
    if (!note.empty()) {
      fmt::print("note: {}\n", printable(note));
    }
    if (!knows_memory) {
      fmt::print(
          "not checked: {}\n",
          options.model.empty() ? "the model's sizes (--model) and memory"
                                : "memory (--cluster FILE or --memory-per-rank)");
    }
    for (const ExplainedProgram& one : programs) {
      const PlanMicroBatch& micro_batch = plan.micro_batches[one.micro_batch];
      fmt::print(
          "\n{}\n{}", printable(where(micro_batch.groups[one.group], one)), printable(one.text));
    }
  } else {
    for (const std::string& problem : found) {
      fmt::print("{}: {}\n", printable(options.file), printable(problem));
    }
    fmt::print("{} found\n", counted(std::ssize(found), "problem"));
  }
  return found.empty() ? kOk : kFailed;
}

}  // namespace

void add_plan(CLI::App& app, Common& common) {
  CLI::App& plan = new_commands(app, "plan", "Make plans and check them");
  auto [command, options] = add_command<PlanCheckOptions>(
      plan, common, "check", "Check a plan file and list all its errors", run_plan_check);
  command->add_option("FILE", options->file, "Plan file")->required();
  command->add_option(
      "--model",
      options->model,
      "Model folder or TOML file of the plan; also checks that ranks call equal collectives");
  command->add_option(
      "--cluster",
      options->cluster,
      "Cluster file (configs/clusters/): check the plan against its nodes and the memory of its "
      "devices; needs --model");
  command
      ->add_option(
          "--ranks",
          options->ranks,
          "With --cluster FILE: use this many of its ranks, as in plan batch --ranks")
      ->transform(whole_numbers(1));
  command->add_option(
      "--memory-per-rank",
      options->memory_per_rank,
      "Check that a step fits this memory, as in 512MiB; needs --model.  With --cluster: replaces "
      "the memory of its devices");
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
