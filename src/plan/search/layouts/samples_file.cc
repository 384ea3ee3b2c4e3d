#include "src/plan/search/layouts/samples_file.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "src/plan/base/listed_lines.h"
#include "src/plan/base/text_match.h"
#include "src/plan/plan/size_limits.h"
#include "src/plan/search/layouts/samples.h"

namespace paradyse {
namespace {

std::string form_of(const std::vector<std::string>& dims) {
  return joined(dims, " ", [](const std::string& dim) { return dim + "=N"; });
}

[[noreturn]] void refuse(
    const ListedLine& line, const std::string& why, const std::vector<std::string>& dims) {
  throw std::invalid_argument(line.source + ": " + why + "; expected " + form_of(dims));
}

// "'frames=0'", of a long word its beginning.
std::string quoted(const std::string& word) { return "'" + word.substr(0, 40) + "'"; }

std::int64_t size_in(
    const std::string& word,
    const std::string& number,
    const ListedLine& line,
    const std::vector<std::string>& dims) {
  std::int64_t size = 0;
  const char* const end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, size);
  if (error != std::errc() || stop != end || size < 1 || size > kMostOfDim) {
    refuse(
        line,
        quoted(word) + ": a size is a whole number from 1 to " + std::to_string(kMostOfDim),
        dims);
  }
  return size;
}

DimSizes sizes_in(const ListedLine& line, const std::vector<std::string>& dims) {
  DimSizes sizes;
  for (const std::string& word : words_of(line.text)) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) {
      refuse(line, quoted(word) + " is not NAME=SIZE", dims);
    }
    const std::string dim = word.substr(0, equals);
    if (std::ranges::find(dims, dim) == dims.end()) {
      refuse(
          line,
          quoted(word) + ": samples of this model have no such size" + did_you_mean(dim, dims),
          dims);
    }
    if (!sizes.emplace(dim, size_in(word, word.substr(equals + 1), line, dims)).second) {
      refuse(line, quoted(word) + ": " + dim + " stands there twice", dims);
    }
  }
  for (const std::string& dim : dims) {
    if (!sizes.contains(dim)) {
      refuse(line, quoted(line.text) + " does not say " + dim, dims);
    }
  }
  return sizes;
}

}  // namespace

std::string sample_form(const Model& model) { return form_of(given_dims(model)); }

ListedSamples read_samples(
    const std::filesystem::path& file, const Model& model, std::int64_t most) {
  const std::vector<std::string> dims = given_dims(model);
  ListedSamples samples;
  for (const ListedLine& line :
       listed_lines(file, "give a file with the sizes of a sample a line")) {
    if (std::ssize(samples.lines) == most) {
      break;
    }
    DimSizes sizes = with_pairs(model, sizes_in(line, dims));
    if (const std::string why = more_than_counted(model, sizes, 1); !why.empty()) {
      refuse(line, quoted(line.text) + ": too large: " + why, dims);
    }
    samples.sizes.lengths.push_back(model.rows(sizes));
    samples.sizes.dims.push_back(std::move(sizes));
    samples.lines.push_back(line.number);
  }
  if (samples.lines.empty()) {
    throw std::invalid_argument(
        listed_name(file) + ": no sample in it; expected " + sample_form(model) + " on each line");
  }
  return samples;
}

}  // namespace paradyse
