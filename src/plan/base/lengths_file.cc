#include "src/plan/base/lengths_file.h"

#include <charconv>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string_view>

#include "src/plan/base/listed_lines.h"

namespace paradyse {
namespace {

// None: it is no length.
std::optional<std::int64_t> length_in(std::string_view word) {
  std::int64_t n = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), n);
  return error == std::errc() && stop == word.data() + word.size() && n >= 1 ? std::optional(n)
                                                                             : std::nullopt;
}

[[noreturn]] void refuse(
    std::string_view word, const std::string& source, const std::string& expected) {
  throw std::invalid_argument(
      source + ": '" + std::string(word.substr(0, 40)) + "' is not a length; expected " + expected);
}

constexpr const char* kOneALine = "one whole number of at least 1 a line";

}  // namespace

ListedLengths read_lengths(
    const std::filesystem::path& file, std::int64_t most, std::int64_t longest) {
  ListedLines listed(
      file, "give a file with a length in tokens a line (benchmarks/lengths.py makes them)");
  ListedLengths lengths;
  while (std::ssize(lengths.tokens) < most) {
    const ListedLine* const line = listed.next();
    if (line == nullptr) {
      break;
    }
    const std::optional<std::int64_t> tokens = length_in(line->text);
    if (!tokens) {
      refuse(line->text, line->place(), kOneALine);
    }
    if (*tokens > longest) {
      ++lengths.dropped;
    } else {
      lengths.tokens.push_back(*tokens);
      lengths.lines.push_back(line->number);
    }
  }
  if (lengths.tokens.empty() && lengths.dropped == 0) {
    throw std::invalid_argument(
        listed_name(file) + ": no length in it; expected " + std::string(kOneALine));
  }
  return lengths;
}

std::vector<std::int64_t> lengths_on_line(
    const std::string& line, std::int64_t most, const std::string& source) {
  std::vector<std::int64_t> lengths;
  for (const std::string_view word : words_of(line)) {
    const std::optional<std::int64_t> tokens = length_in(word);
    if (!tokens) {
      refuse(word, source, "whole numbers of at least 1, with blanks or commas between them");
    }
    if (std::ssize(lengths) == most) {
      throw std::invalid_argument(
          source + ": has more than " + std::to_string(most) + " lengths; split the batch");
    }
    lengths.push_back(*tokens);
  }
  return lengths;
}

}  // namespace paradyse
