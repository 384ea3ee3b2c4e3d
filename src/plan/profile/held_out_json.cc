#include "src/plan/profile/held_out_json.h"

#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

namespace paradyse {

nlohmann::ordered_json json_of(const HeldOutError& error) {
  for (const double value :
       {error.mean, error.worst, error.bias.value_or(0), error.floor.value_or(0)}) {
    if (!(std::abs(value) <= kMostNumber)) {
      throw std::invalid_argument(fmt::format(
          "an error of {} on lengths left out is {}, and a costs file has numbers up to {}: fit "
          "again",
          error.part,
          value,
          kMostNumber));
    }
  }
  nlohmann::ordered_json json = {
      {"model", error.model},
      {"part", error.part},
      {"strategy", error.strategy},
      {"range", error.beyond ? "beyond" : "inside"},
      {"probes", error.probes},
      {"mean", error.mean},
      {"worst", error.worst}};
  if (error.ranks > 0) {
    json["ranks"] = error.ranks;
  }
  if (error.bias) {
    json["bias"] = *error.bias;
  }
  if (error.floor) {
    json["floor"] = *error.floor;
  }
  return json;
}

HeldOutError held_out_error_from(const JsonNode& node) {
  node.allow(
      {"model", "part", "strategy", "range", "probes", "mean", "worst", "bias", "floor", "ranks"});
  const JsonNode range = node.at("range");
  const bool beyond = range.text() == "beyond";
  if (!beyond && range.text() != "inside") {
    range.fail("expected inside or beyond, found \"" + range.text() + "\"");
  }
  return {
      .model = node.at("model").text(),
      .part = node.at("part").text(),
      .strategy = node.at("strategy").text(),
      .beyond = beyond,
      .probes = node.at("probes").integer<std::int64_t>(0),
      .mean = node.at("mean").number_from_0(),
      .worst = node.at("worst").number_from_0(),
      .bias = node.has("bias") ? std::optional(node.at("bias").number(-kMostNumber, kMostNumber))
                               : std::nullopt,
      .floor = node.has("floor") ? std::optional(node.at("floor").number_from_0()) : std::nullopt,
      .ranks = node.has("ranks") ? node.at("ranks").integer<int>(1) : 0};
}

}  // namespace paradyse
