// Model folders as Hugging Face has them, and TOML model files.
#include "paradyse/plan/model_folder.h"

#include <sstream>
#include <stdexcept>
#include <system_error>

#include <nlohmann/json.hpp>

#include "paradyse/plan/lora.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/refuse.h"
#include "src/plan/base/text_match.h"
#include "src/plan/base/toml_text.h"
#include "src/plan/model/families.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfig = "config.json";
constexpr const char* kAdapterConfig = "adapter_config.json";

std::string text_of(const fs::path& path) {
  if (const std::string why = why_not_readable(path); !why.empty()) {
    refuse(path, "cannot be read: " + why);
  }
  return content_of(path).value_or("");
}

json parsed_json(const std::string& text, const fs::path& path) {
  try {
    return json_in(text);
  } catch (const json::exception& error) {
    refuse(path, std::string("is not JSON: ") + error.what());
  }
}

json parsed_toml(const fs::path& path) {
  try {
    const toml::table table = toml_in(text_of(path), path.string());
    std::ostringstream text;
    text << toml::json_formatter{table};
    return json_in(text.str());
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(error.what());
  } catch (const json::exception& error) {  // a date, a NaN: no key has such values
    refuse(path, std::string("holds a value that no model has: ") + error.what());
  }
}

bool is_toml(const fs::path& path) { return path.extension() == ".toml"; }

// Folders in `path` that hold a config.json, or, of the hub's cache, below its snapshots.
std::string models_below(const fs::path& path) {
  std::error_code error;
  for (const fs::path& folder : {path, path / "snapshots"}) {
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      std::error_code unknown;
      if (fs::exists(at->path() / kConfig, unknown)) {
        return "; " + at->path().string() + " has one: give that folder";
      }
    }
  }
  return "";
}

AdapterConfig adapter_config_in(const fs::path& folder) {
  const fs::path file = folder / kAdapterConfig;
  std::error_code error;
  if (!fs::exists(file, error)) {
    refuse(
        folder,
        std::string("has no ") + kAdapterConfig +
            ": give a folder that PEFT's save_pretrained() wrote, or the model of a run with "
            "lora.r");
  }
  return adapter_config(text_of(file), file.string());
}

// The folder of the frozen weights that a PEFT folder names.
fs::path base_of(const fs::path& adapter) {
  const std::string named = adapter_config_in(adapter).base_model;
  std::error_code error;
  for (const fs::path& place : {fs::path(named), adapter / named}) {
    if (!named.empty() && fs::exists(place, error)) {
      if (fs::exists(place / kAdapterConfig, error) && !fs::exists(place / kConfig, error)) {
        refuse(
            adapter, "names " + named + " as its base model, which is a folder of adapters itself");
      }
      return place;
    }
  }
  refuse(
      adapter / kAdapterConfig,
      "base_model_name_or_path is " + (named.empty() ? "not there" : "'" + named + "'") +
          ", and accepted is a folder of this machine: write the base model's there; a run may "
          "have it as model.path, and this folder as lora.path");
}

}  // namespace

ModelFolder with_adapters(ModelFolder folder, const fs::path& adapter) {
  const Lora lora = adapter_config_in(adapter).lora;
  try {
    folder.model = with_lora(folder.model, lora);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument((adapter / kAdapterConfig).string() + ": " + error.what());
  }
  folder.adapter = adapter;
  return folder;
}

ModelFolder read_model(const fs::path& path) {
  const std::string accepted =
      "give a Hugging Face model folder (config.json and model.safetensors), a .toml file with "
      "the keys of config.json, or a preset: " +
      joined(preset_names(), ", ");
  ModelFolder folder{.path = path, .model = {}};
  if (const json* preset = preset_config(path.string())) {
    folder.model = model_from_config(preset->dump(), path.string());
    return folder;
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    refuse(path, "is not there" + did_you_mean(path.string(), preset_names()) + "; " + accepted);
  }
  if (!fs::is_directory(status)) {
    if (!is_toml(path)) {
      refuse(path, "is neither a folder nor named .toml; " + accepted);
    }
    folder.model = model_from_config(parsed_toml(path).dump(), path.string(), &folder.notes);
    return folder;
  }
  if (is_toml(path)) {
    refuse(path, "is a folder, but named .toml as a model file is; rename it");
  }
  const fs::path file = path / kConfig;
  if (!fs::exists(file) && fs::exists(path / kAdapterConfig)) {
    return with_adapters(read_model(base_of(path)), path);
  }
  if (fs::exists(path / kAdapterConfig)) {
    folder.notes.push_back(
        path.string() + ": " + kAdapterConfig +
        " is not read, since there is a config.json: lora.path names a folder of adapters");
  }
  if (!fs::exists(file)) {
    refuse(path, "is a folder without config.json; " + accepted + models_below(path));
  }
  folder.config_text = text_of(file);
  parsed_json(folder.config_text, file);  // says where it is no JSON
  folder.model = model_from_config(folder.config_text, file.string(), &folder.notes);
  return folder;
}

void expect_language_model(const ModelFolder& folder) {
  if (folder.model.of_samples()) {
    refuse(
        folder.path,
        "is a multi-axis model (" + folder.model.family +
            "), but this command takes language models alone; docs/reference/commands.md "
            "(\"Model and data\") lists the commands that take it");
  }
}

}  // namespace paradyse
