// What the parts of a layer are called in every model family, and of which kind they are.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/model/families.h"

namespace paradyse {
namespace {

using LayerKinds = std::vector<std::vector<std::string>>;

struct Names {
  std::map<std::string, LayerKinds> parts;   // by the model's name
  std::map<std::string, std::string> kinds;  // by a part's
};

Names all_names() {
  Names names{.parts = {{"", {{"attention", "mlp"}}}}, .kinds = {}};
  for (const ModelFamily& family : model_families()) {
    for (const Model& model : family.variants) {
      LayerKinds& kinds = names.parts[model.name];
      for (const Stack& stack : model.stacks()) {
        std::vector<std::string>& parts = kinds.emplace_back();
        for (const std::shared_ptr<const Part>& part : stack.parts) {
          parts.push_back(part->name);
          names.kinds[part->name] = part->kind;
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

const LayerKinds& layer_kinds(const std::string& model_name) {
  const auto found = names().parts.find(model_name);
  return found == names().parts.end() ? names().parts.at("") : found->second;
}

const std::vector<std::string>& layer_parts() { return layer_kinds({}).front(); }

const std::vector<std::string>& parts_like(
    const std::string& model_name, const std::string& first_part) {
  const LayerKinds& kinds = layer_kinds(model_name);
  for (const std::vector<std::string>& parts : kinds) {
    if (!parts.empty() && parts.front() == first_part) {
      return parts;
    }
  }
  return kinds.front();
}

std::vector<LayerChoice> layers_of(const Model& model, const LayerChoice& choice) {
  std::vector<LayerChoice> layers;
  for (const Stack& stack : model.stacks()) {
    LayerChoice own;
    for (const std::shared_ptr<const Part>& part : stack.parts) {
      own.push_back(part_of(choice, part->name));
    }
    layers.insert(layers.end(), idx(stack.layers), own);
  }
  return layers;
}

const std::string& kind_of(const std::string& part) {
  const auto found = names().kinds.find(part);
  return found == names().kinds.end() ? part : found->second;
}

}  // namespace paradyse
