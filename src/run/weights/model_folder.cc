// Model folders as Hugging Face has them, and TOML model files: opened, and written back.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>

#include <nlohmann/json.hpp>
#include <toml++/toml.h>

#include "paradyse/run/accountant.h"
#include "paradyse/run/weights.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/refuse.h"
#include "src/plan/base/text_match.h"
#include "src/plan/model/families.h"
#include "src/run/memory/reading.h"
#include "src/run/weights/safetensors.h"
#include "src/run/weights/weight_files.h"

namespace paradyse {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";

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
    const toml::table table = toml::parse(text_of(path), path.string());
    std::ostringstream text;
    text << toml::json_formatter{table};
    return json_in(text.str());
  } catch (const toml::parse_error& error) {
    throw std::runtime_error(
        path.string() + ":" + std::to_string(error.source().begin.line) +
        ": is not TOML: " + std::string(error.description()));
  } catch (const json::exception& error) {  // a date, a NaN: no key has such values
    refuse(path, std::string("holds a value that no model has: ") + error.what());
  }
}

bool is_toml(const fs::path& path) { return path.extension() == ".toml"; }

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

// Transformers 5 does not tie what the files hold twice and differently.
void take_the_head_that_is_there(ModelFolder& folder) {
  if (!folder.model.tied()) {
    return;
  }
  try {
    const SafetensorsReader reader(weight_files(folder.path).files);
    const auto stored = [&](const ModelPart& part) {
      const PartWeights weights = part.part->weights(1);
      const std::string name =
          layer_prefix(weights, part.layer) + weights.matrices.front().stored_as;
      std::string without = name;
      without.erase(0, without.find('.') + 1);
      return reader.contains(name) ? name : reader.contains(without) ? without : "";
    };
    const std::string embedding = stored(folder.model.parts.front());
    const std::string head = stored(folder.model.parts.back());
    if (embedding.empty() || head.empty()) {
      return;
    }
    const at::Tensor first = reader.view(embedding);
    const at::Tensor last = reader.view(head);
    const bool same = first.sizes() == last.sizes() &&
                      (first.scalar_type() == last.scalar_type()
                           ? at::equal(first, last)
                           : at::equal(first.to(at::kDouble), last.to(at::kDouble)));
    if (!same) {
      json untied = json_in(folder.model.config);
      untied["tie_word_embeddings"] = false;
      folder.model = model_from_config(untied.dump(), (folder.path / kConfig).string());
      folder.notes.push_back(
          reader.file_of(head).string() + ": " + head + " differs from " + embedding +
          ", though tie_word_embeddings is true: it is used and trained as it is there, untied, as "
          "Transformers 5 does");
    }
  } catch (const std::runtime_error&) {  // what cannot be read is told by those who need it
  }
}

}  // namespace

ModelFolder open_model(const fs::path& path, bool random_weights) {
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
  if (!fs::exists(file)) {
    refuse(path, "is a folder without config.json; " + accepted + models_below(path));
  }
  folder.config_text = text_of(file);
  parsed_json(folder.config_text, file);  // says where it is no JSON
  folder.model = model_from_config(folder.config_text, file.string(), &folder.notes);
  if (!random_weights) {
    take_the_head_that_is_there(folder);
  }
  return folder;
}

ModelFolder open_language_model(const fs::path& path, bool random_weights) {
  ModelFolder folder = open_model(path, random_weights);
  if (folder.model.of_samples()) {
    refuse(
        path,
        "is a multi-axis model (" + folder.model.family +
            "), but this command takes language models; docs/internals/layouts.md lists which "
            "command takes which model");
  }
  return folder;
}

namespace {

// Of many names those that begin alike as one: "structure_module.* (97)".
std::vector<std::string> in_groups(const std::vector<std::string>& names) {
  constexpr std::size_t kFew = 8;
  if (names.size() <= kFew) {
    return names;
  }
  std::map<std::string, std::size_t> count;
  for (const std::string& name : names) {
    ++count[name.substr(0, name.find('.'))];
  }
  std::vector<std::string> groups;
  for (const auto& [begin, tensors] : count) {
    groups.push_back(begin + ".* (" + std::to_string(tensors) + ")");
  }
  return groups;
}

}  // namespace

void ModelWeights::fill(Parameters& parameters) const {
  if (random()) {
    parameters.initialize(seed);
  } else {
    parameters.load(*reader);
  }
}

ModelWeights open_weights(const ModelFolder& model, bool random_weights, std::uint64_t seed) {
  ModelWeights weights{.seed = seed, .notes = model.notes};
  std::error_code error;
  const bool folder = fs::is_directory(model.path, error);
  if (random_weights || !folder) {
    weights.said = model.path.string() + ": weights are random (seed " + std::to_string(seed) + ")";
    if (folder &&
        (fs::exists(model.path / kWeights, error) || fs::exists(model.path / kIndex, error))) {
      weights.said += ", as requested; those in the folder are not read";
    }
    return weights;
  }
  return reading([&] {
    const WeightFiles files = weight_files(model.path);
    const auto reader = std::make_shared<const SafetensorsReader>(files.files);
    const StoredWeights stored = stored_weights(*reader, model.model);
    weights.notes.insert(weights.notes.end(), files.notes.begin(), files.notes.end());
    weights.notes.insert(weights.notes.end(), stored.notes.begin(), stored.notes.end());
    if (!stored.unused.empty()) {
      weights.notes.push_back(
          model.path.string() + ": left out, since they belong to heads for other tasks: " +
          joined(in_groups(stored.unused), ", "));
    }
    weights.said = files.files.size() == 1 ? files.files.front().string() : model.path.string();
    weights.reader = reader;
    return weights;
  });
}

namespace {

// The configuration of `from` as it stands, but for what would have a loader take the saved
// weights wrongly: their type, another class, a head that is tied.
std::string config_for(const ModelFolder& from, at::ScalarType dtype) {
  const std::string name = dtype == at::kDouble     ? "float64"
                           : dtype == at::kBFloat16 ? "bfloat16"
                           : dtype == at::kHalf     ? "float16"
                                                    : "float32";
  auto config = ordered_json_in(from.config_text);
  const auto before = config;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.contains(key)) {
      config[key] = name;
    }
  }
  if (config.contains("architectures")) {
    config["architectures"] = json_in(from.model.config).at("architectures");
  }
  if (model_from_config(config.dump(), kConfig).tied() != from.model.tied()) {
    config["tie_word_embeddings"] = from.model.tied();
  }
  return config == before ? from.config_text : config.dump(2) + "\n";
}

}  // namespace

std::vector<std::string> save_model(
    const Parameters& parameters,
    Communicator& domain,
    const fs::path& to,
    const ModelFolder& from,
    at::ScalarType dtype) {
  const c10::InferenceMode no_autograd;
  const bool from_folder = !from.config_text.empty();
  std::vector<std::string> notes;
  if (parameter_shapes(from.model) != parameter_shapes(parameters.model())) {
    throw std::invalid_argument(
        "save_model: " + from.path.string() + " is of another model than the parameters");
  }
  if (domain.rank() != 0) {  // what rank 0 throws frees the others
    collect(parameters, Which::weights, domain, [](const std::string&, const at::Tensor&) {});
    domain.barrier({.op = "model saved", .part = ""});
    return notes;
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
  if (from_folder || fs::is_directory(from.path)) {
    notes = copy_companions(from.path, to);
  }
  // Last: it makes the folder a model's.
  write_file(
      to / kConfig,
      from_folder ? config_for(from, dtype) : ordered_json_in(from.model.config).dump(2) + "\n");
  domain.barrier({.op = "model saved", .part = ""});
  return notes;
}

}  // namespace paradyse
