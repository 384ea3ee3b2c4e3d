// The main job: trains a model on documents by plans that fit their lengths.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/config.h"
#include "paradyse/plan/detail/compared_steps.h"
#include "paradyse/plan/detail/static_strategy.h"
#include "paradyse/plan/profile.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/data.h"

namespace paradyse {

// What a group of a plan was to take and took.
struct GroupReport {
  std::vector<int> ranks;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  double predicted_seconds = 0;
  double seconds = 0;  // of its slowest rank, without what that waited for other groups
};

// What there is to tell about a step that is over.
struct StepReport {
  std::int64_t step = 0;    // from 1
  std::int64_t steps = 0;   // of the run
  double loss = 0;          // NaN where no label of the step counts; the weights then stay
  std::int64_t labels = 0;  // that count, of the whole batch
  double learning_rate = 0;
  double gradient_norm = 0;
  double loss_scale = 1;  // float16: a step whose gradient_norm is no number was skipped
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  double update_seconds = 0;  // of these, when the batch was through
  double predicted_seconds = 0;
  double planning_seconds = 0;   // of the planner, while the step before it ran
  bool late = false;             // the plan was not there in time, and a fallback in its place
  double switching_seconds = 0;  // that the step waited for its plan, agreed on it and took it up
  bool skipped = false;          // it was bad (train.on_bad_step), and the weights stay
  int retries = 0;               // plans that ran out of memory before this one
  std::int64_t peak_bytes = 0;   // of the fullest rank
  std::int64_t predicted_peak_bytes = 0;
  std::int64_t memory_per_rank = 0;  // the budget; 0: no limit
  // Of torch's caching allocator since the start, by the names of torch.cuda.memory_stats(): the
  // most of any rank's GPU.  On CPUs nothing.
  std::map<std::string, std::int64_t> allocator = {};
  std::map<std::string, std::int64_t> micro_batches;  // by the name of their program
  std::vector<double> micro_batch_seconds = {};       // measured
  std::vector<double> predicted_micro_batch_seconds = {};
  std::vector<std::vector<GroupReport>> groups = {};  // [micro-batch], as in the plan
  // [rank] The share of the step in which it waited for slower groups.
  std::vector<double> idle = {};
  std::string plan_sha256;
  // With train.eval_every: the held-out loss after the step, and what it took, which is in no other
  // number.
  std::optional<double> eval_loss = {};
  double eval_seconds = 0;
  // Where the batch was also played by the best static plan; none of it is in the numbers above,
  // but for those of the allocator.
  std::optional<ComparedStep> compared = {};
};

// What a model's weights were taken from, and what of its folder was taken otherwise than it says.
struct ModelReport {
  std::string weights;  // "model.safetensors of ...", "weights are random (seed 1)"
  bool random = false;
  std::vector<std::string> notes = {};
};

// The held-out loss after a step.
struct EvaluatedStep {
  std::int64_t step = 0;  // from 1
  double loss = 0;
};

struct TrainSummary {
  std::filesystem::path folder;
  std::filesystem::path trace = {};  // file in it; empty: none was wanted
  ModelReport model = {};
  std::int64_t steps = 0;       // of the run, those before it was resumed too; as all below
  std::int64_t of_steps = 0;    // that it is to have
  std::int64_t resumed_at = 0;  // after so many; 0: it was not
  bool interrupted = false;
  int stop_reason = 0;  // that of TrainHooks, where it was
  // Means of the first and the last `loss_steps` steps that have a loss: ten, or half of those that
  // there are; of one step alone both are its loss, and loss_steps is 0.
  double first_loss = 0;
  double last_loss = 0;
  std::int64_t loss_steps = 0;
  std::int64_t steps_without_label = 0;  // none of it counted, and the weights stayed
  bool repeatable = false;               // another start of the same run comes to the same bits
  // The last, after training or that of train.eval_every; NaN when there is no evaluation data.
  double eval_loss = 0;
  std::vector<EvaluatedStep> evaluations = {};  // of train.eval_every
  std::int64_t tokens = 0;
  double seconds = 0;  // of all steps
  double predicted_seconds = 0;
  // Geometric means over the steps: of measured / predicted seconds, and of that or its inverse,
  // whichever is above 1, less 1.
  double measured_over_predicted = 1;
  double prediction_error = 0;
  std::int64_t late_plans = 0;  // steps that went by a fallback
  double idle_share = 0;        // of the ranks' seconds: waited for slower groups
  std::int64_t peak_bytes = 0;
  std::map<std::string, std::int64_t> steps_by_strategy;  // steps that used it at least once
  // By the costs as they are at the end, on steps spread evenly over the run; none of a run that
  // was interrupted.
  std::optional<StaticComparison> best_static = {};
  std::optional<MeasuredComparison> compared = {};  // with train.compare
  DataCounts data;
  std::optional<DataCounts> eval_data = {};
};

struct TrainHooks {
  // Before the first step: what costs the planner goes by, for lengths of the corpus.
  std::function<void(const std::vector<OptionRow>& table)> planned;
  std::function<void(const StepReport& report)> step;  // on one thread
  // Before all that, where costs are to be measured.
  std::function<void(const ProfileProgress& progress)> profiling;
  // While the held-out loss is measured: documents that are done.
  std::function<void(std::int64_t done, std::int64_t of, const std::string& what)> evaluating;
  std::function<void(const std::string& line)> note;  // what else a user wants to know
  // In every process when its ranks have their weights: from here on there is something to save.
  std::function<void()> begins;
  // In every process: it begins to save, or is through; once it has stopped it is never through.
  std::function<void(bool begins)> saving;
  // Ends after the step under way.  A wish in any process counts for all.
  const std::atomic<bool>* stop = nullptr;
  // Why, with `stop`: the largest of all processes' is in the summaries of all.
  const std::atomic<int>* stop_reason = nullptr;
  // Wants a checkpoint after the step under way; a rank of this process takes the wish down.
  std::atomic<bool>* save = nullptr;
  // Another planner of batches than the one that the configuration names.
  std::function<std::unique_ptr<BatchPlanner>(PlanningTask task)> planner;
};

// What a run begins with, or goes by; one of them at most.
struct TrainFrom {
  // The folder of a run: goes on there from the newest checkpoint, to the bits that the run would
  // have come to; `config` is that of the run (config.toml), but for keys that make it no other
  // run.
  std::filesystem::path resume = {};
  // Which checkpoint of it: newest, of which one that is damaged gives way, with a note, to the one
  // before it; previous, the one before the newest; or the number of its step.
  std::string checkpoint = "newest";
  // What stands under output.name and has no checkpoint yet is moved aside for a new run.
  bool starts_over = false;
  std::filesystem::path replay = {};  // the folder of a run: goes by its plans, step by step
  // A plan file, perhaps made by hand: every step goes by it, and draws documents of its lengths.
  std::filesystem::path plan = {};
};

// Makes a new folder below config.output.folder and fills it: config.toml (resolved, with origins),
// plans/step-00001.json ..., metrics.jsonl, summary.json, trace.json, checkpoints/ (checkpoint.h),
// model/ (a Hugging Face folder). Interrupted or not, what was reached is saved. Throws what is
// wrong with the configuration, model, data or memory; NotFinite when the loss is no number (the
// weights and a checkpoint from before that step are saved).
// Throws what does not fit of `from`.  The process that leads (backend.h) writes the folder and
// calls the hooks; the summary of the others is empty, but for `interrupted` and `stop_reason`.
// Where a step runs out of memory in spite of its plan, all ranks throw its work away and take a
// plan that needs less, where the backend recovers (communicator.h).
TrainSummary train(
    const LoadedConfig& config,
    const TrainHooks& hooks,
    Backend& backend,
    const TrainFrom& from = {});

// The loss of a document: the sum over its labels by their number is its mean.
struct DocumentLoss {
  std::string name;
  std::int64_t tokens = 0;
  std::int64_t labels = 0;  // that are scored
  double loss_sum = 0;
};

// The mean loss per predicted token of a model over documents, by plans as in training.
struct EvalResult {
  double loss = 0;  // NaN where no token is predicted
  std::int64_t documents = 0;
  std::int64_t predicted_tokens = 0;
  double seconds = 0;
  std::int64_t peak_bytes = 0;
  bool interrupted = false;  // the loss is of what was reached
  DataCounts data;
  ModelReport model = {};
  ModelWords words = {};  // what was scored
  // Of each document, on request, in the order of the data.
  std::vector<DocumentLoss> per_document = {};
};
// `note`: called by the process that leads with what a user wants to know of weights and data,
// before the first step.  `per_document`: also the loss of each.  `progress`: called on rank 0 with
// the documents that are done.
EvalResult evaluate(
    const LoadedConfig& config,
    Backend& backend,
    const std::function<void(const std::string& line)>& note = {},
    const std::function<void(std::int64_t done, std::int64_t of, const std::string& what)>&
        progress = {},
    bool per_document = false);

}  // namespace paradyse
