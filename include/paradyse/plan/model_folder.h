// A model's configuration as a file: a Hugging Face folder, a TOML file, or a preset; and families
// of models beside those that ParaDySe brings: their configurations are read, their plans written,
// read, checked and simulated like those of others.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "paradyse/plan/model.h"

namespace paradyse {

// A model, and where its configuration and weights are.
struct ModelFolder {
  std::filesystem::path path;
  Model model;
  std::string config_text = {};         // of config.json; "": a TOML file or a preset
  std::vector<std::string> notes = {};  // sentences: what is taken otherwise than the files say
  // The PEFT folder whose adapters the model has (lora.h); "": it has none, or they begin anew.
  std::filesystem::path adapter = {};
};

// Reads `path`/config.json, a TOML model file with the same keys, or a preset ("stdit",
// "evoformer", "extra-msa": published sizes); or a PEFT folder (adapter_config.json), whose base
// model is `path` of what is given back.  Weights are neither needed nor read.  Throws
// std::runtime_error or std::invalid_argument, naming the file and what is wrong.
ModelFolder read_model(const std::filesystem::path& path);

// The base model `folder` with the adapters of the PEFT folder `adapter`.  Throws likewise.
ModelFolder with_adapters(ModelFolder folder, const std::filesystem::path& adapter);

// Throws std::runtime_error for a model of several dims.
void expect_language_model(const ModelFolder& folder);

struct OwnFamily {
  std::string name = {};                // Model::family of its models, which set it themselves
  std::vector<std::string> types = {};  // values of model_type in a config.json that it reads
  // The model that the text of a config.json describes; `source` names it in messages.  Throws
  // std::invalid_argument that names the key and what would be accepted.  Model::config is that
  // text where it sets no other.  Without one its models are put together in code alone.
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
