#include "src/plan/base/lengths_file.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/gunzip.h"

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

std::string line_of(const std::filesystem::path& file, std::int64_t number) {
  return file.string() + ", line " + std::to_string(number);
}

constexpr const char* kOneALine = "one whole number of at least 1 a line";

}  // namespace

ListedLengths read_lengths(const std::filesystem::path& file) {
  const std::filesystem::path from = file == "-" ? "/dev/stdin" : file;
  std::istringstream stream(gunzipped(
      content_of_named(
          from, "give a file with a length in tokens a line (benchmarks/lengths.py makes them)"),
      from.string()));
  ListedLengths lengths;
  std::string line;
  for (std::int64_t number = 1; std::getline(stream, line); ++number) {
    if (line.find('\0') != std::string::npos) {
      throw std::invalid_argument(
          line_of(from, number) + ": has a NUL byte: the file was damaged, or is UTF-16");
    }
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos) {
      continue;
    }
    const std::size_t end = line.find_last_not_of(" \t\r") + 1;
    lengths.tokens.push_back(
        length_in(line.substr(begin, end - begin), line_of(from, number), kOneALine));
    lengths.lines.push_back(number);
  }
  if (lengths.tokens.empty()) {
    throw std::invalid_argument(
        from.string() + ": no length in it; expected " + std::string(kOneALine));
  }
  return lengths;
}

std::vector<std::int64_t> lengths_on_line(const std::string& line, const std::string& source) {
  constexpr std::string_view kBetween = " \t\r,";
  std::vector<std::int64_t> lengths;
  for (std::size_t at = line.find_first_not_of(kBetween); at != std::string::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBetween, at), line.size());
    lengths.push_back(length_in(
        line.substr(at, end - at),
        source,
        "whole numbers of at least 1, with blanks or commas between them"));
    at = line.find_first_not_of(kBetween, end);
  }
  return lengths;
}

}  // namespace paradyse
