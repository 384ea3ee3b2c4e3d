// Measures what switching strategies by length is worth: `paradyse-lab switching`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "lab/report/switching.h"
#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/dtype.h"
#include "paradyse/run/backend.h"
#include "src/plan/base/progress_hook.h"

namespace paradyse {

struct BenchSwitchingRequest {
  PlanningTask task;  // model, ranks, memory, and the costs that planned runs go by
  std::shared_ptr<const TimeModel> published = nullptr;  // that the published heuristic goes by;
                                                         // null: the task's
  std::shared_ptr<const TimeModel> without_forest = nullptr;  // the same, for the ablation
  bool correct = true;                                        // ours, its costs by its own seconds
  std::string corpus;
  std::vector<std::int64_t> lengths = {};  // tokens of the documents, in the order of training
  std::string order = "shuffled";          // for the report
  std::int64_t tokens_per_step = 0;  // documents are packed into steps of so many; 0: one each
  bool ablation = false;  // also what ours and the published heuristic are without their parts
  int repeats = 3;        // of the whole corpus, all runs in turn at each step
  Dtype dtype = Dtype::float32;
  std::shared_ptr<Backend> backend = local_backend();
  c10::Device device = c10::Device(c10::kCPU);
  ProgressHook progress = {};
};

// Every static strategy, as published without recomputation and beside that at the least level at
// which a step fits, the published heuristic (also as it is: one strategy a layer, for attention
// and MLP), ours by the task's batch planner and by borders, over the same documents: forward,
// backward and optimizer of each step, planning apart.  At each step runs take turns in an order
// that is new each round; what several runs plan alike is measured once for all of them.  Ours
// corrects its costs by its own measured seconds where train would.  A step that no plan of a run
// fits is left out of that run.  Every process calls it; the one that leads (backend.h) gets the
// result.
SwitchingCorpus bench_switching(const BenchSwitchingRequest& request);

// The longest document that each of these runs has a plan for.
std::vector<LongestDocument> longest_documents(const BenchSwitchingRequest& request);

}  // namespace paradyse
