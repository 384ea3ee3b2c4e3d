// What a training run is given: read, and checked against one another and against the checkpoint
// that it goes on from.  Nothing is measured, planned or written here.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/config.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/train.h"
#include "paradyse/run/weights.h"
#include "src/run/train/dataset.h"
#include "src/run/train/resume.h"
#include "src/run/train/stored_moments.h"

namespace paradyse {

struct TrainingInputs {
  std::optional<Resumed> from;       // what it goes on from
  std::vector<std::string> changes;  // of the configuration since then, for the user
  c10::Device device = c10::Device(c10::kCPU);
  ModelFolder model;
  ModelWeights weights;  // that it begins with; of a run that goes on, those that are frozen
  std::optional<StoredMoments> moments;  // that the optimizer begins with; none: zeros
  std::string frozen;                    // frozen_fingerprint() of these; "": all are trained
  Dataset data;
  std::string data_fingerprint;
  std::vector<std::vector<std::int64_t>> steps;  // items of each
  std::vector<std::uint64_t> first_draws;        // [step] draws of the steps before it
  std::optional<Dataset> evaluation;

  // It goes on, and has_moved().
  [[nodiscard]] bool moved(const RunConfig& config) const;
  [[nodiscard]] std::int64_t first_step() const { return from ? from->state.step : 0; }
  // The items of a step, and the most tokens that one of any has.
  [[nodiscard]] BatchSizes batch(std::size_t step) const { return data.sizes(steps[step]); }
  [[nodiscard]] std::int64_t longest() const;
  // Each by itself: items of which no other has as much of every size, as the longest document.
  // `evaluated`: also of the evaluation.
  [[nodiscard]] std::vector<BatchSizes> largest(bool evaluated = true) const;
  // Powers of four from the shortest to the longest item of the data, and that one.
  [[nodiscard]] std::vector<std::int64_t> typical_lengths() const;
  // Of samples: at most six sizes of the data, from the fewest to the most rows.
  [[nodiscard]] BatchSizes typical_sizes() const;
  [[nodiscard]] BatchItems items(
      std::size_t step, std::uint64_t seed, const Plan& plan, int rank) const;
  [[nodiscard]] DataPosition position(std::int64_t step) const;
};

// Every process calls it.  `note` is told what became of a damaged checkpoint, and which given
// files are not read.  Throws what is wrong with any of them, naming the key or --resume.
TrainingInputs training_inputs(
    const LoadedConfig& loaded,
    const TrainFrom& from,
    Backend& backend,
    const std::function<void(const std::string& line)>& note);

// Every process calls this.  Throws RanksDiffer (agreement.h) unless all have the same contents.
void expect_same_inputs(const TrainingInputs& inputs, const RunConfig& config, Backend& backend);

}  // namespace paradyse
