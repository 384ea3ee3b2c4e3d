// Sizes of dims for people.
#pragma once

#include <string>

#include "paradyse/plan/detail/layout.h"
#include "src/plan/base/text_match.h"

namespace paradyse {

// "frames 5, patches 6".
inline std::string text_of(const DimSizes& dims) {
  return joined(
      dims, ", ", [](const auto& dim) { return dim.first + " " + std::to_string(dim.second); });
}

}  // namespace paradyse
