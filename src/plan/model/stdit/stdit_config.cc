#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/plan/model/families.h"
#include "src/plan/model/size_keys.h"
#include "src/plan/model/stdit/stdit.h"

namespace paradyse {
namespace {

constexpr SizeKey<StditShape> kSizes[] = {
    {"depth", &StditShape::depth, false, kMostBlocks},
    {"hidden_size", &StditShape::hidden},
    {"num_heads", &StditShape::heads},
    {"num_key_value_heads", &StditShape::kv_heads},
    {"mlp_hidden_size", &StditShape::mlp_hidden},
    {"in_channels", &StditShape::channels},
    {"patch_size", &StditShape::patch},
    {"caption_channels", &StditShape::caption_channels, true}};
constexpr SizeKeys<StditShape> kKeys = {.sizes = kSizes};

// STDiT3Config of Open-Sora 1.2.
constexpr const char* kStdit3 = "STDiT3";
constexpr SizeKey<StditShape> kSizes3[] = {
    {"depth", &StditShape::depth, false, kMostBlocks},
    {"hidden_size", &StditShape::hidden},
    {"num_heads", &StditShape::heads},
    {"in_channels", &StditShape::channels},
    {"caption_channels", &StditShape::caption_channels},
    {"input_sq_size", &StditShape::input_sq_size}};
constexpr FlagKey<StditShape> kFlags3[] = {
    {"qk_norm", &StditShape::qk_norm},
    {"pred_sigma", &StditShape::pred_sigma},
    {"adaln_zero", &StditShape::adaln_zero}};
constexpr SizeKeys<StditShape> kKeys3 = {.sizes = kSizes3, .flags = kFlags3};
// Of a program, not of the model's mathematics; and of training, where others do more.
constexpr const char* kIgnored3[] = {
    "_name_or_path",
    "architectures",
    "auto_map",
    "dtype",
    "enable_flash_attn",
    "enable_layernorm_kernel",
    "enable_sequence_parallelism",
    "force_huggingface",
    "input_size",
    "model_max_length",
    "torch_dtype",
    "transformers_version"};
constexpr const char* kOff3[] = {
    "drop_path", "freeze_y_embedder", "only_train_temporal", "skip_y_embedder"};

StditShape stdit3_shape_from_config(
    const nlohmann::json& config, const std::string& source, std::vector<std::string>* notes) {
  nlohmann::json sizes = nlohmann::json::object();
  std::int64_t patch = 2;
  double ratio = 4;
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::any_of(kIgnored3, [&](const char* one) { return key == one; })) {
      continue;
    }
    if (std::ranges::any_of(kOff3, [&](const char* one) { return key == one; })) {
      if (value != false && value != 0) {
        refuse_key(source, key, "is not implemented; accepted is 0 or false");
      }
    } else if (key == "class_dropout_prob") {
      if (value != 0 && notes != nullptr) {
        notes->push_back(
            source + ": class_dropout_prob: captions are not dropped in training here");
      }
    } else if (key == "patch_size") {
      const bool known = value.is_array() && value.size() == 3 && value[0] == 1 &&
                         value[1].is_number_integer() && value[1] == value[2] && value[1] > 0;
      if (!known) {
        refuse_key(
            source, key, "expected [1, P, P], a patch of one frame, found " + excerpt(value));
      }
      patch = value[1];
    } else if (key == "mlp_ratio") {
      if (!value.is_number() || value <= 0) {
        refuse_key(source, key, "expected a positive number, found " + excerpt(value));
      }
      ratio = value;
    } else {
      sizes[key] = value;
    }
  }
  StditShape from = {.caption_channels = 4096, .stdit3 = true};
  StditShape shape = read_sizes(sizes, source, kKeys3, from);
  shape.patch = patch;
  shape.kv_heads = shape.heads;
  // as Open-Sora rounds it; ratios that are no exact numbers are written as quotients
  shape.mlp_hidden = static_cast<std::int64_t>(static_cast<double>(shape.hidden) * ratio + 1e-6);
  if (shape.hidden % 4 != 0) {
    refuse_key(
        source,
        "hidden_size",
        std::to_string(shape.hidden) +
            " is not a multiple of 4, which sinusoidal position embeddings need");
  }
  if (shape.hidden % (2 * shape.heads) != 0) {
    refuse_key(
        source,
        "hidden_size",
        std::to_string(shape.hidden) + " is not a multiple of twice num_heads " +
            std::to_string(shape.heads) + ": rotary embeddings rotate pairs of a head's columns");
  }
  return shape;
}

}  // namespace

StditShape stdit_shape_from_config(
    const nlohmann::json& config, const std::string& source, std::vector<std::string>* notes) {
  if (config.value("model_type", "") == kStdit3) {
    return stdit3_shape_from_config(config, source, notes);
  }
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
  if (shape.stdit3) {
    auto config = write_sizes(kStdit3, shape, kKeys3);
    config["architectures"] = {kStdit3};
    config["patch_size"] = {1, shape.patch, shape.patch};
    config["mlp_ratio"] = static_cast<double>(shape.mlp_hidden) / static_cast<double>(shape.hidden);
    return config;
  }
  return write_sizes("stdit", shape, kKeys);
}

StditShape stdit_shape(const Model& model) { return std::any_cast<StditShape>(model.shape); }

std::string architecture(const StditShape& shape) {
  if (shape.stdit3) {
    return "stdit3";
  }
  return shape.caption_channels > 0 ? "stdit-text" : "stdit";
}

std::string fingerprint(const StditShape& shape) {
  if (shape.stdit3) {
    // how it begins and the places that it is given are no part of what it computes
    std::string name = architecture(shape);
    name.append(shape.qk_norm ? "-qk-norm" : "").append(shape.pred_sigma ? "-sigma" : "");
    return fingerprint(name, shape, kKeys);
  }
  return fingerprint(architecture(shape), shape, kKeys);
}

ModelFamily stdit_family() {
  return {
      .name = "stdit",
      .types = {"stdit", kStdit3},
      .read =
          [](const nlohmann::json& config,
             const std::string& source,
             std::vector<std::string>* notes) {
            return stdit_model(stdit_shape_from_config(config, source, notes));
          },
      .variants =
          {stdit_model({.depth = 1}),
           stdit_model({.depth = 1, .caption_channels = 1}),
           stdit_model({.depth = 1, .caption_channels = 1, .stdit3 = true})},
      .presets = {
          {"stdit", config_of(StditShape{})},
          {"stdit3", config_of(StditShape{.caption_channels = 4096, .stdit3 = true})}}};
}

}  // namespace paradyse
