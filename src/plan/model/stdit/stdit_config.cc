#include <nlohmann/json.hpp>

#include "src/plan/model/families.h"
#include "src/plan/model/size_keys.h"
#include "src/plan/model/stdit/stdit.h"

namespace paradyse {
namespace {

constexpr SizeKey<StditShape> kSizes[] = {
    {"depth", &StditShape::depth},
    {"hidden_size", &StditShape::hidden},
    {"num_heads", &StditShape::heads},
    {"num_key_value_heads", &StditShape::kv_heads},
    {"mlp_hidden_size", &StditShape::mlp_hidden},
    {"in_channels", &StditShape::channels},
    {"patch_size", &StditShape::patch},
    {"caption_channels", &StditShape::caption_channels, true}};
constexpr SizeKeys<StditShape> kKeys = {.sizes = kSizes};

}  // namespace

StditShape stdit_shape_from_config(const nlohmann::json& config, const std::string& source) {
  auto shape = read_sizes(config, source, kKeys);
  if (!config.contains("num_key_value_heads")) {
    shape.kv_heads = shape.heads;
  }
  if (!config.contains("mlp_hidden_size")) {
    shape.mlp_hidden = 4 * shape.hidden;
  }
  if (shape.hidden % shape.heads != 0) {
    refuse_key(
        source,
        "hidden_size",
        std::to_string(shape.hidden) + " is not a multiple of num_heads " +
            std::to_string(shape.heads));
  }
  if (shape.heads % shape.kv_heads != 0) {
    refuse_key(
        source,
        "num_key_value_heads",
        std::to_string(shape.kv_heads) + " does not divide num_heads " +
            std::to_string(shape.heads));
  }
  return shape;
}

nlohmann::ordered_json config_of(const StditShape& shape) {
  return write_sizes("stdit", shape, kKeys);
}

StditShape stdit_shape(const Model& model) { return std::any_cast<StditShape>(model.shape); }

std::string architecture(const StditShape& shape) {
  return shape.caption_channels > 0 ? "stdit-text" : "stdit";
}

std::string fingerprint(const StditShape& shape) {
  return fingerprint(architecture(shape), shape, kKeys);
}

ModelFamily stdit_family() {
  return {
      .name = "stdit",
      .types = {"stdit"},
      .read =
          [](const nlohmann::json& config, const std::string& source, std::vector<std::string>*) {
            return stdit_model(stdit_shape_from_config(config, source));
          },
      .variants = {stdit_model({.depth = 1}), stdit_model({.depth = 1, .caption_channels = 1})},
      .presets = {{"stdit", config_of(StditShape{})}}};
}

}  // namespace paradyse
