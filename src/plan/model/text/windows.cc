// Which layers of a text model have a window of attention, as configurations say it.
#include <algorithm>
#include <utility>

#include "src/plan/model/text/text_families.h"

namespace paradyse {

using nlohmann::json;

std::optional<std::vector<bool>> read_windowed_layers(const Keys& keys, std::int64_t layers) {
  const json* types = keys.find("layer_types");
  if (types == nullptr) {
    return std::nullopt;
  }
  const auto known = [](const json& type) {
    return type == "full_attention" || type == "sliding_attention" ||
           type == "attention";  // the first one's old name
  };
  if (!types->is_array() || !std::cmp_equal(types->size(), layers) ||
      !std::all_of(types->begin(), types->end(), known)) {
    keys.refuse(
        "layer_types",
        "accepted is \"full_attention\" or \"sliding_attention\" for each of the " +
            std::to_string(layers) + " layers");
  }
  std::vector<bool> windowed;
  windowed.reserve(types->size());
  for (const json& type : *types) {
    windowed.push_back(type == "sliding_attention");
  }
  return windowed;
}

void set_windows(TextShape& shape, std::int64_t window, std::vector<bool> windowed) {
  const auto count = std::ranges::count(windowed, true);
  shape.window = windowed.empty() || count > 0 ? window : 0;
  shape.windowed = shape.window == 0 || std::cmp_equal(count, windowed.size())
                       ? std::vector<bool>()
                       : std::move(windowed);
}

json layer_types_of(const TextShape& shape) {
  json types = json::array();
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    types.push_back(shape.window_of(layer) > 0 ? "sliding_attention" : "full_attention");
  }
  return types;
}

}  // namespace paradyse
