#include "src/plan/base/lengths_file.h"

#include <charconv>
#include <sstream>
#include <stdexcept>
#include <string>

#include "src/plan/base/disk_file.h"

namespace paradyse {

std::vector<std::int64_t> read_lengths(const std::filesystem::path& file) {
  std::istringstream stream(content_of_named(
      file, "give a file with a length in tokens a line (benchmarks/lengths.py makes them)"));
  std::vector<std::int64_t> lengths;
  std::string line;
  for (std::int64_t number = 1; std::getline(stream, line); ++number) {
    if (line.find('\0') != std::string::npos) {
      throw std::invalid_argument(
          file.string() + ", line " + std::to_string(number) +
          ": has a NUL byte: the file was damaged, or is UTF-16");
    }
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos) {
      continue;
    }
    const std::size_t end = line.find_last_not_of(" \t\r") + 1;
    std::int64_t n = 0;
    const auto [stop, error] = std::from_chars(line.data() + begin, line.data() + end, n);
    if (error != std::errc() || stop != line.data() + end || n < 1) {
      throw std::invalid_argument(
          file.string() + ", line " + std::to_string(number) + ": '" +
          line.substr(begin, std::min<std::size_t>(end - begin, 40)) +
          "' is not a length; expected one whole number of at least 1 a line");
    }
    lengths.push_back(n);
  }
  if (lengths.empty()) {
    throw std::invalid_argument(
        file.string() + ": no length in it; expected one whole number of at least 1 a line");
  }
  return lengths;
}

}  // namespace paradyse
