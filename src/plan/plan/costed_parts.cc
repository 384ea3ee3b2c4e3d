#include "paradyse/plan/detail/costed_parts.h"

#include <algorithm>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/strategy.h"

namespace paradyse {
std::string costed_name(const ScheduledPart& part) {
  const std::string& name = part.program().part;
  return name.starts_with("move ") ? kMoves : part.layer < 0 ? kRest : name;
}

CostedPart costed_part(const ScheduledPart& part) {
  CostedPart one{.part = costed_name(part), .strategy = {}};
  if (one.part != kMoves && one.part != kRest) {
    one.strategy = part.program().strategy;
  }
  return one;
}

CostedPart costed_part(const PartChoice& choice) {
  return {.part = choice.part, .strategy = strategy(kind_of(choice.part), choice.strategy).name};
}

std::vector<CostedPart> costed_parts(const LayerRuns& program) {
  std::vector<CostedPart> parts;
  for (const LayerRun& run : program) {
    for (const PartChoice& choice : run.choice) {
      parts.push_back(costed_part(choice));
    }
  }
  std::ranges::sort(parts);
  parts.erase(std::ranges::unique(parts).begin(), parts.end());
  parts.push_back({.part = kMoves, .strategy = {}});
  parts.push_back({.part = kRest, .strategy = {}});
  return parts;
}

std::size_t place_among(const std::vector<CostedPart>& parts, const CostedPart& one) {
  const auto found = std::ranges::find(parts, one);
  if (found == parts.end()) {
    throw std::logic_error(
        "costed parts: no layer of the program has '" + one.part + "' by '" + one.strategy + "'");
  }
  return idx(found - parts.begin());
}

}  // namespace paradyse
