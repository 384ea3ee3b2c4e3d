// Adapters of a model (lora.h) in the files of PEFT: adapter_config.json beside
// adapter_model.safetensors.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "paradyse/plan/model.h"
#include "paradyse/run/communicator.h"
#include "paradyse/run/weights.h"
#include "src/run/weights/safetensors.h"

namespace paradyse {

inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";

struct StoredAdapters {
  std::map<std::string, std::string> names;  // as the model calls them, and the file does
  std::vector<std::string> notes;            // sentences: what is taken otherwise
};
// Of all that is trained: adapters, and biases as PEFT stores them, which may not be there (PEFT
// stores none of lora_only).  Throws std::runtime_error naming file and tensor for an adapter that
// is missing, a wrong shape or type, or a tensor that the model does not train.
StoredAdapters stored_adapters(const SafetensorsReader& reader, const Model& model);

// The file of a folder's adapters.  Throws std::runtime_error saying what is there instead.
std::filesystem::path adapter_file(const std::filesystem::path& folder);

// Writes what is trained, of type `dtype`, into the new folder `to`, as PEFT reads it;
// `base_model`: the folder of the frozen weights.  As save_model() otherwise.
void save_adapters(
    const Parameters& parameters,
    Communicator& domain,
    const std::filesystem::path& to,
    const std::filesystem::path& base_model,
    at::ScalarType dtype);

}  // namespace paradyse
