// A checkpoint as a Hugging Face folder, or as one of PEFT.
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
  bool adapters = false;           // the folder is one of PEFT
  std::vector<std::string> notes;  // sentences for the user
};

struct ExportAs {
  std::string model = {};  // where the run's model is now; "": where the run found it
  std::string dtype = {};  // of the weights, or auto, that of training; "": the run's output.dtype
  bool merged = false;     // of a run with adapters: the base model with what they add
};

// Writes the weights of `from`, a checkpoint, or a run, of which the newest one that is whole is
// taken, to the folder `to`, as the run writes its model/; of a run with adapters (lora.h) that is
// a PEFT folder.  Throws std::invalid_argument where `from` is neither or damaged, `to` is not
// empty, the model is another one, or there is nothing to merge.
Exported export_checkpoint(
    const std::filesystem::path& from, const std::filesystem::path& to, const ExportAs& as = {});

}  // namespace paradyse
