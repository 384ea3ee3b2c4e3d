// Families of models beside those that ParaDySe brings: their configurations are read, their plans
// written, read, checked and simulated like those of others.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "paradyse/plan/model.h"

namespace paradyse {

struct OwnFamily {
  std::string name = {};                // Model::family of its models, which set it themselves
  std::vector<std::string> types = {};  // values of model_type in a config.json that it reads
  // The model that the text of a config.json describes; `source` names it in messages.  Throws
  // std::invalid_argument that names the key and what would be accepted.  Without one its models
  // are put together in code alone.
  std::function<Model(const std::string& json, const std::string& source)> read = {};
  // Models of one layer, one for each name of models (Model::name): what the parts of a layer are
  // called, and of which kind they are, plan files and their checker take from these.
  std::vector<Model> variants = {};
};

// Once, before models are read, plans made and threads begun.  Throws std::invalid_argument for a
// family, model_type, name of models or of parts that is taken by another (a part of the same name
// and kind is the same).
void add_model_family(OwnFamily family);
// Takes one that was added away again.  Throws std::invalid_argument for another name.
void remove_model_family(const std::string& name);

}  // namespace paradyse
