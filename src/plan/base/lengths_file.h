// Lists of documents' lengths as files: one in tokens a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace paradyse {

struct ListedLengths {
  std::vector<std::int64_t> tokens;  // [document]
  std::vector<std::int64_t> lines;   // [document] where it stands, from 1
  std::int64_t dropped = 0;          // longer ones, before the last
};

// The first `most` of a file that are not longer than `longest`; what stands behind them is not
// read.  The file may be packed by gzip; "-": standard input.  Throws std::invalid_argument that
// names the file and the line: unreadable, no number, below 1, or nothing in it.
ListedLengths read_lengths(
    const std::filesystem::path& file,
    std::int64_t most,
    std::int64_t longest = std::numeric_limits<std::int64_t>::max());

// The lengths of a batch that stands on one line, with blanks or commas between them; none: a
// blank line.  Throws std::invalid_argument beginning with `source`, also for more than `most`.
std::vector<std::int64_t> lengths_on_line(
    const std::string& line, std::int64_t most, const std::string& source);

}  // namespace paradyse
