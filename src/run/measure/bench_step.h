// How fast training steps are, of one plan or of several in turn: what `paradyse bench step`
// measures.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/profile.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/weights.h"
#include "src/plan/base/progress_hook.h"
#include "src/run/data/owned_item.h"
#include "src/run/device/data_sheet.h"
#include "src/run/execute/breakdown.h"

namespace paradyse {

// What is measured: a sound plan of the request's model and ranks, and what it is played on.
struct BenchStepCase {
  std::string name;
  Plan plan;
  std::vector<OwnedItem> items = {};  // none: synthetic ones of the plan's sizes
};

struct BenchStepRequest {
  Model model;  // without weights: random ones
  int ranks = 1;
  std::vector<BenchStepCase> cases = {};
  Dtype dtype = Dtype::float32;
  double clip_norm = 0;  // of all gradients; 0: not clipped
  int repeats = 5;       // rounds
  std::int64_t memory_per_rank = 0;
  bool breakdown = false;  // also say where the processors' time goes; costs about a percent
  std::shared_ptr<Backend> backend = local_backend();
  c10::Device device = c10::Device(c10::kCPU);
  ProgressHook progress = {};
};

// One case.  Where it lacked memory, only what comes before `lacks_memory` and counted_bytes say
// anything.
struct BenchStepRow {
  std::string name;
  std::int64_t length = 0;  // of the first document, or rows of the first sample
  std::int64_t documents = 0;
  std::int64_t tokens = 0;  // of all documents, or rows of all samples
  Messages messages = {};
  std::string lacks_memory = {};            // why it was not measured; empty: it was
  std::vector<double> seconds = {};         // [round] of forward, backward and optimizer
  std::vector<double> optimizer_each = {};  // [round] of them, in the optimizer
  double step_s = 0;                        // median of `seconds`
  double best_s = 0;
  double worst_s = 0;
  double forward_backward_s = 0;  // median
  double optimizer_s = 0;         // median
  Spread of_first = {};           // of the rounds: seconds a token, of those of the first measured
  double cpu_s = 0;               // processor seconds of all ranks a step, mean
  // Of them, or of the GPUs' seconds, by Breakdown::Part; 0 where it was not asked for.
  std::array<double, Breakdown::kParts> parts_s{};
  double idle_s = 0;        // the cores' (or GPUs') seconds a step that no rank used, mean
  double exposed_s = 0;     // wall seconds a step in which a rank's parts sent, received or waited
                            // for messages, mean over ranks; 0 where no breakdown was asked for
  double tokens_per_s = 0;  // by step_s
  double model_flops = 0;   // a step: matrix products and causal attention, backward twice forward
  double hardware_flops = 0;  // what was executed: with recomputation
  double touched_bytes = 0;   // a step: each operand and result of element-wise ops, once
  // Those a step over its seconds: counted operations, measured time.
  double model_flops_per_second = 0;
  double hardware_flops_per_second = 0;
  double model_utilisation = 0;  // of the measured matrix-product speed of all cores in use
  double hardware_utilisation = 0;
  std::int64_t counted_bytes = 0;   // of the fullest rank, by the folds
  std::int64_t peak_bytes = 0;      // the same, by the accountant
  std::int64_t saved_bytes = 0;     // of the rank that saves most
  std::int64_t bytes_sent = 0;      // by rank 0 in a step
  std::int64_t all_bytes_sent = 0;  // by all ranks
};

// In the process that leads (backend.h).
struct BenchStepResult {
  double matmul_flops_per_second = 0;  // of one core, or of one GPU: in products like the model's
  int cores = 1;                       // or GPUs
  // Of a GPU: its name, what it reached in a large product, and what its data sheet says of this
  // type, where both are known.
  std::string card = {};
  double large_product_flops_per_second = 0;
  std::optional<DataSheet> data_sheet = {};
  std::vector<BenchStepRow> rows;  // [case]
};

// Each round measures a step of every case, and begins with another one than the round before.  A
// step that follows one of another case is played twice, and the second time counts: its programs
// are built then, and its memory is warm.  A case that is counted to need more than the memory
// budget is not run, and one that lacks memory when it runs is left out from then on (as
// within_memory.h has it).
BenchStepResult bench_step(const BenchStepRequest& request);

}  // namespace paradyse
