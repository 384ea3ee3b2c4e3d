// Loss and every gradient of one batch, by a plan on the ranks of a backend: what `paradyse grad`
// and `paradyse check` compute.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "paradyse/plan/dtype.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/session.h"
#include "paradyse/run/weights.h"

namespace paradyse {

struct GradientRequest {
  Model model = {};
  std::function<void(Parameters& parameters)> fill = {};  // the weights of each rank; called on all
  const Plan* plan = nullptr;
  std::vector<std::vector<std::int32_t>> documents = {};
  std::vector<std::vector<std::int32_t>> labels = {};  // as in Batch
  std::vector<Sample> samples = {};                    // the same
  std::uint64_t dropout_seed = 0;                      // of the model's dropout, if it has any
  Dtype dtype = Dtype::float64;
  std::int64_t memory_per_rank = 0;  // bytes, 0: no limit
  std::shared_ptr<Backend> backend = local_backend();
  Trace* trace = nullptr;
  c10::Device device = c10::Device(c10::kCPU);
  std::int64_t attention_dense_from = kAttentionDenseFrom;  // as in SessionOptions
};

struct RankReport {
  std::int64_t bytes_sent = 0;  // by the communicators, start to end of the batch
  std::int64_t messages = 0;
  std::int64_t saved_bytes = 0;
  std::int64_t peak_bytes = 0;
};

// In the process that leads (backend.h); elsewhere nothing of it is set.
struct GradientAnswer {
  BatchResult batch;
  std::map<std::string, at::Tensor> gradients;  // by Hugging Face name, on the host
  std::vector<RankReport> ranks;
};

// Throws std::invalid_argument for a token id or label outside the vocabulary, and what play() and
// check_sample() throw.
GradientAnswer gradients(const GradientRequest& request);

// Throws std::runtime_error naming the first gradient that holds values that are not finite: a
// finite loss may have such.
void expect_finite(const GradientAnswer& answer);

// What the folds say of the same batch: traffic of all micro-batches and the closing agreement, the
// largest saved bytes and peak of the micro-batches.
RankReport predicted_report(
    const Plan& plan,
    const Model& model,
    int rank,
    Precision precision,
    Keeps keeps = Keeps::gradients);

}  // namespace paradyse
