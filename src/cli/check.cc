// paradyse check: on this machine, every strategy and recompute level against the one-rank
// reference.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include <fmt/format.h>

#include "paradyse/plan/planner.h"
#include "paradyse/run/data.h"
#include "paradyse/run/gradient_error.h"
#include "paradyse/run/gradients.h"
#include "src/cli/backend_options.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/run/device/device.h"
#include "src/run/reference/reference_model.h"

namespace paradyse::cli {
namespace {

struct CheckOptions {
  std::vector<int> ranks;
  std::string model;
  std::vector<std::string> dtypes = {"float64", "float32"};
  std::vector<std::string> strategies;
  double deadline = 60;
  BackendOptions backend;
};

// Of the loss and every gradient, in the measure of gradient_error.h.
double tolerance(const std::string& dtype) { return dtype == "float64" ? 1e-10 : 2e-5; }

// The measured peak may differ from the fold by this share; all other counts are exact.
constexpr double kPeakTolerance = 0.02;

struct Subject {
  std::string name;
  ModelShape model;
  std::function<void(Parameters& parameters)> fill;
  std::vector<std::vector<std::int32_t>> documents;
  std::vector<std::vector<std::int32_t>> labels;  // of a masked LM
};

// What one layer runs, and the layer after it, and so on in turn.
struct Way {
  std::string name;                                         // "UlyssesZ"
  std::vector<std::pair<std::string, std::string>> layers;  // attention, mlp
};

// The same numbers on every machine: the standard's distributions differ between libraries.
std::vector<std::vector<std::int32_t>> random_documents(
    const std::vector<std::int64_t>& lengths, std::int64_t vocab) {
  std::mt19937_64 random(7);
  std::vector<std::vector<std::int32_t>> documents;
  for (const std::int64_t length : lengths) {
    auto& document = documents.emplace_back();
    for (std::int64_t i = 0; i < length; ++i) {
      document.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocab)));
    }
  }
  return documents;
}

// Of a masked LM: about every third token is another one.
std::vector<std::vector<std::int32_t>> labels_of(
    const ModelShape& model, const std::vector<std::vector<std::int32_t>>& documents) {
  if (!model.masked_lm) {
    return {};
  }
  std::mt19937_64 random(8);
  std::vector<std::vector<std::int32_t>> labels = documents;
  for (auto& of_document : labels) {
    for (std::int32_t& label : of_document) {
      const auto id = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(model.vocab));
      label = random() % 3 == 0 ? id : kNoLabel;
    }
  }
  return labels;
}

// Weights wide enough, and norms apart enough from one, that no mistake hides behind them.
void fill_widely(Parameters& parameters) {
  parameters.initialize(11);
  for (PartParameters& part : parameters.parts()) {
    for (const at::Tensor& vector : part.vectors) {
      const at::Tensor place = at::arange(vector.size(0), at::kFloat);
      vector.add_(0.25 * at::cos(place).to(vector.device()));
    }
  }
}

// Sizes that 2, 3 and 4 do not divide; documents of 1, 2 and 3 tokens among longer ones.
std::vector<Subject> built_in_subjects() {
  const auto subject = [](const char* name, ModelShape model, std::vector<std::int64_t> lengths) {
    model.layers = 2;
    model.rope_theta = 500.0;
    model.initializer_range = 0.2;  // at 0.3 the noise in a key bias's zero gradient nears 2e-5
    const auto documents = random_documents(lengths, model.vocab);
    return Subject{
        .name = name,
        .model = model,
        .fill = fill_widely,
        .documents = documents,
        .labels = labels_of(model, documents)};
  };
  ModelShape grouped;  // query heads share key/value heads
  grouped.hidden = 12;
  grouped.heads = 6;
  grouped.kv_heads = 2;
  grouped.head_dim = 4;
  grouped.ffn = 13;
  grouped.vocab = 31;
  ModelShape shared = grouped;  // one key/value head, tied head
  shared.heads = 5;
  shared.kv_heads = 1;
  shared.hidden = 14;
  shared.ffn = 11;
  shared.vocab = 29;
  shared.tied = true;
  ModelShape few = grouped;  // fewer heads, and rows of all else, than ranks
  few.heads = 2;
  few.kv_heads = 2;
  few.ffn = 3;
  few.vocab = 7;
  ModelShape qwen2 = grouped;
  qwen2.architecture = "qwen2";
  qwen2.qkv_bias = true;
  ModelShape qwen3 = grouped;
  qwen3.architecture = "qwen3";
  qwen3.qk_norm = true;
  ModelShape gpt2;  // learned positions, LayerNorm, biases; as many key/value heads as query heads
  gpt2.architecture = "gpt2";
  gpt2.hidden = 15;
  gpt2.heads = gpt2.kv_heads = 3;
  gpt2.head_dim = 5;
  gpt2.ffn = 13;
  gpt2.vocab = 31;
  gpt2.max_positions = 20;
  gpt2.learned_positions = gpt2.layer_norm = true;
  gpt2.qkv_bias = gpt2.out_bias = gpt2.mlp_bias = true;
  gpt2.tied = true;
  gpt2.activation = Activation::gelu_tanh;
  ModelShape opt = gpt2;
  opt.architecture = "opt";
  opt.position_offset = 2;
  opt.activation = Activation::relu;
  ModelShape bert = gpt2;  // bidirectional, norms after the sums, masked tokens
  bert.architecture = "bert";
  bert.causal = false;
  bert.post_norm = bert.masked_lm = true;
  bert.segments = 2;
  bert.activation = Activation::gelu;
  return {
      subject("gqa 6/2", grouped, {1, 9, 2, 17, 3}),
      subject("mqa 5/1 tied", shared, {3, 1, 8, 2}),
      subject("mha 2/2", few, {1, 2, 6}),
      subject("qwen2", qwen2, {3, 1, 8}),
      subject("qwen3", qwen3, {3, 1, 8}),
      subject("gpt2", gpt2, {3, 1, 8}),
      subject("opt", opt, {3, 1, 8}),
      subject("bert", bert, {3, 1, 8})};
}

Subject given_subject(const std::string& path, bool quiet) {
  const ModelInput input = open_model_input(path, quiet);
  const ModelShape model = without_dropout(input.folder.shape);
  std::vector<std::int64_t> lengths = {1, 9, 2, 17, 3};
  for (std::int64_t& length : lengths) {
    length = model.learned_positions ? std::min(length, model.max_positions) : length;
  }
  const auto documents = random_documents(lengths, model.vocab);
  return {
      .name = path,
      .model = model,
      .fill = input.fill,
      .documents = documents,
      .labels = labels_of(model, documents)};
}

// The weights as a rank of this dtype holds them, whole and in float64.
std::map<std::string, at::Tensor> whole_weights(const Subject& subject, const std::string& dtype) {
  std::map<std::string, at::Tensor> weights;
  run_local_ranks(1, {}, [&](Communicators& communicators) {
    Parameters parameters(subject.model, 1, 0, parameter_types(dtype), /*gradients=*/false);
    subject.fill(parameters);
    collect(
        parameters,
        Which::weights,
        communicators.world(),
        [&](const std::string& name, const at::Tensor& tensor) { weights[name] = tensor; });
  });
  for (auto& [name, tensor] : weights) {  // outside collect()'s inference mode: autograd needs them
    tensor = tensor.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
  }
  return weights;
}

struct Worst {
  double error = 0;   // infinite where something is no number
  std::string place;  // "gqa 6/2, 3 ranks, loss"
};

// One row of the table.
struct Row {
  std::string way;
  std::string recompute;
  std::string dtype;
  std::vector<Worst> worst;                // [index of ranks]
  std::vector<std::string> counts_differ;  // what does not equal the fold
};

// What the run counted but the folds did not say.
void compare_counts(
    const Subject& subject,
    const Plan& plan,
    const std::string& dtype,
    const GradientAnswer& answer,
    Row& row) {
  const Precision precision = precision_of(dtype);
  for (int r = 0; r < plan.ranks; ++r) {
    const std::int64_t elements =
        stored_elements(subject.model, plan.weight_domain, r % plan.weight_domain);
    const RankReport predicted = predicted_report(
        plan, subject.model, r, precision, elements * (precision.activation + precision.statistic));
    const RankReport& measured = answer.ranks[static_cast<std::size_t>(r)];
    const auto expect = [&](const char* what, std::int64_t is, std::int64_t said, double slack) {
      const auto difference = static_cast<double>(is > said ? is - said : said - is);
      if (difference > slack * static_cast<double>(said)) {
        row.counts_differ.push_back(fmt::format(
            "{}, {} recompute {}, {}, rank {} of {}: {} {}, predicted {}",
            subject.name,
            row.way,
            row.recompute,
            dtype,
            r,
            plan.ranks,
            what,
            is,
            said));
      }
    };
    expect("bytes sent", measured.bytes_sent, predicted.bytes_sent, 0);
    expect("messages", measured.messages, predicted.messages, 0);
    expect("saved bytes", measured.saved_bytes, predicted.saved_bytes, 0);
    expect("peak bytes", measured.peak_bytes, predicted.peak_bytes, kPeakTolerance);
  }
}

void run_case(
    const Subject& subject,
    const Way& way,
    Recompute level,
    std::size_t ranks_index,
    int ranks,
    const reference::Answer& expected,
    const std::shared_ptr<Backend>& backend,
    c10::Device device,
    Row& row) {
  std::vector<LayerChoice> layers;
  for (std::int64_t l = 0; l < subject.model.layers; ++l) {
    const auto& [attention, mlp] = way.layers[static_cast<std::size_t>(l) % way.layers.size()];
    layers.push_back(text_layer(attention, mlp, level, level));
  }
  std::vector<std::int64_t> lengths;
  for (const auto& document : subject.documents) {
    lengths.push_back(static_cast<std::int64_t>(document.size()));
  }
  const Plan plan = uniform_plan(subject.model, lengths, ranks, layers);
  const GradientAnswer answer = gradients(
      {.model = &subject.model,
       .fill = subject.fill,
       .plan = &plan,
       .documents = subject.documents,
       .labels = subject.labels,
       .dtype = row.dtype,
       .backend = backend,
       .device = device});
  if (!backend->leads()) {
    return;
  }
  const auto note = [&](double error, const std::string& what) {
    const double judged = std::isfinite(error) ? error : INFINITY;  // a NaN is never largest
    if (Worst& worst = row.worst[ranks_index]; worst.place.empty() || judged > worst.error) {
      worst = {judged, fmt::format("{}, {} ranks, {}", subject.name, ranks, what)};
    }
  };
  const double difference = std::abs(answer.batch.loss - expected.loss);
  note(difference == 0 ? 0 : difference / std::abs(expected.loss), "loss");
  const GradientError error = compare_gradients(answer.gradients, expected.gradients);
  note(error.worst, "gradient of " + error.worst_name);
  compare_counts(subject, plan, row.dtype, answer, row);
}

// Every strategy with its own verb and with the others; layers that differ.
std::vector<Way> ways(const std::vector<std::string>& wanted) {
  std::vector<Way> all;
  for (const Strategy& s : strategies("attention")) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), s.name) == wanted.end()) {
      continue;
    }
    for (const Verb mlp : {Verb::hold, Verb::gather, Verb::pass}) {
      if (!s.one_rank || mlp == Verb::gather) {  // one rank is not the whole domain
        all.push_back(
            {.name = s.name + "+" + to_string(mlp), .layers = {{s.name, to_string(mlp)}}});
      }
    }
  }
  Way mixed{.name = "mixed layers", .layers = {}};
  for (const Way& way : all) {
    if (!strategy("attention", way.layers[0].first).one_rank) {
      mixed.layers.push_back(way.layers[0]);
    }
  }
  std::reverse(mixed.layers.begin(), mixed.layers.end());
  if (mixed.layers.size() > 2) {
    // neighbours differ in both parts
    mixed.layers = {mixed.layers.front(), mixed.layers.back()};
    all.push_back(mixed);
  }
  return all;
}

bool near(const Row& row) {
  return std::ranges::all_of(
      row.worst, [&](const Worst& worst) { return worst.error <= tolerance(row.dtype); });
}

std::string short_number(double error) { return fmt::format("{:.1e}", error); }

Json json_of(const std::vector<Row>& rows, const std::vector<int>& ranks, bool ok) {
  Json json = {{"ok", ok}, {"rows", Json::array()}};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      json["rows"].push_back(
          {{"strategy", row.way},
           {"recompute", row.recompute},
           {"dtype", row.dtype},
           {"ranks", ranks[i]},
           {"error", row.worst[i].error},  // infinite: null
           {"place", row.worst[i].place},
           {"tolerance", tolerance(row.dtype)}});
    }
  }
  json["counts_differ"] = Json::array();
  for (const Row& row : rows) {
    for (const std::string& difference : row.counts_differ) {
      json["counts_differ"].push_back(difference);
    }
  }
  return json;
}

void print(const std::vector<Row>& rows, const std::vector<int>& ranks, bool ok) {
  std::vector<std::vector<std::string>> table(1);
  table[0] = {"strategy", "recompute", "dtype"};
  for (const int p : ranks) {
    table[0].push_back(fmt::format("{} rank{}", p, p == 1 ? "" : "s"));
  }
  table[0].insert(table[0].end(), {"tolerance", "counts", ""});
  for (const Row& row : rows) {
    auto& line = table.emplace_back();
    line = {row.way, row.recompute, row.dtype};
    for (const Worst& worst : row.worst) {
      line.push_back(short_number(worst.error));
    }
    line.push_back(short_number(tolerance(row.dtype)));
    line.emplace_back(row.counts_differ.empty() ? "equal" : "DIFFER");
    line.emplace_back(near(row) ? "ok" : "TOO FAR");
  }
  fmt::print(
      "Worst relative error of the loss and every gradient, against plain autograd on one rank in\n"
      "float64; counts: bytes sent, messages, saved bytes and peak against their "
      "prediction.\n\n{}\n",
      aligned(table, 3));
  for (const Row& row : rows) {
    if (!near(row)) {
      const Worst worst = *std::ranges::max_element(row.worst, {}, &Worst::error);
      fmt::print(
          "too far: {} recompute {} {}: {} in {}\n",
          row.way,
          row.recompute,
          row.dtype,
          short_number(worst.error),
          worst.place);
    }
    for (std::size_t i = 0; i < row.counts_differ.size() && i < 3; ++i) {
      fmt::print("counts differ: {}\n", row.counts_differ[i]);
    }
  }
  fmt::print("{}\n", ok ? "ok: everything is within its tolerance" : "FAILED");
}

int check_on(
    const std::shared_ptr<Backend>& backend,
    const std::vector<int>& ranks,
    const CheckOptions& options,
    const Common& common) {
  const std::vector<Subject> subjects =
      options.model.empty() ? built_in_subjects()
                            : std::vector<Subject>{given_subject(options.model, !backend->leads())};
  const c10::Device device = device_named(options.backend.device);
  std::vector<Row> rows;
  for (const std::string& dtype : options.dtypes) {
    std::vector<reference::Answer> expected;
    for (const Subject& subject : subjects) {
      expected.push_back(reference::model(
          subject.model, whole_weights(subject, dtype), subject.documents, subject.labels));
    }
    for (const Way& way : ways(options.strategies)) {
      for (const Recompute level : kRecomputeLevels) {
        Row& row = rows.emplace_back();
        row.way = way.name;
        row.recompute = to_string(level);
        row.dtype = dtype;
        row.worst.resize(ranks.size());
        for (std::size_t i = 0; i < ranks.size(); ++i) {
          for (std::size_t s = 0; s < subjects.size(); ++s) {
            run_case(subjects[s], way, level, i, ranks[i], expected[s], backend, device, row);
          }
        }
      }
    }
  }
  if (!backend->leads()) {
    return kOk;
  }
  const bool ok = std::all_of(rows.begin(), rows.end(), [](const Row& row) {
    return near(row) && row.counts_differ.empty();
  });
  if (common.json) {
    print_json(json_of(rows, ranks, ok));
  } else {
    print(rows, ranks, ok);
  }
  return ok ? kOk : kFailed;
}

int run_check(const CheckOptions& options, const Common& common) {
  for (const std::string& dtype : options.dtypes) {
    expect_one_of("--dtype", dtype, {"float64", "float32"});
  }
  for (const std::string& name : options.strategies) {
    strategy("attention", name);  // throws for an unknown one
  }
  std::vector<int> ranks = options.ranks;
  if (ranks.empty()) {
    const int processes = ranks_of(options.backend, 0, 0);
    for (int p = 1; p <= (processes == 0 ? 4 : processes); ++p) {
      ranks.push_back(p);
    }
  }
  return on_backend(
      options.backend, options.deadline, [&](const std::shared_ptr<Backend>& backend) {
        return check_on(backend, ranks, options, common);
      });
}

}  // namespace

void add_check(CLI::App& app, Common& common) {
  auto [command, options] = add_command<CheckOptions>(
      app,
      common,
      "check",
      "Hold every strategy and recompute level against plain autograd on one rank",
      run_check);
  command
      ->add_option(
          "--ranks",
          options->ranks,
          "Numbers of ranks (default: 1 2 3 4; over gloo 1 to the number of processes)")
      ->delimiter(',')
      ->check(whole_numbers(1, kMostRanks));
  command->add_option(
      "--model",
      options->model,
      "A small model folder or TOML file (default: built-in models of odd sizes)");
  command->add_option("--dtype", options->dtypes, "float64, float32 (default: both)")
      ->delimiter(',');
  command->add_option("--strategy", options->strategies, "Attention strategies (default: all)")
      ->delimiter(',');
  command
      ->add_option(
          "--deadline",
          options->deadline,
          "Seconds a rank may wait for another before all end with an error (default: 60)")
      ->check(seconds());
  add_backend_options(*command, options->backend);
  add_device_option(*command, options->backend);
}

}  // namespace paradyse::cli
