// Files of a run: text put in place or added, read and hashed.
#pragma once

#include <filesystem>
#include <string>

#include "src/plan/base/disk_file.h"

namespace paradyse {

// Puts `text` in the place of `path`: whole, or what was there stays.  Throws std::runtime_error
// naming the file and the reason.
void write_durably(const std::filesystem::path& path, const std::string& text);

// The same, but on the disk only when the system gets to it.
void replace_text(const std::filesystem::path& path, const std::string& text);

// Adds `text` at the end of `path`, all of it or nothing; makes the file.  Throws
// std::runtime_error.
void append_text(const std::filesystem::path& path, const std::string& text);

// `from` gets the name `to`.  Throws std::runtime_error naming both and the reason.
void move_path(const std::filesystem::path& from, const std::filesystem::path& to);

// Throws std::runtime_error, also for what has more than `most` bytes.
std::string file_text(const std::filesystem::path& path, std::size_t most = kMostContent);
// XXH64 of the content.  Throws std::runtime_error.
std::string file_xxh64(const std::filesystem::path& path);

// `path`, or where that is taken name-1.extension, name-2.extension ...
std::filesystem::path free_name(const std::filesystem::path& path);

}  // namespace paradyse
