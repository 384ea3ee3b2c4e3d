// paradyse grad: loss and every gradient of one batch, to hold against another framework.
#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/gradients.h"
#include "src/cli/backend_options.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/cli/tell.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/base/text_match.h"
#include "src/plan/config/fields.h"
#include "src/plan/plan/explain.h"
#include "src/run/data/data_report.h"
#include "src/run/data/grid_data.h"
#include "src/run/device/device.h"
#include "src/run/execute/memory_budget.h"
#include "src/run/train/run_inputs.h"
#include "src/run/weights/safetensors.h"

namespace paradyse::cli {
namespace {

namespace fs = std::filesystem;

// Says in the file's metadata what it is.
constexpr const char* kContents = "gradients of paradyse";

struct GradOptions {
  std::string model;
  bool random_weights = false;
  std::vector<std::string> data;
  bool bytes = false;
  std::vector<std::string> settings;  // of [data]
  int ranks = 0;                      // 0: the plan's, or 1
  std::string attention;
  std::string mlp;
  std::string recompute;
  StrategyOptions options;
  std::string plan;
  std::string dtype = "float64";
  std::string memory_per_rank;
  std::optional<std::uint64_t> dropout_seed;
  double attention_dropout = -1;  // negative: the model's own
  std::string out;
  BackendOptions backend;
};

constexpr const char* kDefaultAttention = "UlyssesZ";
constexpr std::uint64_t kSeed = 1;  // of random weights

// `ranks` 0: not said.
void expect_ranks_of(const Plan& plan, const GradOptions& options, int ranks) {
  if (ranks != 0 && ranks != plan.ranks) {
    throw std::invalid_argument(fmt::format(
        "{}: the plan is for {} ranks, but --ranks is {}; leave --ranks out, or make a new plan",
        options.plan,
        plan.ranks,
        ranks));
  }
}

// The plan of the options, or one in which all layers run alike.
// `ranks` 0: not said.
Plan plan_of(
    const GradOptions& options,
    const Model& model,
    const std::vector<std::int64_t>& lengths,
    int ranks) {
  if (options.plan.empty()) {
    const LayerChoice layer = layer_named(
        options.attention.empty() ? kDefaultAttention : options.attention,
        options.mlp,
        options.recompute,
        options.options);
    const std::vector<LayerChoice> layers(idx(model.layers), layer);
    return uniform_plan(model, lengths, ranks == 0 ? 1 : ranks, layers);
  }
  for (const auto& [option, value] :
       {std::pair{"--attention", options.attention},
        std::pair{"--mlp", options.mlp},
        std::pair{"--recompute", options.recompute}}) {
    if (!value.empty()) {
      throw std::invalid_argument(
          std::string("--plan and ") + option +
          " exclude each other: the plan says what each part runs; give one of them");
    }
  }
  if (!options.options.empty()) {
    throw std::invalid_argument(
        options.options.begin()->first +
        " cannot be given with --plan: the plan says what each part runs");
  }
  Plan plan = read_plan(options.plan);
  expect_ranks_of(plan, options, ranks);
  if (const std::string note = note_of_tiles(plan, model.tiles()); !note.empty()) {
    tell("paradyse: note: {}\n", note);
  }
  if (plan.lengths != lengths) {
    std::size_t d = 0;
    while (d < lengths.size() && d < plan.lengths.size() && lengths[d] == plan.lengths[d]) {
      ++d;
    }
    const auto tokens = [d](const std::vector<std::int64_t>& of) {
      return d < of.size() ? fmt::format("{} tokens", of[d]) : std::string("is not there");
    };
    throw std::invalid_argument(fmt::format(
        "{}: lengths: the plan has {} documents, {} has {}; the first difference is document {}: "
        "{} in the plan, {} in the data; make a plan for these documents",
        options.plan,
        plan.lengths.size(),
        joined(options.data, ", "),
        lengths.size(),
        d,
        tokens(plan.lengths),
        tokens(lengths)));
  }
  return plan;
}

// What is asked of which model, whatever its family.
struct Question {
  ModelFolder folder;
  Model model;
  ModelWeights weights;
  Plan plan;
  std::vector<OwnedItem> items = {};
  DataCounts counts = {};  // of documents
  std::string data = {};   // a hash of all items
};

// Throws unless the plan is sound and, as far as can be predicted, fits.
void expect_sound(
    const Plan& plan, CheckContext context, const GradOptions& options, std::int64_t memory) {
  const Precision precision = precision_of(dtype_option(options.dtype));
  context.precision = precision;
  const std::string source = options.plan.empty() ? "" : options.plan + ": ";
  const auto unsound = problems(plan, context);
  if (!unsound.empty()) {
    throw std::invalid_argument(source + list_of(unsound));
  }
  if (memory > 0) {
    context.memory_per_rank = memory;
    context.keeps = Keeps::gradients;
    const auto too_large = problems(plan, context);
    if (!too_large.empty()) {
      throw OutOfMemory(
          source + "it does not fit in --memory-per-rank " + bytes_text(memory) + ": " +
          list_of(too_large));
    }
  }
}

void expect_no_input_overwritten(const GradOptions& options) {
  const fs::path model = options.model;
  std::vector<fs::path> inputs = {
      model, model / "model.safetensors", model / "config.json", fs::path(options.plan)};
  inputs.insert(inputs.end(), options.data.begin(), options.data.end());
  for (const fs::path& input : inputs) {
    std::error_code error;
    if (fs::equivalent(options.out, input, error)) {
      throw std::invalid_argument(
          "--out " + options.out + " is an input of this command; give another file");
    }
  }
}

Json parts_of(const Plan& plan) {
  Json parts = Json::array();
  for (const auto& [name, program] : plan.programs) {
    std::int64_t layer = 0;
    for (const LayerChoice& choices_of_layer : choices(program)) {
      for (const PartChoice& choice : choices_of_layer) {
        Json one = {
            {"layer", layer},
            {"part", choice.part},
            {"strategy", strategy(kind_of(choice.part), choice.strategy).name},
            {"recompute",
             to_string(LayerRecompute{.parts = choice.recompute, .layer = choice.with_layer})}};
        if (plan.programs.size() > 1) {
          one["program"] = name;
        }
        parts.push_back(std::move(one));
      }
      ++layer;
    }
  }
  return parts;
}

Json json_of(const GradientAnswer& answer, const Question& question) {
  Json json = {{"loss", answer.batch.loss}, {"tokens", answer.batch.predicted_tokens}};
  json["documents"] = Json::array();
  for (std::size_t d = 0; d < answer.batch.counts.size(); ++d) {
    json["documents"].push_back(
        {{"sum", answer.batch.loss_sums[d]}, {"count", answer.batch.counts[d]}});
  }
  json["ranks"] = Json::array();
  for (const RankReport& rank : answer.ranks) {
    json["ranks"].push_back(
        {{"bytes_sent", rank.bytes_sent},
         {"messages", rank.messages},
         {"saved_bytes", rank.saved_bytes},
         {"peak_bytes", rank.peak_bytes}});
  }
  json["parts"] = parts_of(question.plan);
  if (!question.model.of_samples()) {
    json["data"] = json_of(question.counts);
  }
  return json;
}

void print(const GradientAnswer& answer, const std::string& out, const Common& common) {
  fmt::print(
      "loss {:.12g}, mean over {} predicted tokens of {} documents\n\n",
      answer.batch.loss,
      answer.batch.predicted_tokens,
      answer.batch.counts.size());
  std::vector<std::vector<std::string>> rows = {{"rank", "sent", "messages", "saved", "peak"}};
  for (std::size_t r = 0; r < answer.ranks.size(); ++r) {
    const RankReport& rank = answer.ranks[r];
    rows.push_back(
        {std::to_string(r),
         bytes_text(rank.bytes_sent),
         std::to_string(rank.messages),
         bytes_text(rank.saved_bytes),
         bytes_text(rank.peak_bytes)});
  }
  fmt::print("{}\ngradients: {}\n", common.table(rows, {.left = 0}), out);
}

// Of a model of several dims: the plan of the options, or the one that sends least.
Plan layouts_of(
    const GradOptions& options,
    const Model& model,
    const GridData& data,
    int ranks,
    std::int64_t memory) {
  constexpr const char* kByPlan = "use --plan to say what each part runs";
  constexpr const char* kWithout = "its gradients are computed without dropout: leave it out";
  for (const auto& [option, given, advice] :
       {std::tuple{"--attention", !options.attention.empty(), kByPlan},
        {"--mlp", !options.mlp.empty(), kByPlan},
        {"--dropout-seed", options.dropout_seed.has_value(), kWithout},
        {"--attention-dropout", options.attention_dropout >= 0, kWithout}}) {
    if (given) {
      throw std::invalid_argument(
          fmt::format("{} does not apply to a model of type {}; {}", option, model.family, advice));
    }
  }
  if (!options.options.empty()) {
    throw std::invalid_argument(
        options.options.begin()->first + " is an option for language models");
  }
  if (options.plan.empty()) {
    Precision precision = precision_of(dtype_option(options.dtype));
    precision.optimizer_on_host = true;  // there is none
    const std::unique_ptr<BatchPlanner> planner = batch_planner(
        {.model = model,
         .ranks = ranks == 0 ? 1 : ranks,
         .machine = {},
         .precision = precision,
         .memory_per_rank = memory,
         .recompute = options.recompute});
    BatchPlanner::Answer answer = planner->plan(data.sizes());
    if (!answer.plan) {
      throw OutOfMemory("--memory-per-rank " + bytes_text(memory) + ": " + answer.why_not);
    }
    Plan plan = *std::move(answer.plan);
    plan.messages.overlap = false;  // as lean as the plans of documents
    return plan;
  }
  if (!options.recompute.empty()) {
    throw std::invalid_argument(
        "--plan and --recompute exclude each other: the plan says what each part runs; give one of "
        "them");
  }
  Plan plan = read_plan(options.plan);
  expect_ranks_of(plan, options, ranks);
  if (const BatchSizes sizes = sizes_of(plan);
      sizes.dims != data.sizes().dims || std::ssize(plan.lengths) != data.size()) {
    const auto text = [](const BatchSizes& batch) {
      std::string in_order;
      for (std::size_t first = 0, next = 0; first < batch.dims.size(); first = next) {
        while (next < batch.dims.size() && batch.dims[next] == batch.dims[first]) {
          ++next;
        }
        in_order += fmt::format("{}{} of", first == 0 ? "" : ", then ", next - first);
        for (const auto& [name, size] : batch.dims[first]) {
          in_order += fmt::format(" {} {}", name, size);
        }
      }
      return in_order;
    };
    throw std::invalid_argument(fmt::format(
        "{}: the plan is for samples of other sizes ({}) than {} has ({}); make a plan for these",
        options.plan,
        text(sizes),
        options.data.front(),
        text(data.sizes())));
  }
  return plan;
}

// Those of [data] that say how the data of such models is read.
std::vector<std::string> reading_keys(const std::string& models) {
  std::vector<std::string> keys = keys_known_by(models);
  std::erase_if(keys, [](const std::string& key) {
    return section_of(key) != "data" || key == "data.weights";
  });
  return keys;
}

void expect_reading_keys(const std::vector<std::string>& settings, const std::string& models) {
  const std::vector<std::string> taken = reading_keys(models);
  for (const std::string& setting : settings) {
    if (std::ranges::find(taken, setting.substr(0, setting.find('='))) == taken.end()) {
      throw std::invalid_argument(fmt::format(
          "--set {}: for this model grad accepts {}",
          setting,
          taken.empty() ? "no key" : "only these keys: " + joined(taken, ", ")));
    }
  }
}

Question sample_question(
    const GradOptions& options,
    const ModelInput& input,
    int ranks,
    std::int64_t memory,
    bool quiet) {
  const Model model = without_dropout(input.folder.model);
  if (options.backend.device != "cpu" && !model.limits.gpus) {
    throw std::invalid_argument(
        "--device: multi-axis models (video, protein) run only on CPUs so far");
  }
  if (options.bytes) {
    throw std::invalid_argument(fmt::format(
        "--bytes is for language models, but --model is of type {}: leave it out", model.family));
  }
  expect_reading_keys(options.settings, known_to(model));
  const RunConfig config = load_config("", options.settings).config;
  const GridData data = reading([&] {
    return read_grid_data({options.data.begin(), options.data.end()}, model, config.data);
  });
  Question question{
      .folder = input.folder,
      .model = model,
      .weights = input.weights,
      .plan = layouts_of(options, model, data, ranks, memory)};
  expect_ranks(question.plan.ranks);
  expect_sound(question.plan, {.model = model}, options, memory);
  for (Sample& sample : data.samples(kSeed)) {
    question.items.emplace_back(std::move(sample));
  }
  question.data = data.fingerprint();
  if (!quiet) {
    tell("paradyse: note: noise and masks use seed {}\n", kSeed);
    for (const std::string& note : data.notes()) {
      tell("paradyse: note: {}\n", note);
    }
  }
  return question;
}

// As eval and train have it, but that short documents stay in their places.
RunConfig data_config(const GradOptions& options) {
  expect_reading_keys(options.settings, kDocuments);
  std::vector<std::string> settings = {"data.min_tokens=0"};
  settings.insert(settings.end(), options.settings.begin(), options.settings.end());
  if (options.bytes) {
    settings.emplace_back("data.bytes=true");
  }
  return load_config("", settings).config;
}

Question text_question(
    const GradOptions& options,
    const ModelInput& input,
    int ranks,
    std::int64_t memory,
    bool quiet) {
  Model model = input.folder.model;
  if (!options.dropout_seed) {
    model = without_dropout(model);
  }
  if (options.attention_dropout >= 0) {
    if (options.attention_dropout > 0 && !options.dropout_seed) {
      throw std::invalid_argument(
          "--attention-dropout is given without --dropout-seed, which draws dropout: give it, too");
    }
    if (options.attention_dropout >= 1) {
      throw std::invalid_argument(fmt::format(
          "--attention-dropout {}: accepted is a number from 0 to below 1",
          options.attention_dropout));
    }
    model = with_attention_dropout(model, options.attention_dropout);
  }
  expect_trainable(model);
  model = with_tiles(
      model, tiles_for(device_named(options.backend.device), model, dtype_option(options.dtype)));
  const Corpus corpus =
      corpus_at("--data", options.data, data_config(options), input.folder.path, model);
  if (!quiet) {
    for (const std::string& line : data_lines(corpus.counts)) {
      tell("{}\n", line);
    }
  }
  std::vector<std::int64_t> lengths;
  for (std::int64_t d = 0; d < corpus.size(); ++d) {
    lengths.push_back(corpus.length(d));
  }
  Question question{
      .folder = input.folder,
      .model = model,
      .weights = input.weights,
      .plan = plan_of(options, model, lengths, ranks),
      .counts = corpus.counts};
  expect_ranks(question.plan.ranks);
  expect_sound(question.plan, {.model = model}, options, memory);
  question.data = corpus.fingerprint();
  reading(
      [&] {
        for (std::int64_t d = 0; d < corpus.size(); ++d) {
          question.items.emplace_back(corpus.document(d));
        }
      },
      "--data");
  return question;
}

int grad_on(
    const std::shared_ptr<Backend>& backend, const GradOptions& options, const Common& common) {
  const std::int64_t memory = memory_limit(options.memory_per_rank);
  const int ranks = ranks_of(options.backend, options.ranks, 0);
  const bool quiet = !backend->leads();
  const ModelInput input = open_model_input(options.model, options.random_weights, quiet, kSeed);
  const auto question_of = input.folder.model.of_samples() ? sample_question : text_question;
  const Question question = question_of(options, input, ranks, memory, quiet);
  const Plan& plan = question.plan;
  std::vector<Given> given =
      given_model("--model", question.folder, question.weights, plan.ranks, *backend);
  given.push_back({"the contents of --data", "XXH64 " + question.data});
  given.push_back({"the plan", "SHA-256 " + hash(plan)});
  expect_same_on_ranks(given, plan.ranks, *backend);

  // Opened first: a file that cannot be written is known before the work is done.
  expect_no_input_overwritten(options);
  const at::ScalarType stored = parameter_types(dtype_option(options.dtype)).gradient;
  std::vector<std::pair<std::string, StoredTensor>> tensors;
  for (const auto& [name, sizes] : parameter_shapes(question.model, Which::gradients)) {
    tensors.emplace_back(name, StoredTensor{.dtype = stored, .shape = sizes});
  }
  std::optional<SafetensorsWriter> writer;
  if (backend->leads()) {
    reading([&] {
      writer.emplace(
          options.out,
          tensors,
          std::map<std::string, std::string>{{"contents", kContents}, {"format", "pt"}});
    });
  }

  const c10::Device device = device_named(options.backend.device);
  std::optional<Waiting> waiting(
      std::in_place, "forward and backward", common.json || !backend->leads());
  const GradientAnswer answer = gradients(
      {.model = question.model,
       .fill = [&](Parameters& parameters) { question.weights.fill(parameters); },
       .plan = &plan,
       .items = items_of(question.items),
       .dropout_seed = options.dropout_seed.value_or(0),
       .dtype = dtype_option(options.dtype),
       .memory_per_rank = memory_budget(memory, plan.ranks, *backend, device),
       .backend = backend,
       .device = device});
  waiting.reset();
  if (!backend->leads()) {
    return kOk;
  }
  expect_finite(answer);
  for (const auto& [name, unused] : tensors) {
    writer->write(name, answer.gradients.at(name));
  }
  writer->finish();

  if (answer.batch.predicted_tokens == 0) {
    tell(
        "paradyse: note: no label of the {} {} counts: there is nothing to predict, and the loss "
        "and all gradients are 0\n",
        answer.batch.counts.size(),
        question.model.of_samples() ? "samples" : "documents");
  }
  if (common.json) {
    Json json = json_of(answer, question);
    json["model"] = cli::json_of(question.weights);
    print_json(json);
  } else {
    print(answer, options.out, common);
  }
  return kOk;
}

int run_grad(const GradOptions& options, const Common& common) {
  dtype_option(options.dtype);  // throws for an unknown one
  expect_ranks(ranks_of(options.backend, options.ranks, 1));
  return on_backend(
      options.backend, given_by(common), [&](const std::shared_ptr<Backend>& backend) {
        return grad_on(backend, options, common);
      });
}

}  // namespace

void add_grad(CLI::App& app, Common& common) {
  auto [command, options] = add_command<GradOptions>(
      app,
      common,
      "grad",
      "Write the gradients of one batch (mean token loss) under Hugging Face names",
      run_grad);
  command
      ->add_option(
          "--model",
          options->model,
          "Hugging Face model folder with weights, or TOML model file (random weights, seed 1).  "
          "Also stdit, evoformer, extra-msa, and TOML files of these types")
      ->required();
  add_random_weights(*command, options->random_weights);
  command
      ->add_option(
          "--data",
          options->data,
          "FILE.jsonl with one document a line, {\"tokens\": [...]}; all documents form one batch "
          "(those of 0 or 1 tokens count 0).  \"labels\": [...] has one label for each token "
          "(-100: none).  Token i predicts label i + 1; in a masked LM, which needs labels, token "
          "i predicts label i.  All other data that eval takes work too.  For stdit: safetensors "
          "with latents [clips, channels, frames, height, width]; for evoformer: an alignment "
          "(Stockholm or A3M)")
      ->option_text("PATH ...")
      ->required();
  command->add_flag(
      "--bytes",
      options->bytes,
      "Use the bytes of text as token ids although the model has a tokenizer");
  command
      ->add_option(
          "--set",
          options->settings,
          fmt::format(
              "Set a data key, as in --set data.max_tokens=512, as in train and eval.  Keys for "
              "documents: {} (data.min_tokens is 0 by default); for alignments: {}",
              joined(reading_keys(kDocuments), ", "),
              joined(reading_keys("evoformer"), ", ")))
      ->expected(1)
      ->take_all();
  command
      ->add_option(
          "--ranks",
          options->ranks,
          "Number of ranks (default: the plan's, or 1; over gloo the number of processes)")
      ->transform(whole_numbers(1, kMostRanks));
  command->add_option(
      "--attention",
      options->attention,
      std::string("Attention strategy; docs/reference/strategies.md lists them (default: ") +
          kDefaultAttention + ")");
  add_mlp(*command, options->mlp);
  add_layer_options(*command, options->options);
  command->add_option(
      "--recompute",
      options->recompute,
      "What is recomputed: none, light, attention-output or full (each part), or layer, "
      "layer+light, ... (layers as a whole) (default: none)");
  command->add_option(
      "--plan",
      options->plan,
      "Plan file for these documents; not with --attention, --mlp or --recompute");
  command->add_option(
      "--dtype",
      options->dtype,
      "float64 (default), float32, bfloat16 or float16; bfloat16 and float16 sum gradients in "
      "float32");
  command->add_option(
      "--memory-per-rank",
      options->memory_per_rank,
      "Memory budget of each rank, as in 512MiB; exceeding it is an error (default: no limit)");
  command
      ->add_option(
          "--dropout-seed",
          options->dropout_seed,
          "Seed for the model's dropout (default: no dropout)")
      ->transform(whole_numbers(0));
  command
      ->add_option(
          "--attention-dropout",
          options->attention_dropout,
          "With --dropout-seed: use this attention dropout instead of the model's")
      ->check(numbers(0, 1));
  command
      ->add_option(
          "--out",
          options->out,
          "Gradients file (safetensors). Only one of an earlier run is replaced, at the end")
      ->check(replaceable_file(
          "gradients",
          fmt::format(R"({{"__metadata__":{{"contents":"{}")", kContents),
          /*at=*/8))  // the length of its header
      ->required();
  add_backend_options(*command, options->backend);
  add_device_option(*command, options->backend);
}

}  // namespace paradyse::cli
