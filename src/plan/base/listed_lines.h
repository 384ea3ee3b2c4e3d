// Files that list something, one a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace paradyse {

struct ListedLine {
  std::string text;         // without blanks at its ends
  std::int64_t number = 0;  // in the file, from 1
  std::string source;       // "lengths.txt, line 3": how messages begin
};

// The lines of a file that are not blank, also of one packed by gzip; "-": standard input.  Throws
// std::invalid_argument that names the file, and the line: unreadable (`advice`: what to give),
// with a NUL byte.
std::vector<ListedLine> listed_lines(const std::filesystem::path& file, const char* advice);
// How messages call it: "-" is /dev/stdin.
std::string listed_name(const std::filesystem::path& file);

// Its words, with blanks or commas between them.
std::vector<std::string> words_of(std::string_view line);

}  // namespace paradyse
