// How long forward and backward of a model take by the planned layout and by each rival's, in
// turns: what `paradyse bench layout` measures.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/layout_planner.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/weights.h"
#include "src/plan/base/progress_hook.h"

namespace paradyse {

struct BenchLayoutRequest {
  Model model;
  Documents documents;                 // samples and their dims, or alike documents; and ranks
  std::vector<std::string> ways = {};  // by name; none: all
  LayerRecompute recompute = {};
  // What parts take, for a plan by seconds; none: by elements.
  std::function<double(const ScheduledPart& part)> seconds = {};
  Dtype dtype = Dtype::float32;
  int repeats = 5;  // rounds that count, after one that does not
  std::int64_t memory_per_rank = 0;
  std::shared_ptr<Backend> backend = local_backend();
  ProgressHook progress = {};
};

struct BenchLayoutRow {
  std::string way;               // "planned", "dsp", ...
  std::vector<double> seconds;   // [round]
  std::int64_t bytes_sent = 0;   // by all ranks, a step
  std::int64_t peak_bytes = 0;   // of the fullest rank
  std::int64_t saved_bytes = 0;  // the same
};

// In the process that leads (backend.h); elsewhere none.  Throws std::invalid_argument, naming
// those there are, for a way that is none.  Each round runs every way twice and
// counts the second, whose programs are built and whose memory is warm.
std::vector<BenchLayoutRow> bench_layout(const BenchLayoutRequest& request);

}  // namespace paradyse
