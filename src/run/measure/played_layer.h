// How fast a device runs a layer of a model: played as training plays it, so with the run's type,
// sizes and kernels, whichever those are.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/profile.h"

namespace paradyse {

// One layer on one document by one rank that holds all weights, forward or also backward: what the
// folds count, and the seconds (breakdown.h) that go to it; medians of some repeats.
struct PlayedLayer {
  double matmul_flops = 0;
  double attention_flops = 0;
  double touched_bytes = 0;
  Spread products = {};
  Spread attention = {};
  Spread other = {};
};

// Embedding and head are there, with a small vocabulary.  Nothing is held afterwards.
PlayedLayer play_layer(
    const Model& model, Dtype dtype, std::int64_t tokens, c10::Device device, bool backward = true);

}  // namespace paradyse
