// Loss and every gradient of one batch, by a plan on ranks of this process: what `paradyse grad`
// and `paradyse check` compute.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "paradyse/communicator.h"
#include "paradyse/parameters.h"
#include "paradyse/play.h"

namespace paradyse {

struct GradientRequest {
  const ModelShape* model = nullptr;
  std::function<void(Parameters& parameters)> fill = {};  // the weights of each rank; called on all
  const Plan* plan = nullptr;
  std::vector<std::vector<std::int32_t>> documents = {};
  std::string dtype = "float64";
  std::int64_t memory_per_rank = 0;  // bytes, 0: no limit
  LocalOptions local = {};
  Trace* trace = nullptr;
};

struct RankReport {
  std::int64_t bytes_sent = 0;  // by the communicators, start to end of the batch
  std::int64_t messages = 0;
  std::int64_t saved_bytes = 0;
  std::int64_t peak_bytes = 0;
};

struct GradientAnswer {
  BatchResult batch;
  std::map<std::string, at::Tensor> gradients;  // by Hugging Face name
  std::vector<RankReport> ranks;
};

GradientAnswer gradients(const GradientRequest& request);

// What the folds say of the same batch: traffic of all micro-batches and the closing agreement, the
// largest saved bytes and peak of the micro-batches.  `elements_bytes`: bytes a rank holds for each
// element it stores (weight and gradient, and optimizer state in training).
RankReport predicted_report(
    const Plan& plan,
    const ModelShape& model,
    int rank,
    Precision precision,
    std::int64_t static_bytes);

}  // namespace paradyse
