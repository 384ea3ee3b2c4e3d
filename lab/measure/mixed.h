// What cuts in proportion are worth on unlike ranks, tried for real: `paradyse-lab mixed`.
//
// Ranks are threads of this process.  A slow one is made by sleeping in proportion to its own
// computing, a small one by its memory budget.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/strategy.h"
#include "paradyse/run/weights.h"
#include "src/plan/base/progress_hook.h"

namespace paradyse {

struct BenchMixedRequest {
  Model model;  // its weights are not read
  LayerChoice layer = {};
  Dtype dtype = Dtype::float32;
  ProgressHook progress = {};
};

// A step of forward, backward and update on ranks of unlike speed.
struct MixedSpeed {
  struct Steps {
    std::vector<double> seconds;  // [repeat]
    // [rank] Processor seconds of a step times the rank's slowdown, mean: what it would compute and
    // sleep with the machine to itself.
    std::vector<double> busy_s;
  };
  std::vector<double> shares;  // [rank] of the proportional cuts; empty: even ones are as good
  Steps even;                  // taken in turn with
  Steps proportional;
  // Were the same speed in all spread evenly: of the seconds of even cuts.  With even cuts the
  // slowest rank takes its p-th part of the work; ideally all are done together.
  double ideal = 1;

  // What is gained over even cuts, of what is gained ideally.
  [[nodiscard]] std::vector<double> gains() const;  // [repeat]
  [[nodiscard]] double busy_gain() const;           // by the busiest rank
};

// Rank r computes `slowdown[r]` times as long as this machine does, from 1 on: at each exchange it
// sleeps the rest.  Every rank has a core of its own.  `length`: tokens of the document.
// Throws std::invalid_argument for more ranks than cores, for ranks that are alike, for a strategy
// of one rank.
MixedSpeed bench_mixed_speed(
    const BenchMixedRequest& request,
    const std::vector<double>& slowdown,
    std::int64_t length,
    int repeats);

// The longest document that ranks of unlike memory train on.
struct MixedMemory {
  struct Longest {
    std::int64_t tokens = 0;               // by the folds; was run
    std::vector<double> shares;            // [rank] empty: even
    std::vector<std::int64_t> peak_bytes;  // [rank] of that run, measured
    std::int64_t refused = 0;              // tokens of a somewhat longer one that ran out of memory
  };
  Longest even;
  Longest proportional;
  std::int64_t ideal = 0;  // tokens, by the folds: were the same memory in all spread evenly

  // What is gained over even cuts, of what is gained ideally.
  [[nodiscard]] double gain() const;
};

// `memory`: bytes that each rank may hold.  Throws std::invalid_argument for ranks that are alike,
// for a strategy of one rank, for a budget that holds no document at all and for a model whose
// learned positions end before memory does.
MixedMemory bench_mixed_memory(
    const BenchMixedRequest& request, const std::vector<std::int64_t>& memory);

}  // namespace paradyse
