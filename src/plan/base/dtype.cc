#include "paradyse/plan/dtype.h"

#include <algorithm>
#include <stdexcept>

#include "src/plan/base/text_match.h"

namespace paradyse {

const char* to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::float32:
      return "float32";
    case Dtype::float64:
      return "float64";
    case Dtype::bfloat16:
      return "bfloat16";
    case Dtype::float16:
      return "float16";
  }
  return "";
}

Dtype dtype_named(std::string_view name) {
  const auto* const found =
      std::ranges::find_if(kDtypes, [&](Dtype dtype) { return name == to_string(dtype); });
  if (found == kDtypes.end()) {
    throw std::invalid_argument(
        "dtype '" + std::string(name) + "' is not known; accepted: " + joined(dtype_names(), ", "));
  }
  return *found;
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  names.reserve(kDtypes.size());
  for (const Dtype dtype : kDtypes) {
    names.emplace_back(to_string(dtype));
  }
  return names;
}

}  // namespace paradyse
