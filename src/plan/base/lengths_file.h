// Lists of documents' lengths as files: one in tokens a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace paradyse {

struct ListedLengths {
  std::vector<std::int64_t> tokens;  // [document]
  std::vector<std::int64_t> lines;   // [document] where it stands, from 1
};

// A file, also packed by gzip; "-": standard input.  Throws std::invalid_argument that names the
// file and the line: unreadable, no number, below 1, or nothing in it.
ListedLengths read_lengths(const std::filesystem::path& file);

// The lengths of a batch that stands on one line, with blanks or commas between them; none: a
// blank line.  Throws std::invalid_argument beginning with `source`.
std::vector<std::int64_t> lengths_on_line(const std::string& line, const std::string& source);

}  // namespace paradyse
