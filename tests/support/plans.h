// Plans of tests.
#pragma once

#include <cstdint>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/plan.h"

namespace paradyse::test {

// All layers by one choice.
inline Plan uniform_plan(
    const Model& model,
    const std::vector<std::int64_t>& lengths,
    int ranks,
    const LayerChoice& layer) {
  return paradyse::uniform_plan(
      model, lengths, ranks, std::vector<LayerChoice>(idx(model.layers), layer));
}

}  // namespace paradyse::test
