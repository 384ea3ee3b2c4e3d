// The families of models: what reads a configuration of each.  One folder and one row a family.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/plan/model.h"

namespace paradyse {

// Of a model that is put together part after part: far more than anybody's, and a few seconds'
// work.
inline constexpr std::int64_t kMostLayers = std::int64_t{1} << 14;
// The same of a model of several streams, whose layers have many parts.
inline constexpr std::int64_t kMostBlocks = std::int64_t{1} << 11;

struct ModelFamily {
  std::string name = {};                // Model::family
  std::vector<std::string> types = {};  // values of model_type that it reads; others "text" refuses
  // Throws and notes as model_from_config().
  std::function<Model(
      const nlohmann::json& config, const std::string& source, std::vector<std::string>* notes)>
      read = {};
  // One-layer models, one for each list of parts that plans of the family may name.
  std::vector<Model> variants = {};
  std::map<std::string, nlohmann::json> presets = {};  // configurations, published, by name
};

// Those that the program brings, then those that were added (model_folder.h).
std::span<const ModelFamily> model_families();
// Changes whenever one is added or taken away.
int families_version();

ModelFamily text_family();
ModelFamily stdit_family();
ModelFamily evoformer_family();

// Throws std::invalid_argument for a size that is set and that models of this name do not change.
using SizeMember = std::optional<std::int64_t> OtherSizes::*;
void expect_changed(
    const OtherSizes& sizes, const std::string& model, std::initializer_list<SizeMember> changed);

// The configuration of a preset, or nothing where none is called so; all names.
const nlohmann::json* preset_config(const std::string& name);
std::vector<std::string> preset_names();

}  // namespace paradyse
