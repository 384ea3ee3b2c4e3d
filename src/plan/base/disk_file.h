// Files that are on the disk when a call returns.  (The run side's: src/run/train/files.h.)
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace paradyse {

// Puts `text` in the place of `file`: whole, or what was there stays.  Throws std::runtime_error
// naming the file and the reason.
void replace_file(const std::filesystem::path& file, const std::string& text);

// Writes all of it to an open file; false: errno says why not.
bool write_all(int descriptor, std::string_view text);
// What was written to a file, or the names in a folder, is on the disk (as far as the file system
// can promise).  Throws std::runtime_error.
void sync_path(const std::filesystem::path& path);

// Why a file of that name cannot be written, tried by writing a byte beside it; "": it can be.
// `makes_folders`: who writes it makes the folders that are not there.  What is there already and
// no folder stays as it is; a device takes what it takes, and so does a pipe that somebody reads.
std::string why_not_writable(const std::filesystem::path& file, bool makes_folders = false);
// The same of files in a folder.
std::string why_no_file_in(const std::filesystem::path& folder, bool makes_folders = false);
// Why a regular file, if there is one, must stay: it has not `mark` near its beginning, as what we
// would write there has, and is not empty; "": it may be replaced.  `what`: "a plan".
std::string why_not_ours(
    const std::filesystem::path& file, const std::string& what, std::string_view mark);

// Why `file` cannot be read, by a reader that may look at it more than once: "it is a folder", "it
// is a pipe; ..."; "": it can be.
std::string why_not_readable(const std::filesystem::path& file);

// The content of a file, or of a pipe that somebody writes; nothing where no such file is.  Throws
// std::runtime_error for one that is there and cannot be read: a folder, a device (which may have
// no end), a pipe that nobody writes.
std::optional<std::string> content_of(const std::filesystem::path& file);

// The same for a file that a user named: throws std::invalid_argument, also where there is none,
// with how to make one ("make it with `paradyse fit`").
std::string content_of_named(const std::filesystem::path& file, const std::string& remedy);

// The end of a file, held for writing by this program alone.
class FileEnd {
 public:
  // Cuts off what stands beyond `bytes`.  The file has to be there.  Throws std::runtime_error,
  // also where another program holds it.
  FileEnd(const std::filesystem::path& file, std::size_t bytes);
  ~FileEnd();
  FileEnd(const FileEnd&) = delete;
  FileEnd& operator=(const FileEnd&) = delete;

  // Post: all of `text` is on the disk; where that fails (std::runtime_error), none of it.
  void append(std::string_view text);

 private:
  [[noreturn]] void refuse(const std::string& what) const;

  std::filesystem::path file_;
  int descriptor_;
  std::size_t bytes_;
};

}  // namespace paradyse
