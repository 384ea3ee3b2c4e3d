// A model's configuration as a file: a Hugging Face folder, a TOML file, or a preset.
#pragma once

#include <filesystem>
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
};

// Reads `path`/config.json, a TOML model file with the same keys, or a preset ("stdit",
// "evoformer", "extra-msa": published sizes).  Weights are neither needed nor read.  Throws
// std::runtime_error or std::invalid_argument, naming the file and what is wrong.
ModelFolder read_model(const std::filesystem::path& path);

// Throws std::runtime_error for a model of several dims.
void expect_language_model(const ModelFolder& folder);

}  // namespace paradyse
