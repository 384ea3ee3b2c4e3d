// Model folders as Hugging Face has them, and TOML model files: opened, and written back.
#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/run/weights.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/refuse.h"
#include "src/plan/base/text_match.h"
#include "src/run/memory/reading.h"
#include "src/run/weights/adapters.h"
#include "src/run/weights/first_rank_writes.h"
#include "src/run/weights/names_in_files.h"
#include "src/run/weights/safetensors.h"
#include "src/run/weights/weight_files.h"

namespace paradyse {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfig = "config.json";
constexpr const char* kWeights = "model.safetensors";
constexpr const char* kNamedWeights = "transformers_weights";  // of a config.json

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
      const auto names = names_in_files(name, folder.model.other_names);
      const auto there =
          std::ranges::find_if(names, [&](const auto& one) { return reader.contains(one); });
      return there == names.end() ? std::string() : *there;
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
      const std::optional<Lora> lora = folder.model.lora;
      folder.model = model_from_config(untied.dump(), (folder.path / kConfig).string());
      if (lora) {
        folder.model = with_lora(folder.model, *lora);
      }
      folder.notes.push_back(
          reader.file_of(head).string() + ": " + head + " differs from " + embedding +
          ", though tie_word_embeddings is true: it is used and trained untied, as Transformers 5 "
          "does");
    }
  } catch (const std::runtime_error&) {  // what cannot be read is told by those who need it
  }
}

}  // namespace

ModelFolder open_model(const fs::path& path, bool random_weights) {
  ModelFolder folder = read_model(path);
  if (!random_weights && !folder.config_text.empty()) {
    take_the_head_that_is_there(folder);
  }
  return folder;
}

ModelFolder open_language_model(const fs::path& path, bool random_weights) {
  ModelFolder folder = open_model(path, random_weights);
  expect_language_model(folder);
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
    if (parameters.model().lora) {
      parameters.initialize_adapters(seed);
    }
  }
  if (adapters != nullptr) {
    parameters.load_adapters(*adapters);
  }
}

namespace {

// transformers reads the weights that config.json names, whatever others there are.
void expect_named_weights(const ModelFolder& model, const std::vector<fs::path>& files) {
  const json config = model.config_text.empty() ? json::object() : json_in(model.config_text);
  const auto named = config.find(kNamedWeights);
  const std::string read = files.front().filename().string();
  if (named != config.end() && !named->is_null() && (files.size() > 1 || *named != read)) {
    refuse(
        model.path / kConfig,
        std::string(kNamedWeights) + " is " + excerpt(*named) +
            ", the file that transformers reads, but this program reads " + read +
            ": remove the key if that is the model, or name the other file " + kWeights +
            " and remove the key");
  }
}

ModelWeights open_base_weights(const ModelFolder& model, bool random_weights, std::uint64_t seed) {
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
    expect_named_weights(model, files.files);
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

}  // namespace

ModelWeights open_weights(const ModelFolder& model, bool random_weights, std::uint64_t seed) {
  ModelWeights weights = open_base_weights(model, random_weights, seed);
  if (model.adapter.empty()) {
    return weights;
  }
  return reading([&] {
    const auto reader = std::make_shared<const SafetensorsReader>(adapter_file(model.adapter));
    const StoredAdapters stored = stored_adapters(*reader, model.model);
    weights.notes.insert(weights.notes.end(), stored.notes.begin(), stored.notes.end());
    weights.said += ", with the adapters of " + model.adapter.string();
    weights.adapters = reader;
    return weights;
  });
}

namespace {

// The configuration of `from` as it stands, but for what would have a loader take the saved
// weights wrongly: their type, their file, another class, a head that is tied.
std::string config_for(const ModelFolder& from, at::ScalarType dtype) {
  const std::string name = dtype == at::kDouble     ? "float64"
                           : dtype == at::kBFloat16 ? "bfloat16"
                           : dtype == at::kHalf     ? "float16"
                                                    : "float32";
  auto config = ordered_json_in(from.config_text);
  const auto before = config;
  config.erase(kNamedWeights);
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
  const bool merged = parameters.model().lora && !from.model.lora;
  const Which which = merged ? Which::base : Which::weights;
  if (parameter_shapes(from.model) != parameter_shapes(parameters.model(), which)) {
    throw std::invalid_argument(
        "save_model: " + from.path.string() + " is of another model than the parameters");
  }
  const bool masters = dtype != parameters.types().weight;
  FirstRankWrites writes(domain.rank() == 0);
  std::optional<SafetensorsWriter> writer;
  writes.tried([&] {
    prepare_folder(to);
    std::vector<std::pair<std::string, StoredTensor>> tensors;
    for (const auto& [name, shape] : parameter_shapes(parameters.model(), which)) {
      tensors.emplace_back(name, StoredTensor{.dtype = dtype, .shape = shape});
    }
    writer.emplace(to / kWeights, std::move(tensors));
  });
  collect(
      parameters,
      which,
      domain,
      [&](const std::string& name, const at::Tensor& tensor) {
        const at::Tensor narrow = tensor.to(dtype);
        writes.tried([&] { writer->write(name, narrow); });
      },
      masters);
  writes.tried([&] {
    writer->finish();
    if (from_folder || fs::is_directory(from.path)) {
      notes = copy_companions(from.path, to);
    }
    // Last: it makes the folder a model's.
    replace_file(
        to / kConfig,
        from_folder ? config_for(from, dtype) : ordered_json_in(from.model.config).dump(2) + "\n");
  });
  domain.barrier({.op = "model saved", .part = ""});
  writes.expect_written();
  return notes;
}

}  // namespace paradyse
