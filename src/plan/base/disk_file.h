// Files that are on the disk when a call returns.  (The run side's: src/run/train/files.h.)
#pragma once

#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace paradyse {

// Puts `text` in the place of `file`: whole, or what was there stays.  A link stays one, to the new
// content; a device or a pipe takes the text and stays what it is.  Throws std::runtime_error
// naming the file and the reason.
void replace_file(const std::filesystem::path& file, const std::string& text);

// An open file that is to become `file`, and its name beside it on the way there, which nobody has:
// what a user has is not written over, nor what a link of such a name leads to.  Where the file
// system can, it has that name only while place_new_file() gives it its own, so that a process that
// is killed leaves nothing.  It is to be placed, or that name removed.  Throws std::runtime_error.
std::pair<std::filesystem::path, int> new_file_beside(const std::filesystem::path& file);
// It is `file`, in the place of what was.  False: errno says why not.
bool place_new_file(
    const std::filesystem::path& partial, int descriptor, const std::filesystem::path& file);

// Where a file is that links lead to, be it there or not.  Throws std::runtime_error for links that
// lead to one another.
std::filesystem::path behind_links(const std::filesystem::path& file);

// What an error says; of the file system's as ours have it: "PATH: REASON".
std::string message_of(const std::exception& error);

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
// Why a regular file, if there is one, must stay: it does not begin with `mark`, as what we would
// write there does, and is not empty; "": it may be replaced.  Blanks and ends of lines do not
// count.  `what`: "a plan"; `at`: bytes before the mark, which are no text.
std::string why_not_ours(
    const std::filesystem::path& file,
    const std::string& what,
    std::string_view mark,
    std::size_t at = 0);

// Why `file` cannot be read, by a reader that may look at it more than once: "it is a folder", "it
// is a pipe; ..."; "": it can be.
std::string why_not_readable(const std::filesystem::path& file);

// What is read whole holds at most so many bytes: a stranger's file may have no end, or a terabyte
// of nothing that takes no room on the disk.
inline constexpr std::size_t kMostContent = std::size_t{1} << 30;
inline constexpr std::size_t kMostMetrics = std::size_t{1} << 34;  // of a run of years

// The content of a file, or of a pipe that somebody writes; nothing where no such file is.  Throws
// std::runtime_error for one that is there and cannot be read: a folder, a device (which may have
// no end), a pipe that nobody writes, and what has more than `most` bytes.
std::optional<std::string> content_of(
    const std::filesystem::path& file, std::size_t most = kMostContent);

// The first bytes of a file, by which one tells what it is; "" where no regular file is.  Never
// waits.  Throws std::runtime_error for one that cannot be read.
std::string beginning_of(const std::filesystem::path& file, std::size_t bytes);

// The same for a file that a user named: throws std::invalid_argument, also where there is none,
// with how to make one ("make it with `paradyse fit`").
std::string content_of_named(const std::filesystem::path& file, const std::string& remedy);

// What stands in a folder, in any order; nothing where no folder is.  Throws
// std::runtime_error for one that cannot be listed: taken for empty, what is in it would be lost.
std::vector<std::filesystem::path> paths_in(const std::filesystem::path& folder);

// The end of a file, held for writing by this program alone where the file system has locks.
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
