#include "src/plan/base/lengths_file.h"

#include <charconv>
#include <stdexcept>

#include "src/plan/base/listed_lines.h"

namespace paradyse {
namespace {

std::int64_t length_in(const std::string& word, const std::string& source, const char* expected) {
  std::int64_t n = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, n);
  if (error != std::errc() || stop != end || n < 1) {
    throw std::invalid_argument(
        source + ": '" + word.substr(0, 40) + "' is not a length; expected " + expected);
  }
  return n;
}

constexpr const char* kOneALine = "one whole number of at least 1 a line";

}  // namespace

ListedLengths read_lengths(const std::filesystem::path& file) {
  ListedLengths lengths;
  for (const ListedLine& line : listed_lines(
           file, "give a file with a length in tokens a line (benchmarks/lengths.py makes them)")) {
    lengths.tokens.push_back(length_in(line.text, line.source, kOneALine));
    lengths.lines.push_back(line.number);
  }
  if (lengths.tokens.empty()) {
    throw std::invalid_argument(
        listed_name(file) + ": no length in it; expected " + std::string(kOneALine));
  }
  return lengths;
}

std::vector<std::int64_t> lengths_on_line(const std::string& line, const std::string& source) {
  std::vector<std::int64_t> lengths;
  for (const std::string& word : words_of(line)) {
    lengths.push_back(
        length_in(word, source, "whole numbers of at least 1, with blanks or commas between them"));
  }
  return lengths;
}

}  // namespace paradyse
