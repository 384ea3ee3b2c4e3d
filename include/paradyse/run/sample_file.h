// Files of samples, which runs of models of several dims read, and readers of them.  A family that
// was added (model_folder.h) gets a reader by add_sample_reader(): then train() and evaluate() take
// its files as data.path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "paradyse/plan/config.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/detail/item.h"

namespace paradyse {

// The samples of a file that was read.  Several ranks ask it at the same time.
class SampleFile {
 public:
  using AddBytes = std::function<void(std::string_view bytes)>;

  // `file` names it in messages; `sizes` has the rows (Model::rows()) and dims of each sample.
  SampleFile(std::string file, BatchSizes sizes);
  virtual ~SampleFile() = default;

  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const BatchSizes& sizes() const { return sizes_; }
  [[nodiscard]] std::int64_t size() const { return std::ssize(sizes_.lengths); }
  // Sample `i`.  Noise, its level and masks are those of (seed, draw), the same on every machine.
  // Throws std::runtime_error where this machine has no memory for it.
  [[nodiscard]] virtual Sample sample(
      std::int64_t i, std::uint64_t seed, std::uint64_t draw) const = 0;
  // All of them, each as the draw of its number.
  [[nodiscard]] std::vector<Sample> samples(std::uint64_t seed) const;
  [[nodiscard]] std::string fingerprint() const;  // of sizes and content

 private:
  // Adds the bytes of all that samples are made of.
  virtual void add_content(const AddBytes& add) const = 0;

  std::string file_;
  BatchSizes sizes_;
};

using SampleFiles = std::vector<std::shared_ptr<const SampleFile>>;

// How files with samples of a family's models are read.
struct SampleReader {
  std::string family = {};  // Model::family
  std::string data = {};    // what a folder should have, in messages: "clips (safetensors)"
  // Throws std::runtime_error that names the file, what is found and what is needed.  `settings`:
  // [data] of a run; of keys that are for protein models a run says that they do nothing for
  // others.
  std::function<std::shared_ptr<const SampleFile>(
      const std::filesystem::path& file, const Model& model, const RunConfig::Data& settings)>
      read = {};
  // Why a file in a folder is left out, in a word or two ("no safetensors"), or "".  Without it
  // none is, but for hidden files.
  std::function<std::string(const std::filesystem::path& file)> why_left_out = {};
  // Sentences on all files together: what is taken otherwise than one might expect.
  std::function<std::vector<std::string>(
      const SampleFiles& files, const Model& model, const RunConfig::Data& settings)>
      notes = {};
};

// Once, before data is read and threads begin.  Throws std::invalid_argument for a family that has
// a reader, and for a reader without a family, `data` or `read`.
void add_sample_reader(SampleReader reader);
// Takes one that was added away again.  Throws std::invalid_argument for another family.
void remove_sample_reader(const std::string& family);

}  // namespace paradyse
