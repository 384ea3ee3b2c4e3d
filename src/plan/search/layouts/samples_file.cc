#include "src/plan/search/layouts/samples_file.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string_view>
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
  throw std::invalid_argument(line.place() + ": " + why + "; expected " + form_of(dims));
}

// "'frames=0'", of a long word its beginning.
std::string in_quotes(std::string_view word) { return "'" + std::string(word.substr(0, 40)) + "'"; }

// None: no whole number.
std::optional<std::int64_t> number_in(std::string_view text) {
  std::int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(number)
                                                                   : std::nullopt;
}

// What a line says of one dim.
struct SizeWord {
  std::string text;  // "frames=16"
  std::string dim;
  std::optional<std::int64_t> size;  // none: no whole number
};

std::vector<SizeWord> size_words(const ListedLine& line, const std::vector<std::string>& dims) {
  std::vector<SizeWord> words;
  for (const std::string_view word : words_of(line.text)) {
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos) {
      refuse(line, in_quotes(word) + " is not NAME=SIZE", dims);
    }
    words.push_back(
        {std::string(word),
         std::string(word.substr(0, equals)),
         number_in(word.substr(equals + 1))});
  }
  return words;
}

// Adds the sample of which a line says this.
void add(
    const std::vector<SizeWord>& words,
    const ListedLine& line,
    const Model& model,
    const std::vector<std::string>& dims,
    BatchSizes& batch) {
  DimSizes sizes;
  for (const auto& [word, dim, size] : words) {
    if (std::ranges::find(dims, dim) == dims.end()) {
      refuse(
          line,
          in_quotes(word) + ": samples of this model have no such size" + did_you_mean(dim, dims),
          dims);
    }
    if (!size || *size < 1 || *size > kMostOfDim) {
      refuse(
          line,
          in_quotes(word) + ": a size is a whole number from 1 to " + std::to_string(kMostOfDim),
          dims);
    }
    if (!sizes.emplace(dim, *size).second) {
      refuse(line, in_quotes(word) + ": " + dim + " stands there twice", dims);
    }
  }
  for (const std::string& dim : dims) {
    if (!sizes.contains(dim)) {
      refuse(line, in_quotes(line.text) + " does not say " + dim, dims);
    }
  }
  sizes = with_pairs(model, std::move(sizes));
  if (const std::string why = more_than_counted(model, sizes, 1); !why.empty()) {
    refuse(line, in_quotes(line.text) + ": too large: " + why, dims);
  }
  batch.lengths.push_back(model.rows(sizes));
  batch.dims.push_back(std::move(sizes));
}

}  // namespace

std::string sample_form(const Model& model) { return form_of(given_dims(model)); }

BatchSizes sizes_of_samples(const Model& model, const std::vector<DimSizes>& samples) {
  const std::vector<std::string> dims = given_dims(model);
  BatchSizes batch;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::vector<SizeWord> words;
    for (const auto& [dim, size] : samples[i]) {
      words.push_back({dim + "=" + std::to_string(size), dim, size});
    }
    const std::string text = joined(words, " ", &SizeWord::text);
    add(words, {.text = text, .source = "sample " + std::to_string(i)}, model, dims, batch);
  }
  return batch;
}

ListedSamples read_samples(
    const std::filesystem::path& file, const Model& model, std::int64_t most) {
  const std::vector<std::string> dims = given_dims(model);
  ListedSamples samples;
  ListedLines listed(file, "give a file with the sizes of a sample a line");
  while (std::ssize(samples.lines) < most) {
    const ListedLine* const line = listed.next();
    if (line == nullptr) {
      break;
    }
    add(size_words(*line, dims), *line, model, dims, samples.sizes);
    samples.lines.push_back(line->number);
  }
  if (samples.lines.empty()) {
    throw std::invalid_argument(
        listed_name(file) + ": no sample in it; expected " + sample_form(model) + " on each line");
  }
  return samples;
}

}  // namespace paradyse
