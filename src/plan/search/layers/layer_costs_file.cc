#include "src/plan/search/layers/layer_costs_file.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <set>
#include <stdexcept>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_node.h"

namespace paradyse {
namespace {

// A whole number of bytes, also as measurements write them: 3.0, 1e9.
std::int64_t bytes_in(const JsonNode& node) {
  const double number = node.number_from_0();
  if (number != std::floor(number) || number >= 9.2e18) {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    node.fail("expected a whole number of bytes, found " + std::string(digits.data(), end));
  }
  return static_cast<std::int64_t>(number);
}

}  // namespace

std::vector<LayerCost> read_layer_costs(const std::string& path) {
  const std::string text = content_of_named(path, "give a costs file (docs/internals/planning.md)");
  try {
    const JsonSource source{.name = path, .whole = "the costs"};
    const nlohmann::json json = parse_json(text, source);
    std::vector<LayerCost> ways;
    std::set<std::string> names;
    const JsonNode options = JsonNode(json, source).at("options");
    for (const JsonNode& one : options.elements()) {
      one.allow({"name", "seconds", "saved_bytes", "transient_bytes"});
      LayerCost way{
          .name = one.at("name").text(),
          .seconds = one.at("seconds").number_from_0(),
          .saved_bytes = bytes_in(one.at("saved_bytes")),
          .transient_bytes = bytes_in(one.at("transient_bytes"))};
      if (way.name.empty()) {
        one.at("name").fail("expected a name, found \"\"");
      }
      if (!names.insert(way.name).second) {
        one.at("name").fail("'" + way.name + "' appears twice");
      }
      ways.push_back(std::move(way));
    }
    if (ways.empty()) {
      options.fail("expected at least one");
    }
    return ways;
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(
        std::string(error.what()) +
        "; correct it, measure it again, or leave the option out (docs/internals/planning.md: "
        R"({"options": [{"name", "seconds", "saved_bytes", "transient_bytes"}]}))");
  }
}

}  // namespace paradyse
