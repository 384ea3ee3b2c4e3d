// Files that list something, one a line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

#include "src/plan/base/gunzip.h"

namespace paradyse {

// No line is longer: of a stranger's, all may be one.
inline constexpr std::size_t kMostLine = std::size_t{1} << 24;

struct ListedLine {
  // "lengths.txt, line 3": how messages begin.
  std::string place() const;

  std::string text = {};    // without blanks at its ends
  std::int64_t number = 0;  // in the file, from 1; 0: in none
  std::string source = {};  // "lengths.txt"
};

// The next line of a text, without its end, in `line`, which is that before and is counted on.
// False: there is none.  Throws std::invalid_argument that names the place for one that is longer
// than kMostLine bytes.
bool next_line(std::streambuf& text, ListedLine& line);

// The lines of a file that are not blank, also of one packed by gzip; "-": standard input.  One is
// held at a time.
class ListedLines {
 public:
  // Throws std::invalid_argument for an unreadable file (`advice`: what to give).
  ListedLines(const std::filesystem::path& file, const char* advice);

  // Null: there is none any more.  It holds until the next call.  Throws as next_line() and
  // Gunzipped do, and for a NUL byte.
  const ListedLine* next();

 private:
  Gunzipped text_;
  ListedLine line_;
};

// How messages call it: "-" is /dev/stdin.
std::string listed_name(const std::filesystem::path& file);

// Its words, with blanks or commas between them.
std::vector<std::string_view> words_of(std::string_view line);

}  // namespace paradyse
