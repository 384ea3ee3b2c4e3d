#include "src/plan/model/families.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/model_folder.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/row_table.h"

namespace paradyse {

namespace {

RowTable<ModelFamily>& table() {
  static RowTable<ModelFamily> table(
      {text_family(), stdit_family(), evoformer_family()},
      "add_model_family",
      "remove_model_family");
  return table;
}

int version = 0;

void refuse_family(const OwnFamily& family, const std::string& what) {
  throw std::invalid_argument("add_model_family: " + family.name + ": " + what);
}

void expect_new(const OwnFamily& family) {
  for (const ModelFamily& known : model_families()) {
    if (known.name == family.name) {
      refuse_family(family, "there is a family of this name");
    }
    for (const std::string& type : family.types) {
      if (std::ranges::find(known.types, type) != known.types.end()) {
        refuse_family(family, "model_type '" + type + "' is that of family " + known.name);
      }
    }
    for (const Model& there : known.variants) {
      for (const Model& one : family.variants) {
        if (there.name == one.name) {
          refuse_family(
              family, "models of family " + known.name + " are called '" + one.name + "'");
        }
        for (const ModelPart& part : one.parts) {
          for (const ModelPart& other : there.parts) {
            if (part.layer >= 0 && other.layer >= 0 && part.part->name == other.part->name &&
                part.part->kind != other.part->kind) {
              refuse_family(
                  family,
                  "part '" + part.part->name + "' is of kind " + part.part->kind + ", and in " +
                      there.name + " of kind " + other.part->kind);
            }
          }
        }
      }
    }
  }
  for (const Model& one : family.variants) {
    if (one.name.empty() || one.layers < 1) {
      refuse_family(family, "a variant has no name or no layer");
    }
  }
}

}  // namespace

std::span<const ModelFamily> model_families() { return table().rows(); }
int families_version() { return version; }

void add_model_family(OwnFamily family) {
  expect_new(family);
  ModelFamily added;
  added.name = family.name;
  added.types = std::move(family.types);
  added.variants = std::move(family.variants);
  if (family.read) {
    added.read =
        [read = std::move(family.read)](
            const nlohmann::json& config, const std::string& source, std::vector<std::string>*) {
          const std::string text = config.dump();
          Model model = read(text, source);
          model.config = model.config.empty() ? text : model.config;
          return model;
        };
  }
  table().add(std::move(added));
  ++version;
}

void remove_model_family(const std::string& name) {
  table().remove(name, &ModelFamily::name);
  ++version;
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
  const auto type = config.is_object() ? config.find("model_type") : config.end();
  const std::span<const ModelFamily> families = model_families();
  const auto family = std::ranges::find_if(families, [&](const ModelFamily& one) {
    return one.read && type != config.end() &&
           std::ranges::any_of(one.types, [&](const auto& name) { return *type == name; });
  });
  return (family == families.end() ? families.front() : *family).read(config, source, notes);
}

}  // namespace paradyse
