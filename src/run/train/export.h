// A checkpoint as a Hugging Face folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace paradyse {

struct Exported {
  std::filesystem::path checkpoint;
  std::int64_t step = 0;
  std::string dtype;               // of the tensors
  std::vector<std::string> notes;  // sentences for the user
};

// Writes the weights of `from`, a checkpoint, or a run, of which the newest one that is whole is
// taken, to the folder `to`, as the run writes its model/.  `model`: where the run's model is now;
// "": where the run found it.  `dtype`: a name of a type, or auto, that of training; "": the run's
// output.dtype.  Throws std::invalid_argument where `from` is neither or damaged,
// `to` is not empty, or the model is another one.
Exported export_checkpoint(
    const std::filesystem::path& from,
    const std::filesystem::path& to,
    const std::string& model,
    const std::string& dtype = "");

}  // namespace paradyse
