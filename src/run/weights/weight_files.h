// Which files of a model folder hold its weights; and what else a folder holds, by names.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace paradyse {

inline constexpr const char* kIndex = "model.safetensors.index.json";

struct WeightFiles {
  // That SafetensorsReader reads as one: model.safetensors, its index, or the shards.
  std::vector<std::filesystem::path> files;
  std::vector<std::string> notes;  // sentences: what is taken otherwise, or not at all
};

// model.safetensors, as transformers does, else the shards of model.safetensors.index.json, else
// shards that are all there without an index.  Throws std::runtime_error where none of these can be
// read, naming each file that looks like weights and what to do about it; for a folder with none it
// says how to have random ones.
WeightFiles weight_files(const std::filesystem::path& folder);

// Whether a file of this name is no companion of a model: weights in any format, their index, the
// state of a training, a download that has not ended.
bool is_weights_name(const std::string& name);

// Copies what lies beside the weights: files that are small and no weights, in `from` and in
// folders below it that hold nothing else.  Hidden ones stay, and what `to` has already.  Returns
// a sentence for what was left out or could not be copied.
std::vector<std::string> copy_companions(
    const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace paradyse
