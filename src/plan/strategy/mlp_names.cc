#include "src/plan/strategy/mlp_names.h"

#include <algorithm>
#include <stdexcept>

#include "src/plan/base/text_match.h"

namespace paradyse {

const std::vector<Renamed>& weight_modes() {
  static const std::vector<Renamed> modes = {
      {.now = "tensor-parallel", .old = to_string(Verb::hold)},
      {.now = "zero3", .old = to_string(Verb::gather)},
      {.now = "streamed", .old = to_string(Verb::pass)}};
  return modes;
}

std::vector<std::string> mlp_names() {
  std::vector<std::string> names;
  for (const Strategy& s : strategies("mlp")) {
    const auto mode = std::ranges::find(weight_modes(), s.name, &Renamed::old);
    names.push_back(mode == weight_modes().end() ? s.name : mode->now);
  }
  for (const Strategy& s : strategies("attention")) {
    names.push_back(s.name);
  }
  return names;
}

const Strategy& mlp_strategy(const std::string& name) {
  const std::vector<std::string> known = mlp_names();
  const std::string now = current_name(name, weight_modes());
  if (std::ranges::find(known, now) == known.end()) {
    throw std::invalid_argument(
        "unknown MLP strategy '" + name + "'" + did_you_mean(name, known) +
        "; known: " + joined(known, ", "));
  }
  const auto mode = std::ranges::find(weight_modes(), now, &Renamed::now);
  return strategy("mlp", mode == weight_modes().end() ? name : mode->old);
}

}  // namespace paradyse
