// paradyse simulate: what a cluster that is not here would make of a plan, or which plan it wants.
#include "paradyse/plan/simulate.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/cli/backend_options.h"
#include "src/cli/commands.h"
#include "src/cli/grid_options.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/cli/tell.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/printable.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/plan/explain.h"
#include "src/plan/simulate/choices.h"
#include "src/run/measure/machine.h"
#include "src/run/measure/measured_cluster.h"

namespace paradyse::cli {
namespace {

struct SimulateOptions : GridOptions {
  std::string cluster;
  int ranks = 0;
  std::string write_cluster;
  BackendOptions backend;
  std::string plan;
  std::vector<std::int64_t> lengths;
  int domain = 0;
  std::string layout;
  std::string attention;
  std::string mlp;
  std::string recompute;
  StrategyOptions options;
  std::string dtype = "bfloat16";
  std::string memory;
  bool even = false;
  bool forward_only = false;
  bool additive = false;
  std::string trace;
  int trace_ranks = 8;
  std::string trace_limit = "5MB";
  std::string save_plan;
};

// Of more nodes no table is told.
constexpr std::size_t kMostNodesTold = 16;

Json to_json(const Simulation& simulation, const Cluster& cluster) {
  const LinkBytes links = link_bytes(simulation, cluster);
  const TimeShares shares = simulation.shares();
  const std::size_t fullest = simulation.fullest();
  const SimulatedRank& rank = simulation.ranks[fullest];
  return {
      {"seconds", simulation.seconds},
      {"gradient_seconds", simulation.gradient_seconds},
      {"optimizer_seconds", simulation.optimizer_seconds},
      {"tokens", simulation.tokens},
      {"tokens_per_s", simulation.tokens_per_second()},
      {"model_flops", simulation.model_flops},
      {"model_utilisation", simulation.model_utilisation()},
      {"compute_share", shares.compute},
      {"communication_share", shares.communication},
      {"exposed_share", shares.exposed},
      {"idle_share", shares.idle},
      {"bytes_sent", simulation.bytes_sent()},
      {"bytes_inside_nodes", links.inside_nodes},
      {"bytes_between_nodes", links.between_nodes},
      {"bytes_by_node",
       links.by_node.size() <= kMostNodesTold ? Json(links.by_node) : Json(nullptr)},
      {"fits", simulation.fits()},
      {"missing_bytes", rank.missing_bytes},
      {"fullest",
       {{"rank", fullest},
        {"device", cluster.device(static_cast<int>(fullest)).name},
        {"device_bytes", cluster.device(static_cast<int>(fullest)).memory_bytes},
        {"peak_bytes", rank.peak_bytes()},
        {"static_bytes", rank.bytes.static_bytes},
        {"saved_bytes", rank.bytes.saved},
        {"transient_bytes", rank.bytes.transient},
        {"offloaded_bytes", rank.offloaded_bytes}}}};
}

// The same plan when nothing overlaps, beside the simulation.
Json additive_json(const Simulation& simulation, const Simulation& additive) {
  Json micro_batches = Json::array();
  for (std::size_t m = 0; m < simulation.micro_batches.size(); ++m) {
    const SimulatedMicroBatch& events = simulation.micro_batches[m];
    const SimulatedMicroBatch& sums = additive.micro_batches[m];
    micro_batches.push_back(
        {{"seconds", events.seconds},
         {"additive_seconds", sums.seconds},
         {"slowest_group", events.slowest()},
         {"additive_slowest_group", sums.slowest()},
         {"group_seconds", events.group_seconds},
         {"additive_group_seconds", sums.group_seconds}});
  }
  return {
      {"seconds", additive.seconds},
      {"ratio", simulation.seconds / additive.seconds},
      {"micro_batches", std::move(micro_batches)}};
}

void print_additive(
    const Plan& plan,
    const Simulation& simulation,
    const Simulation& additive,
    const Common& common) {
  fmt::print(
      "without overlap {:.4g} s; the simulation takes {:.3f} of that\n",
      additive.seconds,
      simulation.seconds / additive.seconds);
  const auto group = [&](std::size_t m, const SimulatedMicroBatch& found) {
    const std::size_t g = found.slowest();
    const std::vector<int>& ranks = plan.micro_batches[m].groups[g].ranks;
    return fmt::format(
        "{} (ranks {}-{}) {:.4g}", g, ranks.front(), ranks.back(), found.group_seconds[g]);
  };
  std::vector<std::vector<std::string>> rows = {
      {"micro-batch",
       "simulated",
       "additive",
       "ratio",
       "slowest group simulated",
       "slowest group additive"}};
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    const SimulatedMicroBatch& events = simulation.micro_batches[m];
    const SimulatedMicroBatch& sums = additive.micro_batches[m];
    rows.push_back(
        {std::to_string(m),
         fmt::format("{:.4g}", events.seconds),
         fmt::format("{:.4g}", sums.seconds),
         fmt::format("{:.3f}", events.seconds / sums.seconds),
         group(m, events),
         group(m, sums)});
  }
  std::fputs(common.table(rows, {.left = 0}).c_str(), stdout);
}

std::string percent(double share) { return percent_text(share); }

void print(const Simulation& simulation, const Cluster& cluster, const Common& common) {
  const TimeShares shares = simulation.shares();
  const std::size_t fullest = simulation.fullest();
  const SimulatedRank& rank = simulation.ranks[fullest];
  const DeviceClass& device = cluster.device(static_cast<int>(fullest));
  fmt::print(
      "{:.4g} s an iteration ({:.3g} s gradients at its end, {:.3g} s update), {:.0f} tokens/s, "
      "MFU {}\ncompute {}, exposed communication {}, idle {} of the ranks' time; communication {}, "
      "of which the rest is overlapped\n",
      simulation.seconds,
      simulation.gradient_seconds,
      simulation.optimizer_seconds,
      simulation.tokens_per_second(),
      percent(simulation.model_utilisation()),
      percent(shares.compute),
      percent(shares.exposed),
      percent(shares.idle),
      percent(shares.communication));
  const LinkBytes links = link_bytes(simulation, cluster);
  fmt::print(
      "sent {}: {} inside nodes, {} between them\n",
      bytes_text(simulation.bytes_sent()),
      bytes_text(links.inside_nodes),
      bytes_text(links.between_nodes));
  if (links.by_node.size() > 1 && links.by_node.size() <= kMostNodesTold) {
    std::vector<std::vector<std::string>> rows = {{"from node"}};
    for (std::size_t from = 0; from < links.by_node.size(); ++from) {
      rows[0].push_back("to " + std::to_string(from));
      rows.push_back({std::to_string(from)});
      for (const std::int64_t bytes : links.by_node[from]) {
        rows.back().push_back(bytes_text(bytes));
      }
    }
    std::fputs(common.table(rows, {.left = 0}).c_str(), stdout);
  }
  fmt::print(
      "peak {} on rank {} ({} has {}): static {}, saved {}, transient {}{}; {}\n",
      bytes_text(rank.peak_bytes()),
      fullest,
      printable(device.name),
      bytes_text(device.memory_bytes),
      bytes_text(rank.bytes.static_bytes),
      bytes_text(rank.bytes.saved),
      bytes_text(rank.bytes.transient),
      rank.offloaded_bytes > 0 ? ", " + bytes_text(rank.offloaded_bytes) + " in host memory" : "",
      rank.missing_bytes == 0 ? "it fits"
                              : "it does NOT fit; missing: " + bytes_text(rank.missing_bytes));
}

void set_memory(const std::string& text, Cluster& cluster) {
  std::int64_t memory = 0;
  try {
    memory = parse_bytes(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("--memory: ") + error.what());
  }
  if (memory < 1) {
    throw std::invalid_argument("--memory " + text + ": must be at least one byte");
  }
  cluster = with_memory(std::move(cluster), memory);
}

std::string flag_of(std::string option) {
  std::ranges::replace(option, '_', '-');
  return "--" + option;
}

// What says how documents run, or samples.
void expect_options_of(const Model& model, const SimulateOptions& options) {
  if (!model.of_samples()) {
    if (!options.layout.empty()) {
      throw std::invalid_argument(fmt::format(
          "--layout is for video and protein models; --model {} is a language model, which has "
          "--attention",
          options.model));
    }
    return;
  }
  for (const auto& [flag, given] :
       {std::pair{std::string("--length"), !options.lengths.empty()},
        {"--attention", !options.attention.empty()},
        {"--mlp", !options.mlp.empty()},
        {options.options.empty() ? "" : flag_of(options.options.begin()->first),
         !options.options.empty()}}) {
    if (given) {
      throw std::invalid_argument(fmt::format(
          "{} is for language models; --model {} is a video or protein model, which has {}, "
          "--layout and --recompute",
          flag,
          options.model,
          sizes_of(model)));
    }
  }
  if (options.even) {
    throw std::invalid_argument(fmt::format(
        "--even is for language models: samples of --model {} are always cut evenly; leave it out",
        options.model));
  }
  if (options.plan.empty() && options.layout.empty() && !options.recompute.empty()) {
    throw std::invalid_argument(
        "--recompute needs --layout; without it all layouts and recompute levels are tried");
  }
}

// The layer that the options name, or none.
std::optional<LayerChoice> named_layer(const SimulateOptions& options) {
  if (options.attention.empty()) {
    const auto refuse = [&](const std::string& name) {
      throw std::invalid_argument(
          name +
          (options.plan.empty()
               ? " needs --attention; without it all strategies and recompute levels are tried"
               : ": --plan already says what each layer runs; leave it out"));
    };
    for (const auto& [name, value] :
         {std::pair{"--mlp", options.mlp}, {"--recompute", options.recompute}}) {
      if (!value.empty()) {
        refuse(name);
      }
    }
    if (!options.options.empty()) {
      refuse(flag_of(options.options.begin()->first));
    }
    return std::nullopt;
  }
  return layer_named(options.attention, options.mlp, options.recompute, options.options);
}

int domain_of(const SimulateOptions& options, const Cluster& cluster) {
  const int domain = options.domain == 0 ? largest_domain(cluster) : options.domain;
  if (cluster.ranks() % domain != 0) {
    throw std::invalid_argument(fmt::format(
        "--domain {}: must divide the cluster's {} ranks", options.domain, cluster.ranks()));
  }
  return domain;
}

Documents samples_asked(
    const SimulateOptions& options, const Model& model, const Cluster& cluster) {
  if (!says_samples(options)) {
    throw std::invalid_argument(fmt::format(
        "simulate: give a plan file (--plan) or the sizes of a sample ({})", sizes_of(model)));
  }
  return documents_of(options, model, domain_of(options, cluster));
}

Workload workload_of(const SimulateOptions& options, const Model& model, const Cluster& cluster) {
  if (options.lengths.empty()) {
    throw std::invalid_argument(
        "simulate: give a plan file (--plan) or the documents' lengths (--length 32768, or "
        "several: 32768,4096)");
  }
  expect_counted("--length", model, options.lengths);
  return {.lengths = options.lengths, .domain = domain_of(options, cluster)};
}

// What the plan's planner predicted, and why the simulation says something else.
void print_predicted(const Plan& plan, const Simulation& simulation, const Simulation* sums) {
  if (sums == nullptr) {
    return;
  }
  const double predicted = *plan.predicted.seconds;
  fmt::print(
      "the planner ({}) predicted {:.4g} s, {} of this simulation\n  added up without overlap, as "
      "planners do, it is {:.4g} s ({});\n  the simulation also includes waiting at every "
      "collective, and overlaps\n  communication with computation (docs/internals/simulate.md)\n",
      plan.planner_name.empty() ? "of the file" : printable(plan.planner_name),
      predicted,
      signed_percent_text(predicted / simulation.seconds - 1),
      sums->seconds,
      signed_percent_text(sums->seconds / simulation.seconds - 1));
}

int print_one(
    const Plan& plan,
    const Simulation& simulation,
    const std::optional<Simulation>& additive,
    const Simulation* sums,
    const Cluster& cluster,
    const std::string& what,
    const std::string& note,
    const char* one,
    const Common& common) {
  if (!note.empty() && !common.json) {
    tell("paradyse: note: {}\n", note);
  }
  if (common.json) {
    Json json = {{"cluster", cluster.name}, {"ranks", cluster.ranks()}};
    json.update(to_json(simulation, cluster));
    if (additive) {
      json["additive"] = additive_json(simulation, *additive);
    }
    if (sums != nullptr) {
      json["planner_seconds_predicted"] = *plan.predicted.seconds;
      json["additive_seconds"] = sums->seconds;
    }
    if (!note.empty()) {
      json["note"] = note;
    }
    json["plan_hash"] = hash(plan);
    print_json(json);
    return kOk;
  }
  fmt::print(
      "{} on {} ({}, sharding group {}, {} of {})\n",
      what,
      printable(cluster.name),
      counted(cluster.ranks(), "rank"),
      plan.weight_domain,
      counted(std::ssize(plan.lengths), one),
      counted(simulation.tokens, "token"));
  print(simulation, cluster, common);
  print_predicted(plan, simulation, sums);
  if (additive) {
    print_additive(plan, simulation, *additive, common);
  }
  return kOk;
}

int print_all(
    std::vector<SimulatedChoice> choices,
    const Cluster& cluster,
    int domain,
    const char* one,
    const Common& common) {
  const SimulatedChoice* fastest = best(choices);
  if (common.json) {
    Json rows = Json::array();
    for (const SimulatedChoice& choice : choices) {
      Json row = {{"name", choice.name}};
      row.update(to_json(choice.simulation, cluster));
      rows.push_back(std::move(row));
    }
    print_json(
        {{"cluster", cluster.name},
         {"ranks", cluster.ranks()},
         {"weight_domain", domain},
         {"best", fastest == nullptr ? Json(nullptr) : Json(fastest->name)},
         {"choices", std::move(rows)}});
    return kOk;
  }
  const std::string fastest_name = fastest == nullptr ? "" : fastest->name;
  std::ranges::stable_sort(choices, {}, [](const SimulatedChoice& choice) {
    return std::pair(!choice.simulation.fits(), choice.simulation.seconds);
  });
  std::vector<std::vector<std::string>> rows = {
      {"plan", "seconds", "tokens/s", "MFU", "compute", "exposed", "idle", "peak", "fits"}};
  for (const SimulatedChoice& choice : choices) {
    const Simulation& s = choice.simulation;
    const TimeShares shares = s.shares();
    const SimulatedRank& rank = s.ranks[s.fullest()];
    rows.push_back(
        {choice.name,
         fmt::format("{:.4g}", s.seconds),
         fmt::format("{:.0f}", s.tokens_per_second()),
         percent(s.model_utilisation()),
         percent(shares.compute),
         percent(shares.exposed),
         percent(shares.idle),
         bytes_text(rank.peak_bytes()),
         s.fits() ? "yes" : bytes_text(rank.missing_bytes) + " too much"});
  }
  fmt::print(
      "{} of {}; groups of {} share {}s and weights\n",
      counted(cluster.ranks(), "rank"),
      printable(cluster.name),
      domain,
      one);
  std::fputs(
      common
          .table(
              rows,
              {.drop = {"compute", "MFU", "idle", "exposed"},
               .best = fastest != nullptr ? std::optional<std::size_t>(1) : std::nullopt})
          .c_str(),
      stdout);
  if (fastest == nullptr) {
    fmt::print("no plan fits; the last column shows the missing memory\n");
  } else {
    fmt::print("best: {} (marked *)\n", fastest_name);
  }
  return kOk;
}

// One would be lost.
void expect_two_files(const SimulateOptions& options) {
  const auto place = [](const std::string& file) {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::weakly_canonical(file, error);
    return error ? std::filesystem::path(file) : whole;
  };
  if (!options.trace.empty() && !options.save_plan.empty() &&
      place(options.trace) == place(options.save_plan)) {
    throw std::invalid_argument(
        "simulate: --trace and --save-plan name the same file, " + options.trace +
        ": give them different ones");
  }
}

int simulate_on(
    Cluster cluster, Model model, const SimulateOptions& options, const Common& common) {
  expect_two_files(options);
  if (!options.memory.empty()) {
    set_memory(options.memory, cluster);
  }
  const std::int64_t limit = parse_bytes(options.trace_limit);
  SimulationTrace trace(
      options.trace_ranks,
      limit == 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(limit));
  const auto write_trace = [&] {
    replace_file(options.trace, trace.json());
    if (trace.was_cut()) {
      tell(
          "{} is cut off at --trace-limit {}; --trace-ranks 1 makes it smaller\n",
          options.trace,
          options.trace_limit);
    }
  };
  SimulationOptions how{
      .precision = precision_of(dtype_option(options.dtype, {"bfloat16", "float16", "float32"})),
      .training = !options.forward_only,
      .proportional_tokens = !options.even};
  model = with_tiles(model, tiles_of(cluster, model, how.precision.activation));
  const bool samples = model.of_samples();
  const std::optional<LayerChoice> layer =
      samples && options.plan.empty() ? std::nullopt : named_layer(options);
  if (!options.plan.empty() && (layer || !options.lengths.empty() || options.domain != 0 ||
                                !options.layout.empty() || says_samples(options))) {
    throw std::invalid_argument(fmt::format(
        "--plan already says what runs where: leave out {}, --domain and {}",
        samples ? sizes_of(model) + ", --batch, --mesh" : "--length",
        samples ? "--layout" : "--attention"));
  }
  if (options.additive && options.plan.empty() && !layer && options.layout.empty()) {
    throw std::invalid_argument(fmt::format(
        "--additive needs one plan: give --plan, or {}",
        samples ? "the sizes of a sample with --layout" : "--length with --attention"));
  }

  const char* const one = samples ? "sample" : "document";
  std::optional<Plan> plan;
  std::string what = options.plan;
  std::string note;
  if (!options.plan.empty()) {
    plan = read_plan(options.plan);
    if (plan->ranks == cluster.ranks()) {  // else it is refused by name below
      const std::vector<std::string> wrong =
          problems(*plan, {.model = model, .precision = how.precision, .training = how.training});
      if (!wrong.empty()) {
        throw std::invalid_argument(fmt::format("--plan {}: {}", options.plan, list_of(wrong)));
      }
    }
    note = note_of_tiles(*plan, model.tiles());
  } else if (layer) {
    const Workload workload = workload_of(options, model, cluster);
    plan = repeated_plan(
        model, cluster, workload, std::vector<LayerChoice>(idx(model.layers), *layer));
    what = name(*layer);
  } else if (!options.layout.empty()) {
    const LayerRecompute recompute =
        options.recompute.empty() ? LayerRecompute{} : layer_recompute(options.recompute);
    plan = layout_plan(
        model, cluster, samples_asked(options, model, cluster), options.layout, recompute, how);
    what = options.layout +
           (recompute == LayerRecompute{} ? "" : ", recompute " + to_string(recompute));
  } else {
    std::vector<SimulatedChoice> choices = [&] {
      const Waiting waiting("simulating every choice", common.json);
      return samples ? simulate_layouts(model, cluster, samples_asked(options, model, cluster), how)
                     : simulate_all(model, cluster, workload_of(options, model, cluster), how);
    }();
    const SimulatedChoice* fastest = best(choices);
    how.proportional_tokens = false;  // its plan says how it is cut
    if (fastest != nullptr && (!options.trace.empty() || !options.save_plan.empty())) {
      if (!options.trace.empty()) {
        how.observer = trace.observer();
        simulate(fastest->plan, model, cluster, how);
        write_trace();
      }
      if (!options.save_plan.empty()) {
        replace_file(options.save_plan, to_json(fastest->plan));
      }
    }
    return print_all(std::move(choices), cluster, domain_of(options, cluster), one, common);
  }
  if (!options.even) {
    plan = with_proportional_shares(*plan, model, cluster, how);
    how.proportional_tokens = false;
  }
  if (!options.trace.empty()) {
    how.observer = trace.observer();
  }
  std::optional<Waiting> waiting(std::in_place, "simulating", common.json);
  const Simulation simulation = simulate(*plan, model, cluster, how);
  std::optional<Simulation> additive;
  if (options.additive) {
    how.additive = true;
    additive = simulate(*plan, model, cluster, how);
  }
  // beside what the plan's own planner says, as it adds up
  std::optional<Simulation> sums = additive;
  if (!sums && plan->predicted.seconds && !options.forward_only) {
    how.observer = {};
    how.additive = true;
    sums = simulate(*plan, model, cluster, how);
  }
  waiting.reset();
  if (!options.trace.empty()) {
    write_trace();
  }
  if (!options.save_plan.empty()) {
    replace_file(options.save_plan, to_json(*plan));
  }
  const bool beside = sums && plan->predicted.seconds && !options.forward_only;
  return print_one(
      *plan, simulation, additive, beside ? &*sums : nullptr, cluster, what, note, one, common);
}

// The cluster that is no file: this machine.
constexpr const char* kMeasured = "measured";

// Measures it, and goes on with it where there is something to simulate.
int simulate_measured(const Model& model, const SimulateOptions& options, const Common& common) {
  const int asked = options.ranks != 0     ? options.ranks
                    : options.plan.empty() ? 0
                                           : read_plan(options.plan).ranks;
  const int ranks = ranks_of(options.backend, asked, 4);
  expect_ranks(ranks);
  return on_backend(
      options.backend, given_by(common), [&](const std::shared_ptr<Backend>& backend) -> int {
        const Cluster cluster = measured_cluster(model, ranks, backend);
        if (!backend->leads()) {
          return kOk;
        }
        const std::string text = to_toml(
            cluster,
            fmt::format(
                "Measured by paradyse simulate: float32, {} ranks over {} on {} cores.",
                ranks,
                backend->name(),
                usable_cores()));
        if (!options.write_cluster.empty()) {
          replace_file(options.write_cluster, text);
        }
        if (!options.plan.empty() || !options.lengths.empty() || says_samples(options)) {
          return simulate_on(cluster, model, options, common);
        }
        if (common.json) {
          print_json(
              {{"cluster", cluster.name},
               {"ranks", ranks},
               {"backend", backend->name()},
               {"cores", usable_cores()},
               {"toml", text}});
        } else if (options.write_cluster.empty()) {
          std::fputs(text.c_str(), stdout);
        }
        return kOk;
      });
}

int run_simulate(const SimulateOptions& options, const Common& common) {
  const bool measured = options.cluster == kMeasured;
  for (const auto& [flag, given] :
       {std::pair{"--ranks", options.ranks != 0 && options.plan.empty()},
        {"--write-cluster", !options.write_cluster.empty()},
        {"--backend", options.backend.backend != "auto"}}) {
    if (given && !measured) {
      throw std::invalid_argument(
          std::string(flag) + " needs --cluster measured: a cluster file already has these values");
    }
  }
  const ModelFolder folder = model_of(options);
  say_notes(folder);
  const Model& model = folder.model;
  expect_options_of(model, options);
  return measured
             ? simulate_measured(model, options, common)
             : simulate_on(cluster_with(options.cluster, options.ranks, 0), model, options, common);
}

}  // namespace

void add_simulate(CLI::App& app, Common& common) {
  auto [command, options] = add_command<SimulateOptions>(
      app,
      common,
      "simulate",
      "Simulate a plan on a described cluster: time, memory, the best plan that fits",
      run_simulate);
  command
      ->add_option(
          "--model",
          options->model,
          "Hugging Face folder, TOML model file or preset (stdit, evoformer, extra-msa); weights "
          "are not read")
      ->required();
  command
      ->add_option(
          "--cluster",
          options->cluster,
          "Cluster file (TOML, see configs/clusters/); or `measured`: measure this machine, which "
          "takes some seconds")
      ->required();
  command
      ->add_option(
          "--ranks",
          options->ranks,
          "With a cluster file and --plan: use this many of its ranks, as in plan batch --ranks.  "
          "With `measured`: number of ranks (default: the plan's, or 4; over gloo the number of "
          "processes)")
      ->transform(whole_numbers(1, kMostRanks));
  command
      ->add_option(
          "--write-cluster", options->write_cluster, "Write the measurement to this cluster file")
      ->check(replaceable_file("a measured cluster", "# Measured by paradyse"));
  add_backend_options(*command, options->backend);
  command->add_option(
      "--plan", options->plan, "Plan file; it must have as many ranks as the cluster");
  command
      ->add_option(
          "--length",
          options->lengths,
          "Instead of --plan: document lengths of each sharding group, as in 32768 or 32768,4096")
      ->delimiter(',')
      ->transform(whole_numbers(1));
  command
      ->add_option(
          "--domain", options->domain, "Ranks in a sharding group (default: all, at most 64)")
      ->transform(whole_numbers(1));
  options->length_option = "--length";
  add_sample_options(*command, *options);
  command->add_option(
      "--layout",
      options->layout,
      "Layout of a video or protein model: planned, planned-by-seconds or a published one, as in "
      "plan layout (default: try all, at every recompute level)");
  command->add_option(
      "--attention",
      options->attention,
      "Attention strategy of all layers (default: try all, and the best mix of layers)");
  add_mlp(*command, options->mlp);
  command->add_option(
      "--recompute",
      options->recompute,
      "none, light, attention-output, full or layer (layer+light, ...; default: none)");
  add_layer_options(*command, options->options);
  command->add_option("--dtype", options->dtype, "bfloat16, float16 or float32")
      ->capture_default_str();
  command->add_option(
      "--memory", options->memory, "Memory of every device, as in 40GiB, instead of the file's");
  command->add_flag(
      "--forward-only",
      options->forward_only,
      "Simulate evaluation: no backward pass, no optimizer step");
  command->add_flag(
      "--additive",
      options->additive,
      "Also add up the plan without overlap, as batch planners do, and show the differences");
  command->add_flag(
      "--even",
      options->even,
      "Shard documents evenly also on heterogeneous devices, unless the plan has shares");
  command
      ->add_option(
          "--trace",
          options->trace,
          "Write a Perfetto trace (operations and memory over time) to this file")
      ->check(replaceable_file("a trace", SimulationTrace::kMark));
  command->add_option(
      "--trace-limit", options->trace_limit, "Size limit of the trace file; 0: no limit");
  command
      ->add_option(
          "--trace-ranks", options->trace_ranks, "Number of ranks in the trace, from rank 0")
      ->transform(whole_numbers(1))
      ->capture_default_str();
  command
      ->add_option(
          "--save-plan", options->save_plan, "Write the plan, or the best one, to this file")
      ->check(plan_to_write());
}

}  // namespace paradyse::cli
