#include "paradyse/train.h"

#include <algorithm>
#include <cmath>
#include <future>
#include <limits>
#include <numeric>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/checkpoint.h"
#include "paradyse/device.h"
#include "paradyse/machine.h"
#include "paradyse/optimizer.h"
#include "paradyse/play.h"
#include "paradyse/profiler.h"
#include "paradyse/reading.h"
#include "paradyse/run_costs.h"
#include "src/run/execute/gather.h"
#include "src/run/train/broadcast_plan.h"
#include "src/run/train/measure.h"
#include "src/run/train/resume.h"
#include "src/run/train/run_folder.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

TooLong too_long(const std::string& name) {
  return name == "skip" ? TooLong::skip : name == "refuse" ? TooLong::refuse : TooLong::cut;
}

Order order_of(const std::string& name) {
  return name == "sorted"       ? Order::sorted
         : name == "curriculum" ? Order::curriculum
                                : Order::shuffled;
}

void expect_set(const std::string& key, const std::string& value) {
  if (value.empty()) {
    throw std::invalid_argument(
        key + " is not set: write it in the configuration, or --set " + key + "=...");
  }
}

ModelFolder model_at(const RunConfig& config) {
  expect_set("model.path", config.model.path);
  ModelFolder model = reading([&] { return open_model(config.model.path); }, "model.path");
  if (config.model.dropout >= 0) {
    model.shape.residual_dropout = model.shape.embedding_dropout = config.model.dropout;
  }
  if (config.model.attention_dropout >= 0) {
    model.shape.attention_dropout = config.model.attention_dropout;
  }
  return model;
}

Corpus corpus_at(
    const char* key, const std::string& path, const RunConfig& config, const ModelShape& model) {
  DataOptions options;
  options.path = path;
  options.min_tokens = config.data.min_tokens;
  options.max_tokens = config.data.max_tokens > 0 ? config.data.max_tokens : model.max_positions;
  options.too_long = too_long(config.data.too_long);
  options.vocab = model.vocab;
  options.labels = model.masked_lm;
  if (model.learned_positions && options.max_tokens > model.max_positions) {
    throw std::invalid_argument(fmt::format(
        "data.max_tokens is {}, but the model has learned {} positions: accepted is at most that",
        options.max_tokens,
        model.max_positions));
  }
  expect_set(key, path);
  return reading([&] { return read_corpus(options); }, key);
}

PlanningTask planning_task(
    const RunConfig& config,
    const ModelShape& model,
    bool training,
    const MachineNumbers& machine,
    const std::optional<Costs>& costs = std::nullopt) {
  const auto named = [](const std::string& name) { return name == "auto" ? "" : name; };
  PlanningTask task;
  task.model = model;
  task.ranks = static_cast<int>(config.parallel.ranks);
  task.machine = machine;
  task.precision = precision_of(config.train.dtype);
  try {
    task.memory_per_rank = parse_bytes(config.parallel.memory_per_rank);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("parallel.memory_per_rank: ") + error.what());
  }
  task.training = training;
  task.static_bytes_per_element = training ? task.precision.trained() : task.precision.activation;
  task.attention = named(config.parallel.attention);
  task.mlp = named(config.parallel.mlp);
  if (task.mlp.empty() && !task.attention.empty()) {
    task.mlp = to_string(strategy(task.attention).verb);
  }
  task.recompute = named(config.parallel.recompute);
  task.offload = config.parallel.offload;
  task.planner = config.parallel.planner;
  if (costs) {
    go_by(*costs, task);
  }
  return task;
}

MachineNumbers machine_for(const RunConfig& config, const ModelShape& model, Backend& backend) {
  return measure_machine(
      model.hidden,
      model.head_dim,
      static_cast<int>(config.parallel.ranks),
      backend,
      device_named(config.parallel.device));
}

// Which documents each step trains on: drawn in the run's order until a step has its tokens.
std::vector<std::vector<std::int64_t>> steps_of(const RunConfig& config, const Corpus& corpus) {
  std::vector<std::int64_t> lengths;
  for (const Tokens& document : corpus.documents) {
    lengths.push_back(static_cast<std::int64_t>(document.size()));
  }
  if (corpus.counts.tokens == 0) {
    throw std::invalid_argument(
        config.data.path + ": all " + std::to_string(corpus.counts.documents) +
        " documents are empty; give data.path with text in it, or data.min_tokens of at least 1");
  }
  // The order wants the number of draws, which follows from the order: the estimate grows until it
  // suffices.
  const double mean = static_cast<double>(corpus.counts.tokens) /
                      static_cast<double>(std::max<std::int64_t>(1, corpus.counts.documents));
  auto draws = static_cast<std::int64_t>(
      static_cast<double>(config.train.steps) *
      std::ceil(static_cast<double>(config.train.tokens_per_step) / mean + 0.5));
  const auto cut = [&](std::int64_t count) {  // fewer steps than asked for: too few draws
    const std::vector<std::int64_t> order = document_order(
        lengths,
        order_of(config.data.order),
        count,
        config.data.seed,
        config.data.curriculum_share);
    std::vector<std::vector<std::int64_t>> steps;
    std::int64_t tokens = 0;
    std::vector<std::int64_t> step;
    for (const std::int64_t d : order) {
      step.push_back(d);
      tokens += lengths[static_cast<std::size_t>(d)];
      if (tokens >= config.train.tokens_per_step) {
        steps.push_back(std::move(step));
        step.clear();
        tokens = 0;
        if (static_cast<std::int64_t>(steps.size()) == config.train.steps) {
          break;
        }
      }
    }
    return steps;
  };
  const auto drawn = [](const std::vector<std::vector<std::int64_t>>& steps) {
    std::int64_t count = 0;
    for (const auto& step : steps) {
      count += static_cast<std::int64_t>(step.size());
    }
    return count;
  };
  auto steps = cut(draws);
  while (static_cast<std::int64_t>(steps.size()) < config.train.steps) {
    draws += draws / 4 + 1;
    steps = cut(draws);
  }
  // A curriculum's share is of the draws: give it the number that the run really takes.
  for (int i = 0; i < 8 && order_of(config.data.order) == Order::curriculum; ++i) {
    const std::int64_t taken = drawn(steps);
    if (taken >= draws) {
      break;
    }
    auto again = cut(taken);
    if (static_cast<std::int64_t>(again.size()) < config.train.steps) {
      break;
    }
    draws = taken;
    steps = std::move(again);
  }
  return steps;
}

// The largest of every rank's number.
std::int64_t largest(std::int64_t mine, Communicator& world) {
  const HostScope control;
  const at::Tensor all = at::zeros({world.size()}, at::kLong);
  all.mutable_data_ptr<std::int64_t>()[world.rank()] = mine;
  world.all_reduce(all, {.op = "largest", .part = ""});
  const auto* data = all.const_data_ptr<std::int64_t>();
  return *std::max_element(data, data + world.size());
}

double mean(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  return end <= begin ? std::numeric_limits<double>::quiet_NaN()
                      : std::accumulate(
                            values.begin() + static_cast<std::ptrdiff_t>(begin),
                            values.begin() + static_cast<std::ptrdiff_t>(end),
                            0.0) /
                            static_cast<double>(end - begin);
}

// A plan for these documents, or the reason why there is none as an exception.
Plan plan_or_throw(Planner& planner, const std::vector<std::int64_t>& lengths) {
  Planner::Answer answer = planner.plan(lengths);
  if (!answer.plan) {
    throw std::runtime_error(answer.why_not);
  }
  return *std::move(answer.plan);
}

std::vector<std::int64_t> lengths_of(const std::vector<const Tokens*>& documents) {
  std::vector<std::int64_t> lengths;
  for (const Tokens* document : documents) {
    lengths.push_back(static_cast<std::int64_t>(document->size()));
  }
  return lengths;
}

// The labels of some documents of a corpus; none where it has none.
std::vector<const Tokens*> labels_of(
    const Corpus& corpus, const std::vector<std::int64_t>& documents) {
  std::vector<const Tokens*> labels;
  for (const std::int64_t d : documents) {
    if (!corpus.labels.empty()) {
      labels.push_back(&corpus.labels[static_cast<std::size_t>(d)]);
    }
  }
  return labels;
}

// Runs a corpus forward in batches; every rank gets the result.
EvalResult evaluate_corpus(
    const Corpus& corpus,
    std::int64_t tokens_per_batch,
    Planner& planner,
    const RankResources& rank,
    Parameters& parameters,
    const std::atomic<bool>* stop) {
  EvalResult result;
  result.data = corpus.counts;
  const auto begin = Clock::now();
  double sum = 0;
  Communicator& world = rank.world();
  for (std::size_t next = 0; next < corpus.documents.size();) {
    std::vector<const Tokens*> documents;
    std::vector<std::int64_t> numbers;
    std::int64_t tokens = 0;
    while (next < corpus.documents.size() && (tokens < tokens_per_batch || documents.empty())) {
      numbers.push_back(static_cast<std::int64_t>(next));
      documents.push_back(&corpus.documents[next++]);
      tokens += static_cast<std::int64_t>(documents.back()->size());
    }
    std::optional<Plan> plan;
    if (world.rank() == 0 && !(stop != nullptr && stop->load())) {
      plan = plan_or_throw(planner, lengths_of(documents));
    }
    plan = broadcast_plan(plan, world);
    if (!plan) {
      result.interrupted = true;
      break;
    }
    const std::vector<const Tokens*> labels = labels_of(corpus, numbers);
    const BatchResult batch =
        play(*plan, documents, rank, parameters, false, 1, {.labels = labels});
    sum += std::accumulate(batch.loss_sums.begin(), batch.loss_sums.end(), 0.0);
    result.predicted_tokens += batch.predicted_tokens;
    result.documents += static_cast<std::int64_t>(documents.size());
  }
  result.loss = result.predicted_tokens == 0 ? std::numeric_limits<double>::quiet_NaN()
                                             : sum / static_cast<double>(result.predicted_tokens);
  result.seconds = seconds_since(begin);
  result.peak_bytes = largest(rank.memory->peak_bytes(), world);
  return result;
}

void fill(Parameters& parameters, const ModelFolder& model, std::uint64_t seed) {
  if (model.has_weights()) {
    parameters.load(SafetensorsReader(model.path));
  } else {
    parameters.initialize(seed);
  }
}

// One run; its ranks share it and keep their own state on their stacks.
class Run {
 public:
  Run(const LoadedConfig& loaded,
      const TrainHooks& hooks,
      Backend& backend,
      const std::filesystem::path& resume,
      std::filesystem::path replay)
      : loaded_(loaded),
        config_(loaded.config),
        hooks_(hooks),
        backend_(backend),
        replay_(std::move(replay)),
        from_(reopened(resume)),
        device_(device_named(config_.parallel.device)),
        model_(model_at(config_)),
        corpus_(corpus_at("data.path", config_.data.path, config_, model_.shape)),
        corpus_fingerprint_(fingerprint(corpus_)),
        steps_(steps_of(config_, corpus_)),
        // measured anew, plans might be others, and with them the last bits of sums
        machine_(from_ ? from_->state.machine : machine_for(config_, model_.shape, backend)),
        costs_(costs()),
        planner_(planning_task(config_, model_.shape, /*training=*/true, machine_, costs_)) {
    expect_trainable(model_.shape);
    if (from_) {
      expect_same_model(model_.shape, *from_);
      expect_same_data(position(from_->state.step), config_.data.path, *from_);
      if (from_->state.costs == costs_fingerprint()) {
        planner_.learn(from_->state.learned);
      }
    }
    if (!config_.data.eval_path.empty()) {
      eval_ = corpus_at("data.eval_path", config_.data.eval_path, config_, model_.shape);
    }
    if (!backend_.leads()) {
      return;
    }
    note(
        costs_ ? fmt::format(
                     "plans go by the {} model of measured costs{}",
                     costs_->best,
                     config_.costs.correct ? ", corrected by what steps take" : "")
               : "plans go by a closed form; measured costs know better: paradyse profile, then "
                 "paradyse fit, with this configuration");
    if (hooks_.planned) {
      hooks_.planned(planner_.table(typical_lengths()), corpus_.counts);
    }
    // Before anything is written: the longest document of the run must fit.
    std::int64_t longest = 0;
    for (const auto& step : steps_) {
      for (const std::int64_t d : step) {
        longest = std::max(longest, length(d));
      }
    }
    if (replay_.empty()) {
      plan_or_throw(planner_, {longest});
    }
  }

  TrainSummary run() {
    if (backend_.leads()) {
      if (!folder_) {
        folder_.emplace(loaded_);
      }
      summary_.folder = folder_->path();
    }
    summary_.data = corpus_.counts;
    summary_.eval_loss = std::numeric_limits<double>::quiet_NaN();
    install_accounting_allocator(device_);
    try {
      backend_.run(static_cast<int>(config_.parallel.ranks), [&](Communicators& communicators) {
        run_rank(communicators);
      });
    } catch (...) {
      try {
        finish();                              // what was measured until then is kept
      } catch (const std::exception& error) {  // a full disk: the first failure says more
        note(error.what());
      }
      throw;
    }
    finish();
    return summary_;
  }

 private:
  // Before all else: nobody shall be at the folder, and the checkpoint has to fit the
  // configuration.
  std::optional<Resumed> reopened(const std::filesystem::path& resume) {
    if (resume.empty()) {
      return std::nullopt;
    }
    if (backend_.leads()) {
      folder_.emplace(resume);
    }
    Resumed from = reading([&] { return resumed(resume); }, "--resume");
    changes_ = expect_same_run(loaded_, from);
    return from;
  }

  // Those that the configuration names; measured first where it says so and there are none.
  // "": plans go by a closed form.
  [[nodiscard]] std::string costs_fingerprint() const { return costs_ ? fingerprint(*costs_) : ""; }

  std::optional<Costs> costs() {
    const auto ranks = static_cast<int>(config_.parallel.ranks);
    const ProfileHeader header =
        profile_header(model_.shape, ranks, config_.train.dtype, backend_, device_);
    std::optional<Costs> there = costs_of(config_, header);
    if (config_.costs.file != "measure" || agreed(there.has_value())) {
      return there;
    }
    const std::filesystem::path profile_path = profile_file(config_, header);
    if (backend_.leads()) {
      std::filesystem::create_directories(profile_path.parent_path());
      note(fmt::format(
          "measuring what strategies take here, once, for {:.0f} s (costs.profile_seconds; "
          "costs.file = \"none\" does without)",
          config_.costs.profile_seconds));
    }
    const Profile measured = profile(
        {.model = model_.shape,
         .ranks = ranks,
         .lengths = profile_lengths(typical_lengths().back()),
         .dtype = config_.train.dtype,
         .memory_per_rank = parse_bytes(config_.parallel.memory_per_rank),
         .seconds = config_.costs.profile_seconds,
         .file = profile_path,
         .backend = backend(),
         .device = device_,
         .progress = hooks_.profiling,
         .stop = hooks_.stop});
    if (!backend_.leads()) {
      return std::nullopt;
    }
    try {
      write_costs(fit(measured), costs_file(config_, header));
    } catch (const std::invalid_argument& error) {  // too little time, or stopped
      note(fmt::format("{}; until then plans go by a closed form", error.what()));
      return std::nullopt;
    }
    note("what was measured is in " + costs_file(config_, header).string());
    return costs_of(config_, header);
  }

  // The word of the process that leads.
  bool agreed(bool mine) {
    bool result = mine;
    backend_.run(static_cast<int>(config_.parallel.ranks), [&](Communicators& communicators) {
      const std::int64_t word =
          broadcast_number(mine ? 1 : 0, "costs are there", communicators.world());
      if (communicators.rank() == backend_.first_rank()) {
        result = word != 0;
      }
    });
    return result;
  }

  // It lives as long as the run.
  [[nodiscard]] std::shared_ptr<Backend> backend() const {
    return {std::shared_ptr<Backend>(), &backend_};
  }

  [[nodiscard]] DataPosition position(std::int64_t step) const {
    return data_position(corpus_, corpus_fingerprint_, steps_, step);
  }

  void note(const std::string& line) const {
    if (hooks_.note) {
      hooks_.note(line);
    }
  }

  [[nodiscard]] std::int64_t length(std::int64_t d) const {
    return static_cast<std::int64_t>(corpus_.documents[static_cast<std::size_t>(d)].size());
  }

  // Powers of four from the shortest to the longest document, and that one.
  [[nodiscard]] std::vector<std::int64_t> typical_lengths() const {
    std::int64_t longest = 0;
    for (const Tokens& document : corpus_.documents) {
      longest = std::max(longest, static_cast<std::int64_t>(document.size()));
    }
    std::vector<std::int64_t> lengths;
    for (std::int64_t n = 256; n < longest; n *= 4) {
      lengths.push_back(n);
    }
    lengths.push_back(longest);
    return lengths;
  }

  void run_rank(Communicators& communicators) {
    const int me = communicators.rank();
    const DeviceScope computing(device_);
    Accountant memory(
        "rank " + std::to_string(me), parse_bytes(config_.parallel.memory_per_rank), device_);
    const MemoryScope scope(memory, Category::parameters, "parameters");
    const RankResources rank{
        .communicators = &communicators,
        .memory = &memory,
        .trace = config_.output.trace ? &trace_ : nullptr};
    Communicator& world = communicators.world();
    Parameters parameters(
        model_.shape,
        communicators.size(),
        me,
        parameter_types(config_.train.dtype),
        /*gradients=*/true,
        /*masters=*/true,
        device_);
    AdamW optimizer(parameters, config_.optimizer);
    LossScale scale(/*dynamic=*/config_.train.dtype == "float16");
    Saving saving{.checkpoints = shared_checkpoints(world), .last = -1, .time = Clock::now()};
    if (from_) {
      resume(parameters, optimizer, scale, world);
      saving.last = from_->state.step;
    } else {
      fill(parameters, model_, config_.model.seed);
    }
    world.barrier({.op = "model is there", .part = ""});
    if (me == backend_.first_rank()) {
      trace_.restart();  // the clocks of processes are set by this barrier
    }
    if (me == 0 && from_) {
      rewind();  // now that all have what they need
    }
    world.barrier({.op = "begin", .part = ""});

    bool interrupted = false;
    auto s = static_cast<std::size_t>(from_ ? from_->state.step : 0);
    for (; s < steps_.size(); ++s) {
      if (due(saving, static_cast<std::int64_t>(s), rank.world())) {
        checkpoint(saving, static_cast<std::int64_t>(s), parameters, optimizer, scale, rank);
      }
      const auto begin = Clock::now();
      memory.reset_peak();
      std::vector<const Tokens*> documents;
      for (const std::int64_t d : steps_[s]) {
        documents.push_back(&corpus_.documents[static_cast<std::size_t>(d)]);
      }
      std::optional<Plan> plan;
      if (me == 0 && !(hooks_.stop != nullptr && hooks_.stop->load())) {
        plan = next_plan(s);
        folder_->write_plan(*plan, static_cast<std::int64_t>(s) + 1);
      }
      plan = broadcast_plan(plan, rank.world());
      if (!plan) {
        interrupted = true;
        break;
      }
      const double switching = seconds_since(begin);
      if (rank.trace != nullptr) {
        rank.trace->add(me, "take the plan", "switch", begin, Clock::now());
      }
      const LossScale scale_before = scale;
      try {
        const Played played = play_step(s, *std::move(plan), documents, rank, parameters, scale);
        step(
            static_cast<std::int64_t>(s),
            played,
            rank,
            parameters,
            optimizer,
            scale,
            switching,
            begin);
      } catch (const NotFinite&) {  // on all ranks alike, before the weights were touched
        save(parameters, rank);
        saving.keep_all = true;  // this one may be past help
        checkpoint(saving, static_cast<std::int64_t>(s), parameters, optimizer, scale_before, rank);
        throw;
      }
    }
    save(parameters, rank);  // first: it wants a third of the room, should that be short
    checkpoint(saving, static_cast<std::int64_t>(s), parameters, optimizer, scale, rank);
    if (me == 0) {
      summary_.interrupted = interrupted;
    }
    if (me == 0) {
      await_planner();
    }
    if (eval_ && !interrupted) {
      const EvalResult result = evaluate_corpus(
          *eval_, config_.train.tokens_per_step, planner_, rank, parameters, hooks_.stop);
      if (me == 0) {
        summary_.interrupted = result.interrupted;
        summary_.eval_loss =
            result.interrupted ? std::numeric_limits<double>::quiet_NaN() : result.loss;
      }
    }
    const bool elsewhere = me != 0 && me == backend_.first_rank();
    for (std::string& events : gather_texts(elsewhere ? trace_.events() : "", rank.world())) {
      trace_.add_events(std::move(events));
    }
  }

  // What a rank knows of the checkpoints of its run.
  struct Saving {
    std::filesystem::path checkpoints;
    std::int64_t last = -1;  // step
    Clock::time_point time;  // of the last, or the beginning
    bool keep_all = false;
  };

  // Where checkpoints go, on every rank; each writes its own file there.
  std::filesystem::path shared_checkpoints(Communicator& world) {
    if (config_.checkpoint.keep == 0) {
      return {};
    }
    const bool first = world.rank() == 0;
    const std::filesystem::path folder = broadcast_text(
        first ? std::filesystem::absolute(folder_->checkpoints()).string() : "",
        "checkpoints",
        world);
    std::error_code error;
    if (!std::filesystem::is_directory(folder.parent_path(), error)) {
      throw std::runtime_error(fmt::format(
          "rank {}: the run folder {}, which rank 0 made, is not there: checkpoints take a file "
          "system that all ranks share; choose one with output.folder, or set checkpoint.keep = 0",
          world.rank(),
          folder.parent_path().string()));
    }
    return folder;
  }

  // Whether a checkpoint is to be written before step `s`; the same on all ranks.
  bool due(const Saving& saving, std::int64_t s, Communicator& world) {
    const RunConfig::Checkpoint& when = config_.checkpoint;
    if (when.keep == 0 || s == saving.last || s == 0) {
      return false;
    }
    if (when.every > 0 && s % when.every == 0) {
      return true;
    }
    if (when.minutes == 0) {
      return false;
    }
    // rank 0's clock counts
    const bool due_now = seconds_since(saving.time) >= 60 * when.minutes;
    return broadcast_number(due_now ? 1 : 0, "checkpoint due", world) != 0;
  }

  void checkpoint(
      Saving& saving,
      std::int64_t s,
      const Parameters& parameters,
      const AdamW& optimizer,
      const LossScale& scale,
      const RankResources& rank) {
    if (config_.checkpoint.keep == 0 || s == saving.last) {
      return;
    }
    Communicator& world = rank.world();
    const auto begin = Clock::now();
    CheckpointState state;
    if (world.rank() == 0) {
      folder_->sync_steps();  // the lines of its steps are as safe as it will be
      state = {
          .step = s,
          .tokens = summary_.tokens,
          .ranks = world.size(),
          .weight_domain = parameters.domain(),
          .dtype = config_.train.dtype,
          .model_sha256 = fingerprint(model_.shape),
          .optimizer_steps = optimizer.steps(),
          .loss_scale = scale.value(),
          .loss_scale_steps = scale.steps(),
          .data = position(s),
          .machine = machine_,
          .costs = costs_fingerprint(),
          .learned = planner_.learned(),
          .configuration = {}};
      for (const ConfigEntry& entry : loaded_.entries) {
        state.configuration.emplace(entry.key, entry.value);
      }
    }
    write_checkpoint(
        saving.checkpoints,
        state,
        parameters,
        optimizer,
        world,
        saving.keep_all ? 0 : config_.checkpoint.keep);
    saving.last = s;
    saving.time = Clock::now();
    if (rank.trace != nullptr) {
      rank.trace->add(world.rank(), "checkpoint", "checkpoint", begin, saving.time);
    }
  }

  // Puts in place what the checkpoint holds.
  void resume(Parameters& parameters, AdamW& optimizer, LossScale& scale, Communicator& world) {
    const CheckpointState& state = from_->state;
    for (const auto& of_rank : gather({state.step}, world)) {
      if (of_rank[0] != state.step) {  // a file system that shows ranks another newest one
        throw std::runtime_error(fmt::format(
            "--resume: rank {} finds the checkpoint of step {}, another rank that of step {}; all "
            "ranks have to see the same run folder",
            world.rank(),
            state.step,
            of_rank[0]));
      }
    }
    reading([&] { read_checkpoint(from_->checkpoint, state, parameters, optimizer); }, "--resume");
    scale = LossScale(
        /*dynamic=*/config_.train.dtype == "float16", state.loss_scale, state.loss_scale_steps);
  }

  // Rank 0 puts the run folder back to the checkpoint and says so.
  void rewind() {
    const CheckpointState& state = from_->state;
    sweep_checkpoints(folder_->checkpoints());
    const RunFolder::Rewound rewound = folder_->rewind(state.step, loaded_);
    for (const StepReport& report : rewound.reports) {
      count(report);
    }
    summary_.tokens = state.tokens;
    summary_.steps = state.step;
    summary_.resumed_at = state.step;
    note(fmt::format(
        "resumed {} after step {} of {}, from {}",
        folder_->path().string(),
        state.step,
        config_.train.steps,
        from_->checkpoint.string()));
    if (!rewound.put_aside.empty()) {
      note("what it wrote of later steps is put aside in " + rewound.put_aside.string());
    }
    for (const std::string& change : changes_) {
      note("from here on " + change);
    }
    if (!rewound.config_aside.empty()) {
      note("the configuration until here is " + rewound.config_aside.string());
    }
  }

  void save(const Parameters& parameters, const RankResources& rank) {
    if (!config_.output.model) {
      return;
    }
    const bool first = rank.communicators->rank() == 0;  // who writes
    save_model(
        parameters,
        rank.domain(rank.communicators->size()),
        first ? folder_->partial_model() : std::filesystem::path(),
        model_,
        parameter_types(config_.train.dtype).weight);
    if (const auto aside = first ? folder_->place_model() : ""; !aside.empty()) {
      note("the model that was saved before is put aside in " + aside.string());
    }
  }

  // Rank 0: the plan of step `s`, made while the step before it ran; the next one is begun.
  Plan next_plan(std::size_t s) {
    Plan plan = replay_.empty() ? planned(s) : recorded(s);
    if (replay_.empty() && s + 1 < steps_.size()) {
      plan_ahead(s + 1);
    }
    return plan;
  }

  [[nodiscard]] std::vector<std::int64_t> lengths_of_step(std::size_t s) const {
    std::vector<std::int64_t> lengths;
    for (const std::int64_t d : steps_[s]) {
      lengths.push_back(length(d));
    }
    return lengths;
  }

  // Only one thread at a time uses the planner: this one does while none is ahead.
  void plan_ahead(std::size_t s) {
    ahead_ = std::async(std::launch::async, [this, lengths = lengths_of_step(s)] {
      const auto begin = Clock::now();
      Plan plan = plan_or_throw(planner_, lengths);
      plan.planner_seconds = seconds_since(begin);
      return plan;
    });
    ahead_of_ = s;
  }

  Plan planned(std::size_t s) {
    if (!ahead_.valid() || ahead_of_ != s) {
      await_planner();
      plan_ahead(s);
    }
    Plan plan = ahead_.get();
    if (last_played_ && costs_ && config_.costs.correct) {
      if (const auto changed =
              planner_.observe(last_played_->plan, last_played_->micro_batch_seconds)) {
        note(*changed);
      }
      last_played_.reset();
    }
    return plan;
  }

  void await_planner() {
    if (ahead_.valid()) {
      ahead_.wait();
      ahead_ = {};
    }
  }

  // The plan of a run that is replayed.
  [[nodiscard]] Plan recorded(std::size_t s) const {
    const std::filesystem::path file = replay_ / "plans" / fmt::format("step-{:05}.json", s + 1);
    if (!std::filesystem::exists(file)) {
      throw std::runtime_error(fmt::format(
          "--replay: {} is not there: the run has no plan of step {}; set train.steps = {}",
          file.string(),
          s + 1,
          s));
    }
    Plan plan = read_plan(file);
    const ModelShape& shape = model_.shape;
    if (plan.lengths != lengths_of_step(s)) {
      throw std::runtime_error(fmt::format(
          "--replay: {} is for documents of other lengths than this run draws for step {}: give "
          "the data, data.seed and train.tokens_per_step of that run",
          file.string(),
          s + 1));
    }
    if (const auto wrong = problems(plan, {.model = &shape}); !wrong.empty()) {
      throw std::runtime_error("--replay: " + file.string() + ": " + wrong.front());
    }
    if (std::cmp_not_equal(plan.ranks, config_.parallel.ranks)) {
      throw std::runtime_error(fmt::format(
          "--replay: {} is for {} ranks, and there are {}: set parallel.ranks",
          file.string(),
          plan.ranks,
          config_.parallel.ranks));
    }
    return plan;
  }

  // A batch that is through, by the plan that it went by at last.
  struct Played {
    Plan plan;
    BatchResult batch;
    int retries = 0;
    std::vector<double> micro_batch_seconds = {};  // mean over the ranks
  };

  // Runs the batch; where memory does not suffice in spite of the plan, by leaner ones.  The
  // weights are not touched, and no document is left out or comes twice: what was done is thrown
  // away.
  Played play_step(
      std::size_t s,
      Plan plan,
      const std::vector<const Tokens*>& documents,
      const RankResources& rank,
      Parameters& parameters,
      const LossScale& scale) {
    const std::vector<const Tokens*> labels = labels_of(corpus_, steps_[s]);
    // Another draw each step; seeds differ by their low 32 bits.
    const std::uint64_t dropout_seed = (config_.model.seed << 32) + static_cast<std::uint64_t>(s);
    for (int retries = 0;; ++retries) {
      parameters.zero_gradients();
      try {
        const BatchResult batch = play(
            plan,
            documents,
            rank,
            parameters,
            true,
            scale.value(),
            {.labels = labels, .dropout_seed = dropout_seed});
        return {.plan = std::move(plan), .batch = batch, .retries = retries};
      } catch (const NotFinite& error) {
        throw not_finite(static_cast<std::int64_t>(s), error.what());
      } catch (const OutOfMemory& error) {
        if (!rank.communicators->recovers() || !replay_.empty()) {
          throw;
        }
        rank.communicators->interrupt(error.what());
      } catch (const Aborted&) {
        if (!rank.communicators->recovers()) {
          throw;
        }
      }
      plan = leaner(s, std::move(plan), rank);
    }
  }

  // After an interruption by lack of memory: all ranks agree on a plan that needs less.
  Plan leaner(std::size_t s, Plan plan, const RankResources& rank) {
    const std::string reason = rank.communicators->recover();
    std::optional<Plan> less;
    if (rank.communicators->rank() == 0) {
      await_planner();
      less = planner_.leaner(plan);
      note(fmt::format(
          "step {}: {}; {}",
          s + 1,
          reason,
          less ? "its work is thrown away, and a plan that needs less takes its place"
               : "and no plan needs less"));
      if (less) {
        folder_->write_plan(*less, static_cast<std::int64_t>(s) + 1);
        if (s + 1 < steps_.size()) {
          plan_ahead(s + 1);
        }
      }
    }
    less = broadcast_plan(less, rank.world());
    if (!less) {
      throw OutOfMemory(reason);
    }
    return *std::move(less);
  }

  [[nodiscard]] NotFinite not_finite(std::int64_t s, const std::string& what) const {
    return NotFinite(fmt::format(
        "step {}: {}. A lower optimizer.lr, a longer warm-up or clipping (optimizer.clip_norm) "
        "may "
        "help; its documents are in {}, the weights from before it in model/",
        s + 1,
        what,
        (summary_.folder / "plans" / fmt::format("step-{:05}.json", s + 1)).string()));
  }

  void step(
      std::int64_t s,
      Played played,
      const RankResources& rank,
      Parameters& parameters,
      AdamW& optimizer,
      LossScale& scale,
      double switching,
      Clock::time_point begin) {
    const double loss_scale = scale.value();
    const Plan& plan = played.plan;
    const auto optimizer_begin = Clock::now();
    const double norm = gradient_norm(parameters, rank.domain(plan.weight_domain)) / loss_scale;
    const double rate = learning_rate(config_.optimizer, s, config_.train.steps);
    const bool counts = scale.update(!std::isfinite(norm));
    if (counts) {
      const double clip = config_.optimizer.clip_norm;
      optimizer.step(rate, (clip > 0 && norm > clip ? clip / norm : 1.0) / loss_scale);
    } else if (config_.train.dtype != "float16" || loss_scale <= 1) {
      throw not_finite(s, fmt::format("the norm of the gradients is {}", norm));
    }
    if (rank.trace != nullptr) {
      rank.trace->add(
          rank.communicators->rank(), "optimizer", "optimizer", optimizer_begin, Clock::now());
    }
    std::vector<std::int64_t> mine = {rank.memory->peak_bytes()};
    for (const double seconds : played.batch.micro_batch_seconds) {
      mine.push_back(static_cast<std::int64_t>(seconds * 1e9));
    }
    const auto all = gather(mine, rank.world());
    if (rank.communicators->rank() != 0) {
      return;
    }
    std::int64_t peak = 0;
    played.micro_batch_seconds.assign(mine.size() - 1, 0);
    for (const auto& of_rank : all) {
      peak = std::max(peak, of_rank[0]);
      for (std::size_t m = 1; m < of_rank.size(); ++m) {
        played.micro_batch_seconds[m - 1] +=
            static_cast<double>(of_rank[m]) * 1e-9 / static_cast<double>(all.size());
      }
    }
    switching += played.batch.switching_seconds;
    report(s, played, rate, norm, loss_scale, peak, switching, seconds_since(begin));
    last_played_ = std::move(played);
  }

  void report(
      std::int64_t s,
      const Played& played,
      double rate,
      double norm,
      double loss_scale,
      std::int64_t peak,
      double switching,
      double seconds) {
    const Plan& plan = played.plan;
    const BatchResult& batch = played.batch;
    StepReport report{
        .step = s + 1,
        .steps = config_.train.steps,
        .loss = batch.loss,
        .learning_rate = rate,
        .gradient_norm = norm,
        .loss_scale = loss_scale,
        .documents = static_cast<std::int64_t>(plan.lengths.size()),
        .tokens = std::accumulate(plan.lengths.begin(), plan.lengths.end(), std::int64_t{0}),
        .seconds = seconds,
        .predicted_seconds = plan.predicted.seconds.value_or(0),
        .planning_seconds = plan.planner_seconds.value_or(0),
        .switching_seconds = switching,
        .retries = played.retries,
        .peak_bytes = peak,
        .micro_batches = {},
        .micro_batch_seconds = played.micro_batch_seconds,
        .predicted_micro_batch_seconds = {},
        .plan_sha256 = hash(plan)};
    for (const PlanMicroBatch& micro : plan.micro_batches) {
      for (const PlanGroup& group : micro.groups) {
        if (group.predicted.bytes) {
          const PredictedBytes& bytes = *group.predicted.bytes;
          report.predicted_peak_bytes = std::max(report.predicted_peak_bytes, bytes.total());
        }
      }
      ++report.micro_batches[micro.groups.front().program];
      report.predicted_micro_batch_seconds.push_back(micro.predicted.seconds.value_or(0));
    }
    folder_->write_step(report);
    count(report);
    if (hooks_.step) {
      hooks_.step(report);
    }
  }

  void count(const StepReport& report) {
    losses_.push_back(report.loss);
    ++summary_.steps;
    summary_.tokens += report.tokens;
    summary_.seconds += report.seconds;
    summary_.peak_bytes = std::max(summary_.peak_bytes, report.peak_bytes);
    for (const auto& [name, micro_batches] : report.micro_batches) {
      ++summary_.steps_by_strategy[name];
    }
  }

  void finish() {
    if (!backend_.leads()) {
      return;
    }
    sweep_checkpoints(folder_->checkpoints());  // one that failed: its space may be wanted
    const std::size_t n = losses_.size();
    summary_.first_loss = mean(losses_, 0, std::min<std::size_t>(10, n));
    summary_.last_loss = mean(losses_, n - std::min<std::size_t>(10, n), n);
    folder_->write_summary(summary_);
    if (config_.output.trace) {
      trace_.write(folder_->trace_file(summary_.resumed_at));
    }
  }

  const LoadedConfig& loaded_;
  const RunConfig& config_;
  const TrainHooks& hooks_;
  Backend& backend_;
  std::filesystem::path replay_;  // "": plans are made
  std::optional<RunFolder> folder_;
  std::vector<std::string> changes_;  // of the configuration, since the checkpoint
  std::optional<Resumed> from_;
  c10::Device device_;
  ModelFolder model_;
  Corpus corpus_;
  std::string corpus_fingerprint_;
  std::optional<Corpus> eval_;
  std::vector<std::vector<std::int64_t>> steps_;  // documents of each
  MachineNumbers machine_;
  std::optional<Costs> costs_;
  Planner planner_;  // used by rank 0 alone, and by what plans ahead for it
  std::future<Plan> ahead_;
  std::size_t ahead_of_ = 0;
  std::optional<Played> last_played_;  // not yet observed
  Trace trace_;
  std::vector<double> losses_;  // rank 0 writes these two
  TrainSummary summary_;
};

}  // namespace

TrainSummary train(
    const LoadedConfig& config,
    const TrainHooks& hooks,
    Backend& backend,
    const std::filesystem::path& resume,
    const std::filesystem::path& replay) {
  return Run(config, hooks, backend, resume, replay).run();
}

EvalResult evaluate(const LoadedConfig& loaded, const std::atomic<bool>* stop, Backend& backend) {
  const RunConfig& config = loaded.config;
  const ModelFolder model = model_at(config);
  const Corpus corpus = corpus_at("data.path", config.data.path, config, model.shape);
  Planner planner(planning_task(
      config, model.shape, /*training=*/false, machine_for(config, model.shape, backend)));
  const c10::Device device = device_named(config.parallel.device);
  install_accounting_allocator(device);
  EvalResult result;
  backend.run(static_cast<int>(config.parallel.ranks), [&](Communicators& communicators) {
    const int me = communicators.rank();
    const DeviceScope computing(device);
    Accountant memory(
        "rank " + std::to_string(me), parse_bytes(config.parallel.memory_per_rank), device);
    const MemoryScope scope(memory, Category::parameters, "parameters");
    const RankResources rank{.communicators = &communicators, .memory = &memory};
    Parameters parameters(
        model.shape,
        communicators.size(),
        me,
        parameter_types(config.train.dtype),
        /*gradients=*/false,
        /*masters=*/false,
        device);
    fill(parameters, model, config.model.seed);
    communicators.world().barrier({.op = "model is there", .part = ""});
    const EvalResult mine =
        evaluate_corpus(corpus, config.train.tokens_per_step, planner, rank, parameters, stop);
    if (me == 0) {
      result = mine;
    }
  });
  return result;
}

}  // namespace paradyse
