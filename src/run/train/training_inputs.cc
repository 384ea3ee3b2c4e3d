#include "src/run/train/training_inputs.h"

#include <algorithm>

#include "paradyse/plan/index.h"
#include "src/run/device/device.h"
#include "src/run/memory/reading.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {
namespace {

std::int64_t length(const Tokens& document) { return static_cast<std::int64_t>(document.size()); }

}  // namespace

std::vector<std::vector<std::int64_t>> TrainingInputs::lengths() const {
  std::vector<std::vector<std::int64_t>> all;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    std::vector<std::int64_t>& of_step = all.emplace_back();
    for (const Tokens* document : documents(step)) {
      of_step.push_back(length(*document));
    }
  }
  return all;
}

std::int64_t TrainingInputs::longest() const {
  std::int64_t most = 0;
  for (const std::vector<std::int64_t>& of_step : lengths()) {
    for (const std::int64_t n : of_step) {
      most = std::max(most, n);
    }
  }
  return most;
}

std::vector<std::int64_t> TrainingInputs::typical_lengths() const {
  std::int64_t most = 0;
  for (const Tokens& document : corpus.documents) {
    most = std::max(most, length(document));
  }
  std::vector<std::int64_t> typical;
  for (std::int64_t n = 256; n < most; n *= 4) {
    typical.push_back(n);
  }
  typical.push_back(most);
  return typical;
}

std::vector<const Tokens*> TrainingInputs::documents(std::size_t step) const {
  std::vector<const Tokens*> of_step;
  for (const std::int64_t d : steps[step]) {
    of_step.push_back(&corpus.documents[idx(d)]);
  }
  return of_step;
}

DataPosition TrainingInputs::position(std::int64_t step) const {
  return data_position(corpus, corpus_fingerprint, steps, step);
}

TrainingInputs training_inputs(const LoadedConfig& loaded, const std::filesystem::path& resume) {
  const RunConfig& config = loaded.config;
  TrainingInputs inputs;
  if (!resume.empty()) {  // first: the checkpoint has to fit the configuration
    inputs.from = reading([&] { return resumed(resume); }, "--resume");
    inputs.changes = expect_same_run(loaded, *inputs.from);
  }
  inputs.device = device_named(config.parallel.device);
  inputs.model = model_at(config);
  inputs.corpus = corpus_at("data.path", config.data.path, config, inputs.model.shape);
  inputs.corpus_fingerprint = fingerprint(inputs.corpus);
  inputs.steps = steps_of(config, inputs.corpus);
  expect_trainable(inputs.model.shape);
  if (inputs.from) {
    expect_same_model(inputs.model.shape, *inputs.from);
    expect_same_data(inputs.position(inputs.first_step()), config.data.path, *inputs.from);
  }
  if (!config.data.eval_path.empty()) {
    inputs.evaluation =
        corpus_at("data.eval_path", config.data.eval_path, config, inputs.model.shape);
  }
  return inputs;
}

}  // namespace paradyse
