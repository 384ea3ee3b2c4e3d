// Moments of AdamW that another program left, for a new run to begin with (optimizer.path).
//
//   PATH/exp_avg/     model.safetensors, or an index and its shards: tensors by the names and in
//   the PATH/exp_avg_sq/  shapes of the weights; `optimizer` and `steps` are in each file's
//   metadata
//
// python -m paradyse.torch.dcp writes such a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "paradyse/plan/model.h"
#include "paradyse/run/weights.h"
#include "src/run/weights/optimizer.h"
#include "src/run/weights/safetensors.h"

namespace paradyse {

struct StoredMoments {
  std::shared_ptr<const SafetensorsReader> mean;
  std::shared_ptr<const SafetensorsReader> variance;
  std::int64_t steps = 0;  // of the optimizer

  // Puts a rank's pieces in place, and the number of steps.  Safe on several ranks at once.  The
  // weights hold other numbers after it: they are filled later.
  void fill(Parameters& parameters, AdamW& optimizer) const;
};

// Throws std::runtime_error naming the file and what does not fit the model, or AdamW.
StoredMoments open_moments(const std::filesystem::path& folder, const Model& model);

}  // namespace paradyse
