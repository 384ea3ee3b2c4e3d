#include "src/plan/base/listed_lines.h"

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <stdexcept>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/gunzip.h"

namespace paradyse {

std::string listed_name(const std::filesystem::path& file) {
  return file == "-" ? "/dev/stdin" : file.string();
}

std::vector<ListedLine> listed_lines(const std::filesystem::path& file, const char* advice) {
  const std::string from = listed_name(file);
  std::istringstream stream(gunzipped(content_of_named(from, advice), from));
  std::vector<ListedLine> lines;
  std::string line;
  for (std::int64_t number = 1; std::getline(stream, line); ++number) {
    std::string source = from + ", line " + std::to_string(number);
    if (line.find('\0') != std::string::npos) {
      throw std::invalid_argument(source + ": has a NUL byte: the file was damaged, or is UTF-16");
    }
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos) {
      continue;
    }
    const std::size_t end = line.find_last_not_of(" \t\r") + 1;
    lines.push_back(
        {.text = line.substr(begin, end - begin), .number = number, .source = std::move(source)});
  }
  return lines;
}

std::vector<std::string> words_of(std::string_view line) {
  constexpr std::string_view kBetween = " \t\r,";
  std::vector<std::string> words;
  for (std::size_t at = line.find_first_not_of(kBetween); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBetween, at), line.size());
    words.emplace_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBetween, end);
  }
  return words;
}

}  // namespace paradyse
