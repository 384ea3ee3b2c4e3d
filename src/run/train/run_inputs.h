// What a run's configuration names: its model, documents, steps and planning task.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/config.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/train.h"
#include "paradyse/run/weights.h"
#include "src/plan/config/fields.h"
#include "src/plan/profile/fit.h"
#include "src/run/train/dataset.h"

namespace paradyse {

// All throw std::invalid_argument naming the key, what stands there and what would be accepted.

// Field::known_by of the keys that the model knows beside those of all.
std::string known_to(const Model& model);
// Of keys that only other models know those of [data] are noted (ModelFolder::notes) and others
// refused; of a run that began when they were ignored they are all noted.
ModelFolder model_at(const RunConfig& config, bool of_a_run = false);

// The documents that a language model is trained, evaluated or scored on: the one rule of which are
// taken, and cut.  `key`: what `paths` are written under.
Corpus corpus_at(
    const std::string& key,
    const std::vector<std::string>& paths,
    const RunConfig& config,
    const std::filesystem::path& folder,
    const Model& model);

// The same, or of a model of several dims its samples.
Dataset data_at(
    const char* key,
    const std::vector<std::string>& paths,
    const RunConfig& config,
    const ModelFolder& model);

// Which items each step trains on: drawn in the run's order until a step has its tokens, or rows.
// With train.epochs as many as there are in so many epochs, the last step with what is left.
std::vector<std::vector<std::int64_t>> steps_of(const RunConfig& config, const Dataset& data);

// Bytes of parallel.memory_per_rank; 0: no limit (with_budget() knows that of GPUs).
std::int64_t memory_of(const RunConfig& config);

// The same with the budget that ranks have: on GPUs, where none is given, what is free there
// (memory_budget.h).  Every process calls it.
RunConfig with_budget(RunConfig config, Backend& backend);

// Of what a rank holds of an element, by the type and where the optimizer's state waits.
Precision precision_of(const RunConfig& config);

// Of the weights in a saved model (output.dtype); `trained`: those that ops read.
at::ScalarType saved_type(const RunConfig& config, at::ScalarType trained);

// What plans go by where there are no measured costs: a few numbers, taken here and now; with
// costs.correct = false, on CPUs, nominal ones (MachineNumbers), since speeds are never the same.
MachineNumbers machine_for(const RunConfig& config, const ModelFolder& model, Backend& backend);

// What plans of a run are made from, beside its configuration.
struct PlanningNumbers {
  MachineNumbers machine;
  int ranks_per_node = 0;               // as in PlanningTask, as the next
  std::optional<NodeLinks> links = {};  // none also where nothing is measured
  std::optional<Costs> costs = {};      // none: plans go by a closed form
  std::string costs_file = {};          // that these were read from
  std::string extrapolated = {};        // how costs of other ranks are used; "": they are not
  int weight_domain = 0;                // as in PlanningTask

  // "": there are none.
  [[nodiscard]] std::string costs_fingerprint() const;
};

PlanningTask planning_task(
    const RunConfig& config, const Model& model, bool training, const PlanningNumbers& numbers);

// Its weights, opened: throws as open_weights() does, after "model.path: ".
ModelWeights weights_at(const RunConfig& config, const ModelFolder& model);
ModelReport report_of(const ModelWeights& weights);
// Its sentences, one by one.
void tell(const ModelReport& model, const std::function<void(const std::string& line)>& note);

}  // namespace paradyse
