// Model folders as Hugging Face has them, and TOML model files: opened, and written back.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>

#include <nlohmann/json.hpp>
#include <toml++/toml.h>

#include "paradyse/run/accountant.h"
#include "paradyse/run/weights.h"
#include "src/plan/base/text_match.h"

namespace paradyse {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// What goes along with a model and says nothing about its mathematics.
constexpr const char* kCompanions[] = {
    "special_tokens_map.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model"};

[[noreturn]] void refuse(const fs::path& path, const std::string& what) {
  throw std::runtime_error(path.string() + ": " + what);
}

std::string text_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  if (stream.peek() != std::ifstream::traits_type::eof()) {
    text << stream.rdbuf();
  }
  if (!stream.is_open() || stream.bad()) {
    refuse(path, "cannot be read; check that it is there and readable");
  }
  return text.str();
}

json parsed_json(const fs::path& path) {
  try {
    return json::parse(text_of(path));
  } catch (const json::exception& error) {
    refuse(path, std::string("is no JSON: ") + error.what());
  }
}

json parsed_toml(const fs::path& path) {
  try {
    const toml::table table = toml::parse(text_of(path), path.string());
    std::ostringstream text;
    text << toml::json_formatter{table};
    return json::parse(text.str());
  } catch (const toml::parse_error& error) {
    throw std::runtime_error(
        path.string() + ":" + std::to_string(error.source().begin.line) +
        ": is no TOML: " + std::string(error.description()));
  } catch (const json::exception& error) {  // a date, a NaN: no key has such values
    refuse(path, std::string("holds a value that no model has: ") + error.what());
  }
}

bool is_toml(const fs::path& path) { return path.extension() == ".toml"; }

bool is_companion(const std::string& name) {
  const bool tokenizer = name.starts_with("tokenizer") && name.ends_with(".json");
  return tokenizer ||
         std::find(std::begin(kCompanions), std::end(kCompanions), name) != std::end(kCompanions);
}

// A file is there whole or not at all.
void write_file(const fs::path& path, const std::string& text) {
  fs::path partial = path;
  partial += ".partial";
  std::ofstream stream(partial, std::ios::binary | std::ios::trunc);
  stream << text;
  stream.close();
  if (!stream) {
    std::error_code ignored;
    fs::remove(partial, ignored);
    refuse(partial, "cannot be written; check the folder's permissions and the free disk space");
  }
  fs::rename(partial, path);
}

void prepare_folder(const fs::path& to) {
  for (const char* const name : {kConfig, kWeights, kIndex}) {
    if (fs::exists(to / name)) {
      refuse(
          to,
          std::string("holds a model already (") + name +
              "), which is not overwritten; give a new folder");
    }
  }
  std::error_code error;
  fs::create_directories(to, error);
  if (error) {
    refuse(to, "cannot be made: " + error.message());
  }
}

void copy_companions(const fs::path& from, const fs::path& to) {
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const fs::path name = entry.path().filename();
    if (entry.is_regular_file() && is_companion(name.string()) && !fs::exists(to / name)) {
      fs::copy_file(entry.path(), to / name);
    }
  }
}

}  // namespace

Model ModelFolder::model() const { return grid ? grid_model(*grid) : text_model(shape); }

std::string ModelFolder::fingerprint() const {
  return grid ? paradyse::fingerprint(*grid) : paradyse::fingerprint(shape);
}

json ModelFolder::config() const {
  return is_toml(path) ? parsed_toml(path) : parsed_json(path / kConfig);
}

bool ModelFolder::has_weights() const {
  return !is_toml(path) && (fs::exists(path / kWeights) || fs::exists(path / kIndex));
}

ModelFolder open_model(const fs::path& path) {
  const char* const accepted =
      "give a Hugging Face model folder (config.json, and model.safetensors unless weights are to "
      "be random), or a .toml file with the keys of config.json";
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (is_grid_model(path.string())) {
    refuse(
        path,
        "is a model of several dims (" + model_type(read_grid_shape(path.string())) +
            "), and this takes language models; docs/layouts.md says what takes which");
  }
  ModelFolder model;
  model.path = path;
  if (!fs::exists(status)) {
    refuse(path, std::string("is not there; ") + accepted);
  }
  if (fs::is_directory(status)) {
    if (is_toml(path)) {
      refuse(path, "is a folder, but named .toml as a model file is; rename it");
    }
    if (!fs::exists(path / kConfig)) {
      refuse(path, std::string("is a folder without config.json; ") + accepted);
    }
    model.shape = model_shape_from_config(model.config(), (path / kConfig).string());
  } else if (is_toml(path)) {
    model.shape = model_shape_from_config(model.config(), path.string());
  } else {
    refuse(path, std::string("is neither a folder nor named .toml; ") + accepted);
  }
  return model;
}

ModelFolder open_any_model(const fs::path& path) {
  if (!is_grid_model(path.string())) {
    return open_model(path);
  }
  return {.path = path, .shape = {}, .grid = read_grid_shape(path.string())};
}

namespace {

// The configuration of `from` as it stands, but for the type it gives the weights when they are
// saved in another: a loader that believes it would round them.
std::string config_for(const ModelFolder& from, at::ScalarType dtype) {
  const std::string name = dtype == at::kDouble     ? "float64"
                           : dtype == at::kBFloat16 ? "bfloat16"
                           : dtype == at::kHalf     ? "float16"
                                                    : "float32";
  const std::string text = text_of(from.path / kConfig);
  auto config = nlohmann::ordered_json::parse(text);
  bool changed = false;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key) && config[key] != name) {
      config[key] = name;
      changed = true;
    }
  }
  return changed ? config.dump(2) + "\n" : text;
}

}  // namespace

void save_model(
    const Parameters& parameters,
    Communicator& domain,
    const fs::path& to,
    const ModelFolder& from,
    at::ScalarType dtype) {
  const c10::InferenceMode no_autograd;
  const bool from_folder = !from.path.empty() && fs::is_directory(from.path);
  if (parameter_shapes(from.model()) != parameter_shapes(parameters.model())) {
    throw std::invalid_argument(
        "save_model: " + from.path.string() + " is of another model than the parameters");
  }
  if (domain.rank() != 0) {  // what rank 0 throws frees the others
    collect(parameters, Which::weights, domain, [](const std::string&, const at::Tensor&) {});
    domain.barrier({.op = "model saved", .part = ""});
    return;
  }
  prepare_folder(to);
  std::vector<std::pair<std::string, StoredTensor>> tensors;
  for (const auto& [name, shape] : parameter_shapes(parameters.model())) {
    tensors.emplace_back(name, StoredTensor{.dtype = dtype, .shape = shape});
  }
  SafetensorsWriter writer(to / kWeights, std::move(tensors));
  collect(
      parameters, Which::weights, domain, [&](const std::string& name, const at::Tensor& tensor) {
        writer.write(name, tensor.to(dtype));
      });
  writer.finish();
  if (from_folder) {
    copy_companions(from.path, to);
  }
  // Last: a folder with this file alone would mean random weights.
  write_file(
      to / kConfig,
      from.grid     ? config_of(*from.grid).dump(2) + "\n"
      : from_folder ? config_for(from, dtype)
                    : config_of(from.shape).dump(2) + "\n");
  domain.barrier({.op = "model saved", .part = ""});
}

}  // namespace paradyse
