// Layers of a model that are alike.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "paradyse/plan/model.h"

namespace paradyse {

// So many layers of these parts, which they share; a site of dropout for each.
inline void add_layers(
    Model& model, std::int64_t layers, const std::vector<std::shared_ptr<const Part>>& parts) {
  model.layers = layers;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (const std::shared_ptr<const Part>& part : parts) {
      const auto site = static_cast<std::uint32_t>(model.parts.size()) + 1;
      model.parts.push_back({.layer = layer, .site = site, .part = part});
    }
  }
}

}  // namespace paradyse
