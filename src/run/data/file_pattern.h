// What a pattern of file names matches, as a shell reads it: * ? and [...] in any part of a path; a
// name that begins with a dot only where the pattern's does.
#pragma once

#include <filesystem>
#include <vector>

namespace paradyse {

bool is_pattern(const std::filesystem::path& path);

// Ascending.  Throws std::runtime_error for a folder or a file on the way that is there and cannot
// be looked at: glob() would leave it out, and training would see less.
std::vector<std::filesystem::path> matches_of(const std::filesystem::path& pattern);

}  // namespace paradyse
