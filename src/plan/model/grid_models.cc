// What configures models of several dims: presets, and TOML files key by key.
#include "paradyse/plan/grid_models.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>
#include <toml++/toml.h>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/sha256.h"
#include "src/plan/base/text_match.h"

namespace paradyse {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 20;

template <typename Shape>
struct Flag {
  const char* key = "";
  bool Shape::* value = nullptr;
};
constexpr Flag<EvoformerShape> kEvoformerFlags[] = {
    {"is_multimer", &EvoformerShape::multimer},
    {"global_column_attention", &EvoformerShape::global_column}};

template <typename Shape>
struct Size {
  const char* key = "";
  std::int64_t Shape::* value = nullptr;
  bool optional = false;  // 0: the model has nothing of its own, and files need not say so
};
constexpr Size<StditShape> kStditSizes[] = {
    {"depth", &StditShape::depth},
    {"hidden_size", &StditShape::hidden},
    {"num_heads", &StditShape::heads},
    {"num_key_value_heads", &StditShape::kv_heads},
    {"mlp_hidden_size", &StditShape::mlp_hidden},
    {"in_channels", &StditShape::channels},
    {"patch_size", &StditShape::patch},
    {"caption_channels", &StditShape::caption_channels, true}};
constexpr Size<EvoformerShape> kEvoformerSizes[] = {
    {"no_blocks", &EvoformerShape::blocks},
    {"c_m", &EvoformerShape::msa_hidden},
    {"c_z", &EvoformerShape::pair_hidden},
    {"no_heads_msa", &EvoformerShape::msa_heads},
    {"no_heads_pair", &EvoformerShape::pair_heads},
    {"c_hidden", &EvoformerShape::head_dim},
    {"c_hidden_pair_att", &EvoformerShape::pair_head_dim, true},
    {"c_hidden_opm", &EvoformerShape::outer_channels},
    {"c_hidden_mul", &EvoformerShape::triangle_channels},
    {"transition_n", &EvoformerShape::transition}};

const std::vector<std::string>& presets() {
  static const std::vector<std::string> all = {"stdit", "evoformer", "extra-msa"};
  return all;
}

[[noreturn]] void refuse(
    const std::string& source, const std::string& key, const std::string& why) {
  throw std::invalid_argument(source + ": " + key + ": " + why);
}

template <typename Shape, std::size_t sizes>
Shape read_sizes(
    const toml::table& table,
    const std::string& source,
    const Size<Shape> (&known)[sizes],
    std::span<const Flag<Shape>> flags) {
  std::vector<std::string> keys = {"model_type"};
  for (const Size<Shape>& size : known) {
    keys.emplace_back(size.key);
  }
  for (const Flag<Shape>& flag : flags) {
    keys.emplace_back(flag.key);
  }
  Shape shape;
  for (const auto& [name, node] : table) {
    const std::string key(name.str());
    if (std::ranges::find(keys, key) == keys.end()) {
      std::string list;
      for (const std::string& one : keys) {
        list += (list.empty() ? "" : ", ") + one;
      }
      refuse(source, key, "is not known" + did_you_mean(key, keys) + "; keys are " + list);
    }
  }
  for (const Flag<Shape>& flag : flags) {
    const toml::node* const node = table.get(flag.key);
    if (node != nullptr && !node->is_boolean()) {
      refuse(source, flag.key, "expected true or false");
    }
    shape.*flag.value = node != nullptr && node->template value<bool>().value_or(false);
  }
  for (const Size<Shape>& size : known) {
    const toml::node* const node = table.get(size.key);
    if (node == nullptr) {
      continue;
    }
    const std::int64_t value = node->value_exact<std::int64_t>().value_or(-1);
    const std::int64_t least = size.optional ? 0 : 1;
    if (value < least || value > kMost) {
      std::ostringstream found;
      found << toml::default_formatter(*node);
      refuse(
          source,
          size.key,
          "expected a whole number from " + std::to_string(least) + " to " + std::to_string(kMost) +
              ", found " + found.str());
    }
    shape.*size.value = value;
  }
  return shape;
}

void check(const StditShape& shape, const std::string& source) {
  if (shape.hidden % shape.heads != 0) {
    refuse(
        source,
        "hidden_size",
        std::to_string(shape.hidden) + " is not a multiple of num_heads " +
            std::to_string(shape.heads));
  }
  if (shape.heads % shape.kv_heads != 0) {
    refuse(
        source,
        "num_key_value_heads",
        std::to_string(shape.kv_heads) + " does not divide num_heads " +
            std::to_string(shape.heads));
  }
}

GridShape shape_of(const toml::table& table, const std::string& source) {
  const std::string type = table["model_type"].value_or(std::string());
  if (type == "stdit") {
    auto shape = read_sizes<StditShape>(table, source, kStditSizes, {});
    if (table.get("num_key_value_heads") == nullptr) {
      shape.kv_heads = shape.heads;
    }
    if (table.get("mlp_hidden_size") == nullptr) {
      shape.mlp_hidden = 4 * shape.hidden;
    }
    check(shape, source);
    return shape;
  }
  if (type == "evoformer") {
    return read_sizes<EvoformerShape>(table, source, kEvoformerSizes, kEvoformerFlags);
  }
  refuse(
      source,
      "model_type",
      (type.empty() ? "is missing" : "'" + type + "' is not a multi-axis model") +
          "; \"stdit\" and \"evoformer\" are");
}

// The file of a model that is no preset: of a folder its config.json.
std::filesystem::path file_of(const std::string& preset_or_path) {
  std::error_code error;
  const std::filesystem::path path = preset_or_path;
  return std::filesystem::is_directory(path, error) ? path / "config.json" : path;
}

// Keys that no shape has stay away where their values are none of a shape's.
toml::table table_of(const nlohmann::json& json) {
  toml::table table;
  for (const auto& [key, value] : json.items()) {
    if (value.is_boolean()) {
      table.insert(key, value.get<bool>());
    } else if (value.is_number_integer()) {
      table.insert(key, value.get<std::int64_t>());
    } else if (value.is_number()) {
      table.insert(key, value.get<double>());
    } else {
      table.insert(key, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  return table;
}

// Throws std::invalid_argument that names file and place.
toml::table read_table(const std::filesystem::path& file) {
  constexpr const char* kGive =
      "; give a folder, a TOML file with model_type, or a preset: stdit, evoformer, extra-msa";
  if (std::error_code unknown; !std::filesystem::exists(file, unknown)) {
    throw std::invalid_argument(
        file.string() + ": no such file" + did_you_mean(file.string(), presets()) + kGive);
  }
  if (const std::string why = why_not_readable(file); !why.empty()) {
    throw std::invalid_argument(file.string() + ": cannot be read: " + why + kGive);
  }
  const std::string text = content_of(file).value_or("");
  try {
    return file.extension() == ".json" ? table_of(json_in(text)) : toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw std::invalid_argument(
        file.string() + ":" + std::to_string(error.source().begin.line) + ": " +
        std::string(error.description()));
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument(file.string() + ": is not JSON: " + error.what());
  }
}

}  // namespace

Model grid_model(const GridShape& shape) {
  return std::visit(
      [](const auto& one) {
        if constexpr (std::is_same_v<std::decay_t<decltype(one)>, StditShape>) {
          return stdit_model(one);
        } else {
          return evoformer_model(one);
        }
      },
      shape);
}

std::int64_t layers_of(const GridShape& shape) {
  const auto* const video = std::get_if<StditShape>(&shape);
  return video != nullptr ? video->depth : std::get<EvoformerShape>(shape).blocks;
}

GridShape with_layers(GridShape shape, std::int64_t layers) {
  if (auto* const video = std::get_if<StditShape>(&shape)) {
    video->depth = layers;
  } else {
    std::get<EvoformerShape>(shape).blocks = layers;
  }
  return shape;
}

std::int64_t rows_of(const GridShape& shape, const DimSizes& dims) {
  return std::holds_alternative<StditShape>(shape) ? dims.at("frames") * dims.at("patches")
                                                   : dims.at("sequences") * dims.at("residues");
}

std::string model_type(const GridShape& shape) {
  return std::holds_alternative<StditShape>(shape) ? "stdit" : "evoformer";
}

std::string architecture(const GridShape& shape) {
  const auto* const protein = std::get_if<EvoformerShape>(&shape);
  const auto* const video = std::get_if<StditShape>(&shape);
  return model_type(shape) + (protein != nullptr && protein->multimer ? "-multimer" : "") +
         (protein != nullptr && protein->global_column ? "-global" : "") +
         (video != nullptr && video->caption_channels > 0 ? "-text" : "");
}

std::string fingerprint(const GridShape& shape) {
  std::string text = architecture(shape);
  const auto add = [&](const auto& one, const auto& sizes) {
    for (const auto& size : sizes) {
      if (size.optional && one.*size.value == 0) {
        continue;  // as before it was known
      }
      text.append("\n").append(size.key).append(" ").append(std::to_string(one.*size.value));
    }
  };
  if (const auto* const video = std::get_if<StditShape>(&shape)) {
    add(*video, kStditSizes);
  } else {
    add(std::get<EvoformerShape>(shape), kEvoformerSizes);
  }
  return sha256_hex(text);
}

nlohmann::ordered_json config_of(const GridShape& shape) {
  nlohmann::ordered_json config = {{"model_type", model_type(shape)}};
  const auto add = [&](const auto& one, const auto& sizes) {
    for (const auto& size : sizes) {
      if (!size.optional || one.*size.value > 0) {
        config[size.key] = one.*size.value;
      }
    }
  };
  if (const auto* const video = std::get_if<StditShape>(&shape)) {
    add(*video, kStditSizes);
  } else {
    const auto& protein = std::get<EvoformerShape>(shape);
    add(protein, kEvoformerSizes);
    for (const Flag<EvoformerShape>& flag : kEvoformerFlags) {
      config[flag.key] = protein.*flag.value;
    }
  }
  return config;
}

bool is_grid_model(const std::string& preset_or_path) {
  if (std::ranges::find(presets(), preset_or_path) != presets().end()) {
    return true;
  }
  const std::filesystem::path file = file_of(preset_or_path);
  std::error_code error;
  if ((file.extension() != ".toml" && file.filename() != "config.json") ||
      !std::filesystem::is_regular_file(file, error)) {
    return false;
  }
  try {
    const std::string type = read_table(file)["model_type"].value_or(std::string());
    return type == "stdit" || type == "evoformer";
  } catch (const std::invalid_argument&) {
    return false;  // who reads it says where
  }
}

GridShape read_grid_shape(const std::string& preset_or_path) {
  if (preset_or_path == "stdit") {
    return StditShape{};
  }
  if (preset_or_path == "evoformer") {
    return EvoformerShape{};
  }
  if (preset_or_path == "extra-msa") {
    return EvoformerShape{
        .blocks = 4, .msa_hidden = 64, .head_dim = 8, .pair_head_dim = 32, .global_column = true};
  }
  const std::filesystem::path file = file_of(preset_or_path);
  return shape_of(read_table(file), file.string());
}

}  // namespace paradyse
