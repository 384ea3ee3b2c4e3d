#include "paradyse/run/train.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/run/play.h"
#include "src/run/device/device.h"
#include "src/run/execute/broadcast_plan.h"
#include "src/run/execute/gather.h"
#include "src/run/execute/trace.h"
#include "src/run/execute/within_memory.h"
#include "src/run/measure/measure.h"
#include "src/run/memory/reading.h"
#include "src/run/train/checkpoint.h"
#include "src/run/train/evaluate.h"
#include "src/run/train/measured_costs.h"
#include "src/run/train/resume.h"
#include "src/run/train/run_folder.h"
#include "src/run/train/run_inputs.h"
#include "src/run/train/step_plans.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

double mean(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  return end <= begin ? std::numeric_limits<double>::quiet_NaN()
                      : std::accumulate(
                            values.begin() + static_cast<std::ptrdiff_t>(begin),
                            values.begin() + static_cast<std::ptrdiff_t>(end),
                            0.0) /
                            static_cast<double>(end - begin);
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
        costs_(measured_costs(
            config_, model_.shape, typical_lengths().back(), backend, device_, hooks)),
        plans_(
            planning_task(config_, model_.shape, /*training=*/true, machine_, costs_),
            plans_options()) {
    expect_trainable(model_.shape);
    if (from_) {
      expect_same_model(model_.shape, *from_);
      expect_same_data(position(from_->state.step), config_.data.path, *from_);
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
      hooks_.planned(plans_.planner().table(typical_lengths()), corpus_.counts);
    }
    // Before anything is written: the longest document of the run must fit.
    std::int64_t longest = 0;
    for (const auto& step : steps_) {
      for (const std::int64_t d : step) {
        longest = std::max(longest, length(d));
      }
    }
    if (replay_.empty()) {
      plan_or_throw(plans_.planner(), {longest});
    }
    if (from_) {
      plans_.planner().learn(still_true());
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

  // What the run learned until its checkpoint, as far as it goes by the same costs and memory now.
  [[nodiscard]] Planner::Learned still_true() const {
    const CheckpointState& then = from_->state;
    if (then.costs != costs_fingerprint()) {
      return {};
    }
    Planner::Learned learned = then.learned;
    if (!config_.costs.correct) {
      learned.ratios.clear();
    }
    const std::string memory = "parallel.memory_per_rank";
    const auto was = then.configuration.find(memory);
    for (const ConfigEntry& entry : loaded_.entries) {
      if (entry.key == memory && (was == then.configuration.end() || was->second != entry.value)) {
        learned.caps.clear();
      }
    }
    return learned;
  }

  // "": plans go by a closed form.
  [[nodiscard]] std::string costs_fingerprint() const { return costs_ ? fingerprint(*costs_) : ""; }

  [[nodiscard]] StepPlans::Options plans_options() {
    StepPlans::Options options{
        .lengths = {},
        .replay = replay_,
        .correct = costs_ && config_.costs.correct,
        .note = [this](const std::string& line) { note(line); }};
    for (const std::vector<std::int64_t>& documents : steps_) {
      std::vector<std::int64_t>& lengths = options.lengths.emplace_back();
      for (const std::int64_t d : documents) {
        lengths.push_back(length(d));
      }
    }
    return options;
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
        plan = plans_.take(s);
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
    if (eval_ && !interrupted) {
      const EvalResult result = evaluate_corpus(
          *eval_,
          config_.train.tokens_per_step,
          me == 0 ? &plans_.planner() : nullptr,
          rank,
          parameters,
          hooks_.stop);
      if (me == 0) {
        summary_.interrupted = result.interrupted;
        if (!result.interrupted && result.predicted_tokens == 0) {
          note("data.eval_path: no token is scored against a label that counts: there is no loss");
        }
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
          .learned = plans_.learned(),
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
      BatchResult batch;
      std::optional<std::string> lack;
      try {
        lack = within_memory(*rank.communicators, [&] {
          batch = play(
              plan,
              documents,
              rank,
              parameters,
              true,
              scale.value(),
              {.labels = labels, .dropout_seed = dropout_seed});
        });
      } catch (const NotFinite& error) {
        throw not_finite(static_cast<std::int64_t>(s), error.what());
      }
      if (!lack) {
        return {.plan = std::move(plan), .batch = batch, .retries = retries};
      }
      plan = leaner(s, std::move(plan), *lack, rank);
    }
  }

  // For lack of memory, all ranks agree on a plan that needs less.  A replay has none.
  Plan leaner(std::size_t s, Plan plan, const std::string& reason, const RankResources& rank) {
    if (plans_.replays()) {
      throw OutOfMemory(reason);
    }
    std::optional<Plan> less;
    if (rank.communicators->rank() == 0) {
      less = plans_.leaner(s, plan);
      note(fmt::format(
          "step {}: {}; {}",
          s + 1,
          reason,
          less ? "its work is thrown away, and a plan that needs less takes its place"
               : "and no plan needs less"));
      if (less) {
        folder_->write_plan(*less, static_cast<std::int64_t>(s) + 1);
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
    if (played.batch.predicted_tokens == 0) {
      if (rank.communicators->rank() == 0) {
        note(fmt::format(
            "step {}: none of its tokens is scored against a label that counts: it has no loss, "
            "and the weights stay as they are",
            s + 1));
      }
    } else if (counts) {
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
    plans_.took(std::move(played.plan), std::move(played.micro_batch_seconds));
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
        .loss = batch.predicted_tokens == 0 ? std::numeric_limits<double>::quiet_NaN() : batch.loss,
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
    if (std::isfinite(report.loss)) {
      losses_.push_back(report.loss);
    }
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
  StepPlans plans_;  // rank 0 alone uses it
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

}  // namespace paradyse
