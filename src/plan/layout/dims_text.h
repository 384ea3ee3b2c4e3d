// Sizes of dims for people.
#pragma once

#include <string>

#include "paradyse/plan/detail/layout.h"

namespace paradyse {

// "frames 5, patches 6".
inline std::string text_of(const DimSizes& dims) {
  std::string text;
  for (const auto& [name, size] : dims) {
    text.append(text.empty() ? "" : ", ").append(name).append(" ").append(std::to_string(size));
  }
  return text;
}

}  // namespace paradyse
