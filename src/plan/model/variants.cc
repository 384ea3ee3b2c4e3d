// The same model in other tiles, with other dropout, of other sizes.
#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "paradyse/plan/model.h"
#include "paradyse/plan/parts.h"
#include "src/plan/model/families.h"

namespace paradyse {
namespace {

// Parts that layers share stay shared.
template <typename Change>
Model with_parts(Model model, Change change) {
  std::map<const Part*, std::shared_ptr<const Part>> made;
  for (ModelPart& one : model.parts) {
    std::shared_ptr<const Part>& copy = made[one.part.get()];
    if (copy == nullptr) {
      Part part = *one.part;
      change(part);
      copy = std::make_shared<const Part>(std::move(part));
    }
    one.part = copy;
  }
  return model;
}

// Of a model that no family made: its first layer so many times, between its ends.
Model repeated(const Model& model, std::int64_t layers) {
  if (layers == model.layers) {
    return model;
  }
  if (layers > 0 && model.stacks().size() > 1) {
    throw std::invalid_argument(
        "with_layers: the model '" + model.name +
        "' has layers of several kinds and no of_sizes, which says how many of each there are");
  }
  Model other = model;
  other.layers = 0;
  other.sha256.clear();
  other.config.clear();  // it says another number
  other.parts.clear();
  std::vector<Part> layer;
  std::vector<Part> last;
  for (const ModelPart& one : model.parts) {
    if (one.layer == 0) {
      layer.push_back(*one.part);
    } else if (one.layer < 0 && layer.empty()) {
      add_end(other, *one.part);
    } else if (one.layer < 0) {
      last.push_back(*one.part);
    }
  }
  add_layers(other, layers, std::move(layer));
  for (Part& part : last) {
    add_end(other, std::move(part));
  }
  return other;
}

struct NamedSize {
  const char* name;
  SizeMember value;
};

constexpr NamedSize kOtherSizes[] = {
    {"layers", &OtherSizes::layers},
    {"hidden width", &OtherSizes::hidden},
    {"key/value heads", &OtherSizes::kv_heads},
    {"vocabulary", &OtherSizes::vocab},
    {"positions", &OtherSizes::positions},
    {"window", &OtherSizes::window}};

}  // namespace

void expect_changed(
    const OtherSizes& sizes, const std::string& model, std::initializer_list<SizeMember> changed) {
  for (const NamedSize& one : kOtherSizes) {
    if (sizes.*one.value && std::ranges::find(changed, one.value) == changed.end()) {
      throw std::invalid_argument(
          "there is no model '" + model + "' of other " + one.name + " than its own");
    }
  }
}

Model with_tiles(const Model& model, Tiles tiles) {
  return with_parts(model, [&](Part& part) { part.shape.tiles = tiles; });
}

Model with_dropout(const Model& model, double probability) {
  return with_parts(model, [&](Part& part) { part.shape.dropout = probability; });
}

Model with_attention_dropout(const Model& model, double probability) {
  return with_parts(model, [&](Part& part) {
    if (part.kind == "attention") {
      part.shape.attention_dropout = probability;
    }
  });
}

Model without_dropout(const Model& model) {
  Model other =
      with_parts(model, [](Part& part) { part.shape.dropout = part.shape.attention_dropout = 0; });
  if (other.lora) {
    other.lora->dropout = 0;
  }
  return other;
}

Model with_sizes(const Model& model, const OtherSizes& sizes) {
  std::map<std::string, const PartShape*> shapes;
  for (const ModelPart& one : model.parts) {
    shapes.emplace(one.part->name, &one.part->shape);
  }
  if (!model.of_sizes) {
    expect_changed(sizes, model.name, {&OtherSizes::layers});
  }
  Model other =
      model.of_sizes ? model.of_sizes(sizes) : repeated(model, sizes.layers.value_or(model.layers));
  if (!sizes.positions) {
    other.limits = model.limits;
  }
  return with_parts(std::move(other), [&](Part& part) {
    part.shape.tiles = model.tiles();
    if (const auto known = shapes.find(part.name); known != shapes.end()) {
      part.shape.dropout = known->second->dropout;
      part.shape.attention_dropout = known->second->attention_dropout;
    }
  });
}

Model with_layers(const Model& model, std::int64_t layers) {
  return with_sizes(model, {.layers = layers});
}

void expect_trainable(const Model& model) {
  if (model.lora && model.lora->dropout > 0) {
    throw std::invalid_argument(
        "the adapters ask for lora_dropout " + nlohmann::json(model.lora->dropout).dump() +
        ", which is not implemented: train without it by lora.dropout = 0 in a run's configuration "
        "(or --set lora.dropout=0)");
  }
}

}  // namespace paradyse
