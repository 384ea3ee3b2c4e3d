// What the parts of a layer are called in every model family, and of which kind they are.
#include <map>
#include <string>
#include <vector>

#include "paradyse/plan/strategy.h"
#include "src/plan/model/families.h"

namespace paradyse {
namespace {

struct Names {
  std::map<std::string, std::vector<std::string>> parts;  // by the model's name
  std::map<std::string, std::string> kinds;               // by a part's
};

Names all_names() {
  Names names{.parts = {{"", {"attention", "mlp"}}}, .kinds = {}};
  for (const ModelFamily& family : model_families()) {
    for (const Model& model : family.variants) {
      std::vector<std::string>& parts = names.parts[model.name];
      for (const ModelPart& one : model.parts) {
        if (one.layer == 0) {
          parts.push_back(one.part->name);
          names.kinds[one.part->name] = one.part->kind;
        }
      }
    }
  }
  return names;
}

// Of the families that there are now.
const Names& names() {
  static Names all = all_names();
  static int version = families_version();
  if (version != families_version()) {
    version = families_version();
    all = all_names();
  }
  return all;
}

}  // namespace

const std::vector<std::string>& layer_parts(const std::string& model_name) {
  const auto found = names().parts.find(model_name);
  return found == names().parts.end() ? names().parts.at("") : found->second;
}

const std::string& kind_of(const std::string& part) {
  const auto found = names().kinds.find(part);
  return found == names().kinds.end() ? part : found->second;
}

}  // namespace paradyse
