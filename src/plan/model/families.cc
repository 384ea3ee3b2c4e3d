#include "src/plan/model/families.h"

#include <algorithm>

#include "src/plan/base/json_text.h"

namespace paradyse {

std::span<const ModelFamily> model_families() {
  static const std::vector<ModelFamily> all = {text_family(), stdit_family(), evoformer_family()};
  return all;
}

const nlohmann::json* preset_config(const std::string& name) {
  for (const ModelFamily& family : model_families()) {
    if (const auto found = family.presets.find(name); found != family.presets.end()) {
      return &found->second;
    }
  }
  return nullptr;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const ModelFamily& family : model_families()) {
    for (const auto& [name, config] : family.presets) {
      names.push_back(name);
    }
  }
  return names;
}

Model model_from_config(
    const std::string& json, const std::string& source, std::vector<std::string>* notes) {
  const nlohmann::json config = json_in(json);
  const std::span<const ModelFamily> families = model_families();
  const auto type = config.is_object() ? config.find("model_type") : config.end();
  const auto family = std::ranges::find_if(families, [&](const ModelFamily& one) {
    return type != config.end() &&
           std::ranges::any_of(one.types, [&](const auto& name) { return *type == name; });
  });
  return (family == families.end() ? families.front() : *family).read(config, source, notes);
}

}  // namespace paradyse
