// paradyse bench step: seconds, tokens, bytes and operations of steps, by one plan or several.
#include "src/run/measure/bench_step.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "src/cli/backend_options.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/plan/group_timeline.h"
#include "src/run/data/grid_data.h"
#include "src/run/device/device.h"
#include "src/run/execute/memory_budget.h"

namespace paradyse::cli {
namespace {

struct BenchStepOptions {
  std::string model;
  int ranks = 0;
  std::vector<std::string> plans;
  std::string data;
  std::vector<std::int64_t> lengths;
  std::vector<std::string> attention;
  std::string mlp;
  std::vector<std::string> recompute;
  StrategyOptions options;
  bool breakdown = false;
  bool no_overlap = false;
  bool keep_weights = false;
  double clip_norm = 0;
  std::string dtype = "float32";
  int repeats = 5;
  std::string memory_per_rank = "0";
  BackendOptions backend;
};

// Of a GPU: `flops_per_second` of its data sheet and of its large product.
std::optional<double> share_of_data_sheet(const BenchStepRow& row, const BenchStepResult& result) {
  if (!result.data_sheet) {
    return std::nullopt;
  }
  return row.model_flops_per_second / (result.data_sheet->narrow_flops * result.cores);
}
double share_of_large_product(const BenchStepRow& row, const BenchStepResult& result) {
  return row.model_flops_per_second / (result.large_product_flops_per_second * result.cores);
}

std::string share_or_dash(std::optional<double> share) {
  return share ? percent_text(*share, 0) : "-";
}

// What a GPU can do, by its data sheet and as found here.
Json card_to_json(const BenchStepResult& result) {
  Json json = {
      {"card", result.card},
      {"large_product_flops_per_second", result.large_product_flops_per_second},
      {"data_sheet", nullptr}};
  if (result.data_sheet) {
    json["data_sheet"] = {
        {"name", result.data_sheet->name},
        {"flops_per_second", result.data_sheet->narrow_flops},
        {"bytes_per_second", result.data_sheet->memory_bytes_per_second}};
  }
  return json;
}
void print_card(const BenchStepResult& result) {
  fmt::print(
      "{}: {:.1f} TFLOP/s in a large product, {:.1f} in products like the model's, both measured "
      "in this run; ",
      result.card,
      result.large_product_flops_per_second / 1e12,
      result.matmul_flops_per_second / 1e12);
  if (result.data_sheet) {
    fmt::print(
        "{:.1f} by the data sheet \"{}\"\n",
        result.data_sheet->narrow_flops / 1e12,
        result.data_sheet->name);
  } else {
    fmt::print("no data sheet of this card and type is known here\n");
  }
}

Json parts_to_json(const BenchStepRow& row) {
  Json parts = {{"idle", row.idle_s}};
  for (int part = 0; part < Breakdown::kParts; ++part) {
    parts[Breakdown::name(static_cast<Breakdown::Part>(part))] = row.parts_s[idx(part)];
  }
  return parts;
}

Json to_json(const BenchStepRow& row) {
  Json json = {
      {"name", row.name},
      {"length", row.length},
      {"documents", row.documents},
      {"tokens", row.tokens},
      {"overlap", row.messages.overlap},
      {"reshard_after_forward", row.messages.reshard_after_forward},
      {"counted_bytes", row.counted_bytes},
      {"lacks_memory", row.lacks_memory.empty() ? Json() : Json(row.lacks_memory)}};
  if (row.lacks_memory.empty()) {
    json.update(Json{
        {"seconds", row.seconds},
        {"optimizer_seconds", row.optimizer_each},
        {"step_s", row.step_s},
        {"best_s", row.best_s},
        {"worst_s", row.worst_s},
        {"of_first",
         {{"median", row.of_first.median},
          {"least", row.of_first.least},
          {"most", row.of_first.most}}},
        {"forward_backward_s", row.forward_backward_s},
        {"optimizer_s", row.optimizer_s},
        {"cpu_s", row.cpu_s},
        {"tokens_per_s", row.tokens_per_s},
        {"model_flops", row.model_flops},
        {"hardware_flops", row.hardware_flops},
        {"touched_bytes", row.touched_bytes},
        {"model_flops_per_second", row.model_flops_per_second},
        {"hardware_flops_per_second", row.hardware_flops_per_second},
        {"model_utilisation", row.model_utilisation},
        {"hardware_utilisation", row.hardware_utilisation},
        {"peak_bytes", row.peak_bytes},
        {"saved_bytes", row.saved_bytes},
        {"bytes_sent", row.bytes_sent},
        {"all_bytes_sent", row.all_bytes_sent}});
  }
  return json;
}

std::string text_of(Messages messages) {
  return std::string(messages.overlap ? "overlapped" : "blocking") +
         (messages.reshard_after_forward ? "" : ", weights kept");
}

// Shares of the cores' or GPUs' time.
void print_breakdown(const BenchStepResult& result, bool cores, const Common& common) {
  std::vector<std::vector<std::string>> rows(1);
  rows[0] = {"plan", "length"};
  for (int part = 0; part < Breakdown::kParts; ++part) {
    rows[0].emplace_back(Breakdown::name(static_cast<Breakdown::Part>(part)));
  }
  rows[0].emplace_back("idle");
  rows[0].emplace_back("exposed");
  for (const BenchStepRow& row : result.rows) {
    if (!row.lacks_memory.empty()) {
      continue;
    }
    const double all = std::accumulate(row.parts_s.begin(), row.parts_s.end(), row.idle_s);
    auto& line = rows.emplace_back();
    line = {row.name, fmt::format("{}", row.length)};
    for (const double seconds : row.parts_s) {
      line.push_back(percent_text(seconds / all));
    }
    line.push_back(percent_text(row.idle_s / all));
    line.push_back(percent_text(row.exposed_s / row.step_s));
  }
  fmt::print(
      "\nshares of the {}; exposed: share of a step in which a rank's parts sent, received or "
      "waited for messages\n{}",
      cores ? "cores' time"
            : "GPUs' time, by events in their streams (waiting for the host counts for the "
              "operation that the GPU waits for)",
      common.table(rows, {.left = 1}));
}

const std::vector<std::int64_t> kLengths = {256, 1024, 4096};
constexpr const char* kAttention = "DataZ";

void set_messages(const BenchStepOptions& options, Plan& plan) {
  plan.messages.overlap &= !options.no_overlap;
  plan.messages.reshard_after_forward &= !options.keep_weights;
}

// What a plan file says.
BenchStepCase case_of(const std::string& file, const BenchStepRequest& request) {
  BenchStepCase one{.name = file, .plan = read_plan(file)};
  if (one.plan.ranks != request.ranks) {
    throw std::invalid_argument(fmt::format(
        "--plan {} is for {} ranks, but there are {}: give --ranks {}, or a plan for {} ranks",
        file,
        one.plan.ranks,
        request.ranks,
        one.plan.ranks,
        request.ranks));
  }
  const std::vector<std::string> wrong =
      problems(one.plan, {.model = request.model, .precision = precision_of(request.dtype)});
  if (!wrong.empty()) {
    throw std::invalid_argument(fmt::format(
        "--plan {}: {}; make a plan for this model (paradyse plan)", file, list_of(wrong)));
  }
  return one;
}

// Documents of each length, by each strategy for all layers.
void add_strategies(const BenchStepOptions& options, BenchStepRequest& request) {
  const auto or_one = [](const std::vector<std::string>& given, const char* otherwise) {
    return given.empty() ? std::vector<std::string>{otherwise} : given;
  };
  const Model& model = request.model;
  const Precision precision = precision_of(request.dtype);
  for (const std::int64_t length : options.lengths.empty() ? kLengths : options.lengths) {
    for (const std::string& attention : or_one(options.attention, kAttention)) {
      for (const std::string& recompute : or_one(options.recompute, "none")) {
        const LayerChoice layer = layer_named(attention, options.mlp, recompute, options.options);
        // a document for each rank, or one that they share
        const bool whole = strategy("attention", part_of(layer, "attention").strategy).one_rank;
        BenchStepCase one{
            .name = name(layer),
            .plan = uniform_plan(
                model,
                std::vector<std::int64_t>(whole ? idx(request.ranks) : 1, length),
                request.ranks,
                std::vector<LayerChoice>(idx(model.layers), layer))};
        let_messages_travel(one.plan, model, precision, Keeps::optimizer, request.memory_per_rank);
        request.cases.push_back(std::move(one));
      }
    }
  }
}

// Samples of a file, by the plan that training makes for them, with each level of recomputation.
void add_samples(const BenchStepOptions& options, BenchStepRequest& request) {
  const GridData data = reading([&] { return read_grid_data({options.data}, request.model); });
  const std::vector<Sample> samples = data.samples(0);
  const std::vector<std::string> any = {""};
  for (const std::string& recompute : options.recompute.empty() ? any : options.recompute) {
    const PlanningTask task{
        .model = request.model,
        .ranks = request.ranks,
        .machine = {},
        .precision = precision_of(request.dtype),
        .memory_per_rank = request.memory_per_rank,
        .recompute = recompute};
    BatchPlanner::Answer answer = batch_planner(task)->plan(data.sizes());
    if (!answer.plan) {
      throw std::invalid_argument(
          "--memory-per-rank " + options.memory_per_rank + ": " + answer.why_not);
    }
    request.cases.push_back(
        {.name = "planned layout" + (recompute.empty() ? "" : ", recompute " + recompute),
         .plan = *std::move(answer.plan),
         .items = {samples.begin(), samples.end()}});
  }
}

void add_cases(const BenchStepOptions& options, BenchStepRequest& request) {
  for (const std::string& file : options.plans) {
    request.cases.push_back(case_of(file, request));
  }
  const bool of_documents = !options.lengths.empty() || !options.attention.empty() ||
                            !options.mlp.empty() || !options.options.empty();
  if (!request.model.of_samples()) {
    if (!options.data.empty()) {
      throw std::invalid_argument(
          "--data is for video and protein models; for a language model, --lengths gives the "
          "tokens of the documents");
    }
    expect_counted("--lengths", request.model, options.lengths);
    if (options.plans.empty() || of_documents || !options.recompute.empty()) {
      add_strategies(options, request);
    }
  } else {
    if (of_documents) {
      throw std::invalid_argument(
          "--lengths, --attention, --mlp and strategy options are for language models; of a video "
          "or protein model the layout is planned (--data), or given (--plan)");
    }
    if (!request.device.is_cpu() && !request.model.limits.gpus) {
      throw std::invalid_argument(
          "--device: multi-axis models (video, protein) run only on CPUs so far");
    }
    if (!options.data.empty()) {
      add_samples(options, request);
    } else if (options.plans.empty()) {
      throw std::invalid_argument(fmt::format(
          "--model {} takes --data FILE (frames or alignments), or --plan FILE, as paradyse plan "
          "layout --out writes it",
          options.model));
    } else if (!options.recompute.empty()) {
      throw std::invalid_argument(
          "--recompute: --plan says what is recomputed; leave one of the two out, or give --data "
          "with it");
    }
  }
  for (BenchStepCase& one : request.cases) {
    set_messages(options, one.plan);
  }
}

// Those asked for, else those of the plans.
int ranks_of(const BenchStepOptions& options) {
  const int otherwise = options.plans.empty() ? 4 : read_plan(options.plans.front()).ranks;
  return ranks_of(options.backend, options.ranks, otherwise);
}

void print_rows(const BenchStepResult& result, bool samples, bool cores, const Common& common) {
  std::vector<std::vector<std::string>> rows = {
      {"plan",
       "length",
       "documents",
       "step s",
       "least",
       "most",
       "of first",
       "from - to",
       "optimizer s",
       "cpu s",
       samples ? "rows/s" : "tokens/s",
       cores ? "model util" : "TFLOP/s",
       cores ? "hardware util" : "of data sheet",
       "peak",
       "counted",
       "sent by rank 0",
       "by all",
       "messages"}};
  if (!cores) {
    rows.front().insert(rows.front().begin() + 13, "of large product");
  }
  for (const BenchStepRow& row : result.rows) {
    if (!row.lacks_memory.empty()) {
      continue;
    }
    rows.push_back(
        {row.name,
         fmt::format("{}", row.length),
         fmt::format("{}", row.documents),
         fmt::format("{:.4f}", row.step_s),
         fmt::format("{:.4f}", row.best_s),
         fmt::format("{:.4f}", row.worst_s),
         fmt::format("{:.2f}", row.of_first.median),
         fmt::format("{:.2f} - {:.2f}", row.of_first.least, row.of_first.most),
         fmt::format("{:.4f}", row.optimizer_s),
         fmt::format("{:.4f}", row.cpu_s),
         fmt::format("{:.0f}", row.tokens_per_s),
         cores ? share_or_dash(row.model_utilisation)
               : fmt::format("{:.1f}", row.model_flops_per_second / 1e12),
         cores ? share_or_dash(row.hardware_utilisation)
               : share_or_dash(share_of_data_sheet(row, result)),
         bytes_text(row.peak_bytes),
         bytes_text(row.counted_bytes),
         bytes_text(row.bytes_sent),
         bytes_text(row.all_bytes_sent),
         text_of(row.messages)});
    if (!cores) {
      rows.back().insert(
          rows.back().begin() + 13, share_or_dash(share_of_large_product(row, result)));
    }
  }
  std::vector<std::string> drop = {
      "messages",
      "by all",
      "counted",
      "sent by rank 0",
      "documents",
      "from - to",
      "least",
      "most",
      "cpu s",
      "optimizer s",
      "hardware util",
      "model util"};
  if (result.rows.size() == 1) {
    drop.insert(drop.begin(), "of first");
  }
  if (rows.size() > 1) {
    fmt::print("{}", common.table(rows, {.left = 1, .drop = drop}));
  }
  for (const BenchStepRow& row : result.rows) {
    if (!row.lacks_memory.empty()) {
      fmt::print(
          "{}, {}: {}\n",
          row.name,
          counted(row.tokens, samples ? "row" : "token"),
          row.lacks_memory);
    }
  }
}

int bench_step_on(
    const std::shared_ptr<Backend>& backend,
    const BenchStepOptions& options,
    const Common& common) {
  BenchStepRequest request{
      .model = open_any_measured(options.model, !backend->leads()).model,
      .ranks = ranks_of(options),
      .dtype = dtype_option(options.dtype),
      .clip_norm = options.clip_norm,
      .repeats = options.repeats,
      .breakdown = options.breakdown,
      .backend = backend,
      .device = device_named(options.backend.device)};
  request.model =
      with_tiles(request.model, tiles_for(request.device, request.model, request.dtype));
  request.memory_per_rank =
      memory_budget(memory_limit(options.memory_per_rank), request.ranks, *backend, request.device);
  add_cases(options, request);
  Progress progress;
  request.progress = progress.hook(common.json);
  const BenchStepResult result = bench_step(request);
  progress.finish();
  if (!backend->leads()) {
    return kOk;
  }
  const bool cores = request.device.is_cpu();
  const auto measured = [](const BenchStepRow& row) { return row.lacks_memory.empty(); };
  const int code = std::ranges::any_of(result.rows, measured) ? kOk : kFailed;
  if (common.json) {
    Json rows = Json::array();
    for (const BenchStepRow& row : result.rows) {
      rows.push_back(to_json(row));
      if (options.breakdown && measured(row)) {
        rows.back()[cores ? "core_seconds" : "device_seconds"] = parts_to_json(row);
        rows.back()["exposed_s"] = row.exposed_s;
      }
      if (!cores && measured(row)) {
        const auto share = share_of_data_sheet(row, result);
        rows.back()["share_of_data_sheet"] = share ? Json(*share) : Json();
        rows.back()["share_of_large_product"] = share_of_large_product(row, result);
      }
    }
    Json json = {
        {"weights", "random (seed 1)"},
        {"dtype", options.dtype},
        {"ranks", request.ranks},
        {"backend", backend->name()},
        {"device", options.backend.device},
        {"cores", result.cores},
        {"matmul_flops_per_second", result.matmul_flops_per_second},
        {"rows", rows}};
    if (!cores) {
      json.update(card_to_json(result));
    }
    print_json(json);
    return code;
  }
  fmt::print(
      "{} ranks ({}) on {} {} of {:.1f} GFLOP/s each (measured), {}, median of {}\n",
      request.ranks,
      backend->name(),
      result.cores,
      cores ? "cores" : "GPUs",
      result.matmul_flops_per_second / 1e9,
      options.dtype,
      counted(options.repeats, "step"));
  if (!cores) {
    print_card(result);
  }
  print_rows(result, request.model.of_samples(), cores, common);
  constexpr double kBusy = 0.25;  // the slowest step against the fastest
  double spread = 0;
  for (const BenchStepRow& row : result.rows) {
    spread = measured(row) ? std::max(spread, row.worst_s / row.best_s - 1) : spread;
  }
  if (options.repeats > 1 && code == kOk) {
    fmt::print("{}\n", verdict_on_repeats("steps", spread, kBusy, "run it again"));
  }
  if (options.breakdown && code == kOk) {
    print_breakdown(result, cores, common);
  }
  return code;
}

int run_bench_step(const BenchStepOptions& options, const Common& common) {
  expect_ranks(ranks_of(options));
  return on_backend(
      options.backend, given_by(common), [&](const std::shared_ptr<Backend>& backend) {
        return bench_step_on(backend, options, common);
      });
}

}  // namespace

void add_bench(CLI::App& app, Common& common) {
  CLI::App& bench = new_commands(app, "bench", "Measure speed");
  auto [command, options] = add_command<BenchStepOptions>(
      bench,
      common,
      "step",
      "Measure time and memory of training steps, by strategies or plans in turn",
      run_bench_step);
  command
      ->add_option(
          "--model",
          options->model,
          "Hugging Face folder, TOML model file or preset. Weights are always random, since the "
          "measured time does not depend on them")
      ->required();
  command
      ->add_option(
          "--plan",
          options->plans,
          "Plan file to measure (of a run: runs/X/plans/step-00001.json); may be repeated. "
          "Documents or samples are synthetic")
      ->expected(1)
      ->take_all();
  command->add_option(
      "--data",
      options->data,
      "For a video or protein model: frames or alignments; a step takes all of them, as training "
      "plans it");
  command
      ->add_option(
          "--ranks",
          options->ranks,
          "Number of ranks (default: the plan's, or 4; over gloo the number of processes)")
      ->transform(whole_numbers(1, kMostRanks));
  command->add_option("--lengths", options->lengths, "Tokens of a document, as in 256,1024,4096")
      ->delimiter(',')
      ->transform(whole_numbers(1))
      ->default_str("256,1024,4096");
  command
      ->add_option(
          "--attention",
          options->attention,
          "Attention strategies, as in MegatronTS,UlyssesZ. DataZ gives each rank its own "
          "document; "
          "with the others all ranks share one")
      ->delimiter(',')
      ->default_str(kAttention);
  add_mlp(*command, options->mlp);
  add_layer_options(*command, options->options);
  command
      ->add_option(
          "--recompute",
          options->recompute,
          "What is recomputed, as in none,full: none, light, attention-output, full or layer "
          "(layer+light, ...); with --data and --memory-per-rank the default is the least that "
          "fits")
      ->delimiter(',')
      ->default_str("none");
  command->add_option("--dtype", options->dtype, "float32, float64, bfloat16 or float16")
      ->capture_default_str();
  command
      ->add_option(
          "--repeats",
          options->repeats,
          "Number of rounds; each measures a step of every plan, in another order")
      ->transform(whole_numbers(1))
      ->capture_default_str();
  command->add_flag(
      "--no-overlap",
      options->no_overlap,
      "Wait for every message immediately. Communication is not overlapped with computation, which "
      "needs less memory");
  command->add_flag(
      "--no-reshard-after-forward",
      options->keep_weights,
      "Keep gathered weights for the backward pass instead of gathering them again. This may need "
      "memory for a whole model (with --memory-per-rank the default is what fits)");
  command
      ->add_option(
          "--max-grad-norm,--clip-norm",
          options->clip_norm,
          "Clip gradients to this norm, as in training (default: no clipping)")
      ->check(numbers(1e-6));
  command->add_flag(
      "--breakdown",
      options->breakdown,
      "Also print where the CPU time goes, or the GPU time (measured by events)");
  command->add_option(
      "--memory-per-rank", options->memory_per_rank, "Memory budget of each rank, as in 512MiB");
  add_backend_options(*command, options->backend);
  add_device_option(*command, options->backend);
  add_bench_comm(bench, common);
}

}  // namespace paradyse::cli
