// Lists of documents' lengths as files: one in tokens a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace paradyse {

// Throws std::invalid_argument that names the file and the line: unreadable, no number, below 1, or
// nothing in it.
std::vector<std::int64_t> read_lengths(const std::filesystem::path& file);

}  // namespace paradyse
