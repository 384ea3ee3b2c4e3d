// Samples of models of several dims, read from files of one family.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "paradyse/run/data.h"
#include "paradyse/run/sample_file.h"

namespace paradyse {

// Samples of one file after the other.
class GridData {
 public:
  explicit GridData(
      SampleFiles files,
      std::vector<std::string> notes = {},
      std::map<std::string, LeftOut> left_out = {});

  [[nodiscard]] const BatchSizes& sizes() const { return sizes_; }
  [[nodiscard]] std::int64_t size() const { return std::ssize(sizes_.lengths); }
  // The file that has sample `i`, and its number there.
  [[nodiscard]] std::pair<const SampleFile*, std::int64_t> place(std::int64_t i) const;
  // As SampleFile has it.
  [[nodiscard]] Sample sample(std::int64_t i, std::uint64_t seed, std::uint64_t draw) const;
  [[nodiscard]] std::vector<Sample> samples(std::uint64_t seed) const;
  [[nodiscard]] std::string fingerprint() const;
  // Sentences: what of the files is taken otherwise than one might expect.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  // [why] What is in folders and was not read.
  [[nodiscard]] const std::map<std::string, LeftOut>& left_out() const { return left_out_; }

 private:
  SampleFiles files_;
  std::vector<std::string> notes_;
  std::map<std::string, LeftOut> left_out_;
  std::vector<std::int64_t> first_;  // sample of each file
  BatchSizes sizes_;
};

// Each file by the reader of the model's family (sample_readers.h); of a folder, in the order of
// their names, all files in it that are, or are named as, such data.  Others there are left out and
// counted: hidden ones, folders, and what plainly is something else.  Throws std::runtime_error,
// too, for a file that is named twice, a folder without data and what is neither;
// std::invalid_argument for a family without a reader, where extra sequences are asked for of a
// model without a stack for them, or masked letters of one without masks.
GridData read_grid_data(
    const std::vector<std::filesystem::path>& paths,
    const Model& model,
    const RunConfig::Data& settings = {});

}  // namespace paradyse
