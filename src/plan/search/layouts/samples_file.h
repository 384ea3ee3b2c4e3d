// Lists of samples' sizes: as values, and as files with one sample a line, frames=16 patches=256.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "paradyse/plan/model.h"
#include "paradyse/plan/plan.h"

namespace paradyse {

struct ListedSamples {
  BatchSizes sizes;
  std::vector<std::int64_t> lines;  // [sample] where it stands, from 1
};

// "frames=N patches=N": what a line says of a sample of the model.
std::string sample_form(const Model& model);

// Of each sample what it says of the dims of given_dims().  Throws std::invalid_argument that names
// the sample, like read_samples().
BatchSizes sizes_of_samples(const Model& model, const std::vector<DimSizes>& samples);

// The first `most` samples of a file, also packed by gzip; "-": standard input.  Words have blanks
// or commas between them, in any order.  Throws std::invalid_argument that names the file, the
// line, what stands there and what is accepted: unreadable, no NAME=SIZE, a dim that the model has
// not got (with the nearest name), one that stands there twice or is missing, a size below 1 or
// above 2^24, more rows than are counted, or nothing in it.
ListedSamples read_samples(
    const std::filesystem::path& file, const Model& model, std::int64_t most);

}  // namespace paradyse
