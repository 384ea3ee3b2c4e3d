// Loss and every gradient of one batch, by a plan on the ranks of a backend: what `paradyse grad`
// and `paradyse check` compute.  And how far
// one set of gradients is from another, as one number that a tolerance can judge.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/dtype.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/session.h"
#include "paradyse/run/weights.h"

namespace paradyse {

struct GradientRequest {
  Model model = {};
  std::function<void(Parameters& parameters)> fill = {};  // the weights of each rank; called on all
  const Plan* plan = nullptr;
  std::vector<Item> items = {};    // as in Batch
  std::uint64_t dropout_seed = 0;  // of the model's dropout, if it has any
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

struct GradientError {
  std::string worst_name;  // empty when there are no gradients
  double worst = 0;
};

// Of each gradient g* of `expected` ||g - g*|| / max(||g*||, 1e-3 ||all g*||), by its name, in
// float64. The second term keeps a gradient that is nearly zero from being judged by its own noise.
// A gradient that is NaN or infinite on either side gives infinity, as does one that differs where
// all of `expected` is zero.
// `judged_as`: instead of its own length, that of the gradient it is mapped to: of one that is zero
// in exact arithmetic, whose error is rounding alone.
// Throws std::invalid_argument naming every gradient that only one side has, or whose shapes
// differ; an undefined tensor counts as absent.
std::map<std::string, double> gradient_errors(
    const std::map<std::string, at::Tensor>& actual,
    const std::map<std::string, at::Tensor>& expected,
    const std::map<std::string, std::string>& judged_as = {});

// The largest of them; throws like gradient_errors().
GradientError compare_gradients(
    const std::map<std::string, at::Tensor>& actual,
    const std::map<std::string, at::Tensor>& expected,
    const std::map<std::string, std::string>& judged_as = {});

}  // namespace paradyse
