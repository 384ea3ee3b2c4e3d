// What each means of memory-efficient training brings, one upon the other: the table of the survey
// arXiv 2501.11847, for models of several dims and language models.  What `paradyse-lab memory`
// measures.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/dtype.h"
#include "paradyse/run/weights.h"
#include "src/plan/base/progress_hook.h"

namespace paradyse {

struct MemoryRequest {
  Model model;  // its weights are not read: random ones
  // Of one sample, by dim of its streams; of a language model "tokens" of a document.
  std::map<std::string, std::int64_t> dims;
  std::int64_t samples = 1;
  // Those of the sample that is small enough for the float64 reference: errors are found on it.
  std::map<std::string, std::int64_t> small_dims;
  std::vector<int> ranks = {2, 4, 8};  // of the last rows
  std::int64_t tiles = 16;             // of chunking
  // Rows whose ranks together take more are counted alone; 0: all.
  std::int64_t measured_bytes = 0;
  ProgressHook progress = {};
};

// Forward and backward of a step on one sample, without an optimizer.  Each row does what those
// before it do.
struct MemoryRow {
  std::string name;  // "naive", "+ tiled attention", ..., "+ 2 ranks"
  int ranks = 1;
  Dtype dtype = Dtype::float32;
  // Peak of the fullest rank: weights, gradients and what the pass holds.
  std::int64_t counted_bytes = 0;                // by the folds; of naive: without data
  std::optional<std::int64_t> measured_bytes{};  // by the accountant
  std::optional<double> seconds{};               // where it was measured
  // Of the small sample against naive in float64: of the loss, relative; the largest of a gradient
  // (gradients.h).
  double loss_error = 0;
  double gradient_error = 0;
};

std::vector<MemoryRow> memory_table(const MemoryRequest& request);

}  // namespace paradyse
