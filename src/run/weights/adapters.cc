#include "src/run/weights/adapters.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/refuse.h"
#include "src/run/weights/first_rank_writes.h"
#include "src/run/weights/head_bias.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

constexpr const char* kAdapterConfig = "adapter_config.json";
constexpr const char* kPrefix = "base_model.model.";  // of all that PEFT wraps
constexpr const char* kFactor = ".lora_A.weight";
constexpr const char* kBias = ".bias";

// What PEFT calls a weight of the model, and then what other versions may.  The bias of a module
// with an adapter is that of the layer inside it.
std::vector<std::string> peft_names(
    const std::string& name, const std::set<std::string>& with_adapter) {
  const std::string whole = kPrefix + name;
  if (name.ends_with(kBias)) {
    const std::string module = name.substr(0, name.size() - std::string(kBias).size());
    if (with_adapter.contains(module)) {
      return {kPrefix + module + ".base_layer.bias", whole};
    }
  }
  return {whole};
}

std::set<std::string> modules_with_adapter(const Model& model) {
  std::set<std::string> modules;
  for (const auto& [name, shape] : parameter_shapes(model, Which::trained)) {
    if (name.ends_with(kFactor)) {
      modules.insert(name.substr(0, name.size() - std::string(kFactor).size()));
    }
  }
  return modules;
}

}  // namespace

StoredAdapters stored_adapters(const SafetensorsReader& reader, const Model& model) {
  StoredAdapters found;
  const std::string file = reader.files().front().string();
  const std::set<std::string> modules = modules_with_adapter(model);
  std::map<std::string, StoredTensor> unused = reader.tensors();
  std::vector<std::string> left_out;
  for (const auto& [name, shape] : parameter_shapes(model, Which::trained)) {
    const std::vector<std::string> names = peft_names(name, modules);
    const auto there =
        std::ranges::find_if(names, [&](const std::string& one) { return reader.contains(one); });
    if (there == names.end()) {
      if (name.find(".lora_") == std::string::npos) {
        left_out.push_back(name);
        continue;
      }
      throw std::runtime_error(fmt::format(
          "{}: has no tensor \"{}\" among its {}; is adapter_config.json that of another adapter?",
          file,
          names.front(),
          reader.tensors().size()));
    }
    const StoredTensor& stored = reader.tensors().at(*there);
    constexpr std::array kTypes = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16};
    if (std::ranges::find(kTypes, stored.dtype) == kTypes.end()) {
      throw std::runtime_error(fmt::format(
          "{}: {} is stored as {}; expected F64, F32, F16 or BF16",
          file,
          *there,
          c10::toString(stored.dtype)));
    }
    if (stored.shape != shape) {
      throw std::runtime_error(fmt::format(
          "{}: {} has shape [{}], r and the base model ask for [{}]; is it of another base model?",
          file,
          *there,
          fmt::join(stored.shape, ", "),
          fmt::join(shape, ", ")));
    }
    found.names[name] = *there;
    unused.erase(*there);
    if (const HeadBias* const twice = head_bias(name)) {  // tied: PEFT stores both
      unused.erase(kPrefix + std::string(twice->own));
      unused.erase(kPrefix + std::string(twice->beside));
    }
  }
  if (!unused.empty()) {
    throw std::runtime_error(fmt::format(
        "{}: holds {}{}, which the adapters of adapter_config.json do not have",
        file,
        unused.begin()->first,
        unused.size() == 1 ? "" : fmt::format(" and {} more", unused.size() - 1)));
  }
  if (!left_out.empty()) {
    found.notes.push_back(fmt::format(
        "{}: {} of the biases that are trained ({}{}) are not stored: those of the base model are "
        "taken",
        file,
        left_out.size(),
        left_out.front(),
        left_out.size() == 1 ? "" : ", ..."));
  }
  return found;
}

fs::path adapter_file(const fs::path& folder) {
  std::error_code error;
  if (fs::is_regular_file(folder / kAdapterWeights, error)) {
    return folder / kAdapterWeights;
  }
  const bool pickled = fs::exists(folder / "adapter_model.bin", error);
  refuse(
      folder,
      std::string("holds no ") + kAdapterWeights +
          (pickled ? ", but an adapter_model.bin, which is not read: save the adapter again with "
                     "safe_serialization=True"
                   : ": give a folder that PEFT's save_pretrained() wrote"));
}

void save_adapters(
    const Parameters& parameters,
    Communicator& domain,
    const fs::path& to,
    const fs::path& base_model,
    at::ScalarType dtype) {
  const c10::InferenceMode no_autograd;
  const Model& model = parameters.model();
  const bool masters = dtype != parameters.types().weight;
  const std::set<std::string> modules = modules_with_adapter(model);
  const auto stored_as = [&](const std::string& name) { return peft_names(name, modules).front(); };
  FirstRankWrites writes(domain.rank() == 0);
  std::optional<SafetensorsWriter> writer;
  writes.tried([&] {
    for (const char* const name : {kAdapterConfig, kAdapterWeights}) {
      if (fs::exists(to / name)) {
        refuse(
            to,
            std::string("holds an adapter already (") + name +
                "), which is not overwritten; give a new folder");
      }
    }
    std::error_code error;
    fs::create_directories(to, error);
    if (error) {
      refuse(to, "cannot be made: " + error.message());
    }
    std::vector<std::pair<std::string, StoredTensor>> tensors;
    for (const auto& [name, shape] : parameter_shapes(model, Which::trained)) {
      tensors.emplace_back(stored_as(name), StoredTensor{.dtype = dtype, .shape = shape});
    }
    writer.emplace(to / kAdapterWeights, std::move(tensors));
  });
  collect(
      parameters,
      Which::trained,
      domain,
      [&](const std::string& name, const at::Tensor& tensor) {
        const at::Tensor narrow = tensor.to(dtype);
        writes.tried([&] { writer->write(stored_as(name), narrow); });
      },
      masters);
  writes.tried([&] {
    writer->finish();
    std::error_code none;
    const fs::path base = fs::exists(base_model, none) ? fs::absolute(base_model) : base_model;
    replace_file(to / kAdapterConfig, adapter_config_of(model, base.lexically_normal().string()));
  });
  domain.barrier({.op = "adapters saved", .part = ""});
  writes.expect_written();
}

}  // namespace paradyse
