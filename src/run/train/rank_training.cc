#include "src/run/train/rank_training.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/session.h"
#include "src/plan/base/bytes_text.h"
#include "src/run/data/stdit/made_clips.h"
#include "src/run/execute/gather.h"
#include "src/run/measure/measure.h"
#include "src/run/train/evaluate.h"
#include "src/run/train/files.h"
#include "src/run/train/run_checkpoints.h"
#include "src/run/train/run_inputs.h"
#include "src/run/train/sampling.h"
#include "src/run/train/static_play.h"
#include "src/run/train/training_plans.h"
#include "src/run/train/training_step.h"
#include "src/run/weights/adapters.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// By the costs that the leading process has.
std::int64_t attention_dense_from(const TrainingRun& run, Communicators& communicators) {
  if (run.inputs.device.is_cpu()) {
    return kAttentionDenseFrom;  // nobody asks
  }
  const std::optional<Costs>& costs = run.numbers.costs;
  return broadcast_number(
      costs ? costs->attention_dense_from.value_or(kAttentionDenseFrom) : kAttentionDenseFrom,
      "attention",
      communicators.world());
}

// Where plans are corrected by it, which the leading process knows.
std::int64_t times_parts(const TrainingRun& run, Communicators& communicators) {
  constexpr std::int64_t kOnGpu = 10;
  const bool wanted = broadcast_number(
                          communicators.rank() == 0 && run.plans.corrects() ? 1 : 0,
                          "time parts",
                          communicators.world()) != 0;
  return !wanted ? 0 : run.inputs.device.is_cpu() ? 1 : kOnGpu;
}

// Of these the last ends the run: more of the same will not help.
constexpr int kMostBadInARow = 10;

// Writes down the documents of a bad step, and says what was wrong, with which, and where they are.
std::string tell_bad_step(const TrainingRun& run, const BadStep& bad, std::int64_t step) {
  constexpr std::size_t kShown = 3;
  const Dataset& data = run.inputs.data;
  const std::vector<std::int64_t>& items = run.inputs.steps[idx(step)];
  std::string lines;
  std::vector<std::string> blamed;
  for (std::size_t d = 0; d < items.size(); ++d) {
    const bool to_blame =
        std::ranges::find(bad.documents, static_cast<std::int64_t>(d)) != bad.documents.end();
    const std::string name = data.name(items[d]);
    lines += fmt::format("{}{}\n", name, to_blame ? "\tbad" : "");
    if (to_blame) {
      blamed.push_back(name);
    }
  }
  const std::size_t more = blamed.size() > kShown ? blamed.size() - kShown : 0;
  blamed.resize(blamed.size() - more);
  return fmt::format(
      "step {}: {}; {}its documents are listed in {}",
      step + 1,
      bad.what(),
      blamed.empty() ? ""
                     : fmt::format(
                           "it is {}{}; ",
                           fmt::join(blamed, ", "),
                           more > 0 ? fmt::format(" and {} more", more) : ""),
      run.record.write_bad_step(step + 1, lines).string());
}

class RankTraining {
 public:
  RankTraining(const TrainingRun& run, Communicators& communicators)
      : run_(run),
        first_(communicators.rank() == 0),
        session_(
            communicators,
            run.inputs.model.model,
            {.dtype = run.config().train.dtype,
             .weight_domain = run.numbers.weight_domain,
             .masters = run.config().optimizer.offload ? Masters::on_host : Masters::on_device,
             .memory_bytes = parse_bytes(run.config().parallel.memory_per_rank),
             .device = run.inputs.device,
             .attention_dense_from = attention_dense_from(run, communicators),
             .times_parts = times_parts(run, communicators),
             .trace = run.config().output.trace ? &run.trace : nullptr}),
        optimizer_(session_.parameters(), run.config().optimizer),
        scale_(narrow()),
        checkpoints_(
            run.config().checkpoint,
            session_,
            run.hooks.save,
            communicators.rank() == run.first_rank,
            [&run](const std::string& line) { run.record.note(line); }) {}

  void run() {
    begin();
    std::int64_t step = run_.inputs.first_step();
    const auto steps = static_cast<std::int64_t>(run_.inputs.steps.size());
    while (step < steps) {
      const std::optional<std::int64_t> next = train(step);
      if (!next) {
        break;
      }
      step = *next;
    }
    saving(true);
    const std::string not_saved = save_model();  // first: it wants a third of the room
    if (bad_in_a_row_ > 0) {
      checkpoints_.keep_all();  // these weights may be past help
    }
    write_checkpoint(step, scale_, IfNotWritten::end);
    if (!not_saved.empty()) {
      throw std::runtime_error(fmt::format(
          "the trained model could not be saved: {}. {}",
          not_saved,
          run_.config().checkpoint.keep > 0
              ? fmt::format(
                    "The checkpoint of step {} has its weights: make room, then run paradyse train "
                    "--resume RUN, which saves the model",
                    step)
              : "No checkpoint has its weights (checkpoint.keep = 0): they are lost"));
    }
    if (step < steps) {
      stopped();
    } else {
      saving(false);
      evaluate(steps);
      sample();
    }
    gather_trace();
  }

 private:
  [[nodiscard]] bool narrow() const { return run_.config().train.dtype == Dtype::float16; }

  // The weights are there, and rank 0 has made the folder, or put that of a run that goes on back.
  void begin() {
    const std::optional<Resumed>& from = run_.inputs.from;
    if (from) {
      if (run_.inputs.model.model.lora) {  // what is frozen is in no checkpoint
        run_.inputs.weights.fill(session_.parameters());
      }
      checkpoints_.restore(*from, optimizer_);
      scale_ = LossScale(narrow(), from->state.loss_scale, from->state.loss_scale_steps);
      left_out_ = from->state.left_out;
    } else {
      if (run_.inputs.moments) {
        run_.inputs.moments->fill(session_.parameters(), optimizer_);  // before the weights
      }
      run_.inputs.weights.fill(session_.parameters());
    }
    session_.world().barrier({.op = "model is there", .part = ""});
    if (session_.rank() == run_.first_rank) {
      run_.trace.restart();  // the clocks of processes are set by this barrier
    }
    if (session_.rank() == run_.first_rank && run_.hooks.begins) {
      run_.hooks.begins();
    }
    if (first_) {  // now that all have what they need: before it a run that ends leaves nothing
      run_.record.make_folder(run_.from);
      if (from) {
        run_.record.rewind(*from, run_.inputs.changes);
      }
    }
    checkpoints_.begin(
        first_ ? run_.record.folder().checkpoints() : std::filesystem::path(), optimizer_);
    session_.world().barrier({.op = "begin", .part = ""});
  }

  // The step to go on with; none: the run is to stop before this one.
  std::optional<std::int64_t> train(std::int64_t step) {
    // after bad steps the weights may be past help: those of before are kept until one is good
    if (bad_in_a_row_ == 0 && checkpoints_.due(step)) {
      write_checkpoint(step, scale_);
    }
    const StaticTurn turn =
        static_turn(run_.config().train.compare, step, run_.inputs.first_step());
    std::optional<ComparedStep> compared;
    if (turn == StaticTurn::before) {
      compared = play_static(run_, step, scale_.value(), session_);
    }
    const auto begin = Clock::now();
    session_.memory().reset_peak();
    std::optional<Plan> plan;
    bool late = false;
    const bool stops = stop();
    if (first_ && !stops) {
      StepPlans::Step planned = run_.plans.take(idx(step));
      late = planned.late;
      plan = std::move(planned.plan);
      run_.record.write_plan(*plan, step + 1);
    }
    plan = session_.broadcast(std::move(plan));
    if (!plan) {
      return std::nullopt;
    }
    TrainingStep now{
        .step = step,
        .planned = {.plan = *std::move(plan), .late = late},
        .begin = begin,
        .switching_seconds = seconds_since(begin)};
    session_.note("take the plan", "switch", begin);
    if (left_out_.contains(step)) {
      return done(step, first_ ? std::optional(skipped_step(run_, now)) : std::nullopt);
    }
    const LossScale scale_before = scale_;
    std::optional<StepReport> report;
    std::optional<BadStep> bad;
    try {
      report = train_step(run_, std::move(now), session_, optimizer_, scale_);
    } catch (const BadStep& error) {  // on all ranks alike, before the weights were touched
      bad = error;
    }
    if (bad) {
      return after(*std::move(bad), step, scale_before);
    }
    if (step > last_bad_) {  // not one that is trained again after a rollback
      bad_in_a_row_ = 0;
    }
    if (first_ && run_.config().output.trace) {
      run_.trace.add_step(step + 1, begin);
    }
    if (turn == StaticTurn::after) {
      compared = play_static(run_, step, scale_.value(), session_);
    }
    return done(step, std::move(report), std::move(compared));
  }

  // Measures the held-out loss after the step where that is due, and notes it; gives the next step.
  std::int64_t done(
      std::int64_t step,
      std::optional<StepReport> report,
      std::optional<ComparedStep> compared = {}) {
    const std::int64_t every = run_.config().train.eval_every;
    std::optional<EvalResult> evaluated;
    if (every > 0 && (step + 1) % every == 0) {
      evaluated = held_out_loss();
      evaluated_after_ = evaluated->interrupted ? -1 : step + 1;
    }
    if (report) {
      if (evaluated && !evaluated->interrupted) {
        report->eval_loss = evaluated->loss;
        report->eval_seconds = evaluated->seconds;
      } else if (evaluated) {
        run_.record.note(fmt::format(
            "the held-out loss after step {} was interrupted: metrics.jsonl does not have it",
            step + 1));
      }
      run_.record.add(beside(*std::move(report), std::move(compared)));
    }
    return step + 1;
  }

  // Where training goes on after a bad step, by train.on_bad_step.  Throws NotFinite where it ends.
  std::int64_t after(BadStep bad, std::int64_t step, const LossScale& scale_before) {
    const std::string& policy = run_.config().train.on_bad_step;
    const std::string what = broadcast_text(  // of threads any may be the one that is heard
        first_ ? tell_bad_step(run_, bad, step) : "",
        "bad step",
        session_.world());
    const bool enough = ++bad_in_a_row_ >= kMostBadInARow;
    last_bad_ = std::max(last_bad_, step);
    std::optional<Resumed> before;
    if (policy == "rollback" && !enough) {
      before = checkpoints_.newest();
    }
    if (policy != "stop" && !enough && !before) {  // the weights are as they were
      if (first_) {
        run_.record.note(
            what + (policy == "skip"
                        ? "; the step is skipped (train.on_bad_step)"
                        : "; there is no checkpoint to go back to (train.on_bad_step = rollback), "
                          "so the step is skipped"));
      }
      return done(step, std::move(bad.report));
    }
    if (before) {
      if (first_) {
        run_.record.note(
            what +
            "; training goes back to the newest checkpoint and leaves the step "
            "out (train.on_bad_step)");
      }
      return roll_back(*before, step);
    }
    saving(true);
    const std::string not_saved = save_model();
    checkpoints_.keep_all();  // this one may be past help
    write_checkpoint(step, scale_before, IfNotWritten::tell);
    throw NotFinite(fmt::format(
        "{}. {}A lower optimizer.lr, a longer warm-up or clipping (optimizer.max_grad_norm) may "
        "help{}; the weights before the step {}",
        what,
        enough ? fmt::format("That was bad step {} in a row. ", bad_in_a_row_) : "",
        policy == "stop" ? ", or train.on_bad_step = skip or rollback" : "",
        where_weights_are(step, not_saved)));
  }

  // Those before step `step`, as the end of a sentence.
  [[nodiscard]] std::string where_weights_are(
      std::int64_t step, const std::string& not_saved) const {
    const bool model = run_.config().output.model && not_saved.empty();
    const bool checkpoint = checkpoints_.has(step);
    if (model || checkpoint) {
      return fmt::format(
                 "are in {}{}{}",
                 model ? "model/" : "",
                 model && checkpoint ? " and " : "",
                 checkpoint ? fmt::format("the checkpoint of step {}", step) : "") +
             (not_saved.empty() ? "" : "; they could not be saved in model/: " + not_saved);
    }
    return not_saved.empty() ? "are lost (output.model = false, and no checkpoint has them)"
                             : "could not be saved in model/: " + not_saved;
  }

  // From the checkpoint on without step `bad`; gives the step that comes next.
  std::int64_t roll_back(const Resumed& before, std::int64_t bad) {
    checkpoints_.restore(before, optimizer_);
    scale_ = LossScale(narrow(), before.state.loss_scale, before.state.loss_scale_steps);
    left_out_.insert(bad);
    if (first_) {
      run_.record.roll_back(before.state);
      run_.plans.go_back(still_true(before.state, run_.loaded, run_.numbers));
    }
    session_.world().barrier({.op = "rollback", .part = ""});
    return before.state.step;
  }

  // By the static plan the step would have had the same update.
  static StepReport beside(StepReport report, std::optional<ComparedStep> compared) {
    if (compared) {
      compared->seconds += report.update_seconds;
      compared->ours = report.seconds;
    }
    report.compared = std::move(compared);
    return report;
  }

  // Every rank calls it: any may be the one that was asked to.
  [[nodiscard]] bool stop() {
    return on_any_rank(run_.hooks.stop != nullptr && run_.hooks.stop->load(), session_.world());
  }

  // Every rank calls it, once they agree to stop.
  void stopped() {
    const int mine = run_.hooks.stop_reason == nullptr ? 0 : run_.hooks.stop_reason->load();
    std::int64_t reason = 0;
    for (const auto& of_rank : gather({mine}, session_.world())) {
      reason = std::max(reason, of_rank[0]);
    }
    if (session_.rank() == run_.first_rank) {
      run_.record.stopped(static_cast<int>(reason));
    }
  }

  void saving(bool begins) const {
    if (session_.rank() == run_.first_rank && run_.hooks.saving) {
      run_.hooks.saving(begins);
    }
  }

  void write_checkpoint(
      std::int64_t step, const LossScale& scale, IfNotWritten then = IfNotWritten::go_on) {
    saving(true);
    checkpoints_.write(
        step,
        [&] { return state_at(step, scale); },
        [this] { run_.record.folder().sync_steps(); },
        optimizer_,
        then);
    saving(false);
  }

  // Rank 0's, before step `step`.
  CheckpointState state_at(std::int64_t step, const LossScale& scale) {
    if (const std::string why = run_.record.folder().flush(); !why.empty()) {
      throw std::runtime_error(why);  // the lines of its steps are to be as safe as it will be
    }
    CheckpointState state{
        .step = step,
        .tokens = run_.record.tokens(),
        .ranks = session_.world().size(),
        .weight_domain = session_.parameters().domain(),
        .dtype = run_.config().train.dtype,
        .model_sha256 = run_.inputs.model.model.sha256,
        .optimizer_steps = optimizer_.steps(),
        .loss_scale = scale.value(),
        .loss_scale_steps = scale.steps(),
        .data = run_.inputs.position(step),
        .machine = run_.numbers.machine,
        .costs = run_.numbers.costs_fingerprint(),
        .costs_ranks = run_.numbers.costs ? run_.numbers.costs->header.ranks : 0,
        .costs_file = run_.numbers.costs_file,
        .given_plans = run_.record.given_plans(),
        .frozen = run_.inputs.frozen,
        .dropout = dropout_rates(run_.inputs.model.model),
        .left_out = left_out_,
        .learned = run_.plans.to_keep(),
        .configuration = {}};
    for (const ConfigEntry& entry : run_.loaded.entries) {
      state.configuration.emplace(entry.key, entry.value);
    }
    return state;
  }

  // The same on all ranks: why it could not be saved, or "".
  std::string save_model() {
    if (!run_.config().output.model) {
      return "";
    }
    std::string wrong;
    if (session_.rank() < session_.parameters().domain()) {  // the first sharding group's copy
      const std::filesystem::path to =
          first_ ? run_.record.folder().partial_model() : std::filesystem::path();
      const at::ScalarType dtype = saved_type(run_.config(), session_.parameters().types().weight);
      try {
        std::vector<std::string> notes;
        if (run_.inputs.model.model.lora) {
          save_adapters(
              session_.parameters(), session_.domain(), to, run_.inputs.model.path, dtype);
        } else {
          notes = paradyse::save_model(
              session_.parameters(), session_.domain(), to, run_.inputs.model, dtype);
        }
        wrong = first_ ? place_model(notes) : "";
      } catch (const NotSaved& error) {
        wrong = error.what();
      }
    }
    return first_text(wrong, session_.world());
  }

  // Rank 0's: the model is written, and gets its name.
  std::string place_model(const std::vector<std::string>& notes) {
    for (const std::string& line : notes) {
      run_.record.note(line);
    }
    try {
      const std::filesystem::path aside = run_.record.folder().place_model();
      if (!aside.empty()) {
        run_.record.note("the model that was saved before was moved to " + aside.string());
      }
      return "";
    } catch (const std::runtime_error& error) {
      return message_of(error);
    }
  }

  // By plans of its own planner: that of the run goes on as if nothing were evaluated.
  EvalResult held_out_loss() {
    if (first_ && evaluation_planner_ == nullptr) {
      PlanningTask task =
          planning_task(run_.config(), run_.inputs.model.model, /*training=*/true, run_.numbers);
      evaluation_planner_ =
          run_.hooks.planner ? run_.hooks.planner(std::move(task)) : batch_planner(std::move(task));
    }
    if (first_) {
      evaluation_planner_->learn(run_.plans.learned());
    }
    try {
      return evaluate_data(
          *run_.inputs.evaluation,
          run_.config().data.seed,
          run_.config().train.tokens_per_step,
          evaluation_planner_.get(),
          session_,
          run_.hooks.stop,
          run_.hooks.evaluating);
    } catch (const NotFinite& error) {  // on all ranks alike; training need not end by it
      if (first_) {
        run_.record.note(fmt::format("the held-out loss is not a number: {}", error.what()));
      }
      EvalResult none;
      none.loss = std::numeric_limits<double>::quiet_NaN();
      none.documents = run_.inputs.evaluation->size();
      none.predicted_tokens = 1;  // there are labels
      none.data = run_.inputs.evaluation->counts();
      return none;
    }
  }

  // At the end, unless the last step was followed by it.
  void evaluate(std::int64_t steps) {
    if (!run_.inputs.evaluation) {
      return;
    }
    if (evaluated_after_ != steps) {
      const EvalResult result = held_out_loss();
      if (first_) {
        run_.record.evaluated(result);
      }
      if (result.interrupted) {
        stopped();
      }
    } else if (first_) {
      run_.record.evaluated(run_.inputs.evaluation->counts());
    }
  }

  // Of a video model.
  void sample() {
    const RunConfig::Output& output = run_.config().output;
    const std::vector<LikeClip> like = run_.inputs.data.clips(output.clips);
    if (like.empty()) {
      return;
    }
    if (stop()) {
      stopped();
      return;
    }
    const std::vector<at::Tensor> clips = sampled_clips(
        like,
        output.sampling_steps,
        run_.config().data.seed,
        first_ ? &run_.plans.planner() : nullptr,
        [this] { return stop(); },
        session_);
    if (clips.empty()) {
      stopped();
    } else if (first_) {
      const std::filesystem::path folder = free_name(run_.record.folder().path() / "samples");
      write_frames(clips, folder);
      run_.record.note("the frames of generated clips are in " + folder.string());
    }
  }

  // Rank 0's process has the spans of all.
  void gather_trace() {
    const bool elsewhere = !first_ && session_.rank() == run_.first_rank;
    for (std::string& events :
         gather_texts(elsewhere ? run_.trace.events() : "", session_.world())) {
      run_.trace.add_events(std::move(events));
    }
  }

  const TrainingRun& run_;
  bool first_;  // rank 0, which writes and plans
  RankSession session_;
  AdamW optimizer_;
  LossScale scale_;
  RunCheckpoints checkpoints_;
  std::set<std::int64_t> left_out_;                   // steps before which training went back
  int bad_in_a_row_ = 0;                              // steps
  std::int64_t last_bad_ = -1;                        // step
  std::int64_t evaluated_after_ = -1;                 // steps
  std::unique_ptr<BatchPlanner> evaluation_planner_;  // rank 0's, once it is needed
};

}  // namespace

void train_rank(const TrainingRun& run, Communicators& communicators) {
  RankTraining(run, communicators).run();
}

}  // namespace paradyse
