#include "src/plan/base/disk_file.h"

#include <algorithm>
#include <cerrno>
#include <random>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

constexpr const char* kOpenFiles = "/proc/self/fd/";

[[noreturn]] void refuse(const fs::path& file, const std::string& what) {
  throw std::runtime_error(
      file.string() + ": " + what + ": " + std::generic_category().message(errno));
}

// 0, or what went wrong.
int try_to_write(const fs::path& folder) {
  int descriptor = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  fs::path named;
  if (descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    named = folder / (".paradyse-" + std::to_string(::getpid()) + ".partial");
    descriptor = ::open(named.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  }
  if (descriptor < 0) {
    return errno;
  }
  const int error = write_all(descriptor, "?") ? 0 : errno;
  ::close(descriptor);
  if (!named.empty()) {
    ::unlink(named.c_str());
  }
  return error;
}

// A file that is read.  Opening never waits: not for the writer of a pipe, as it else would.
struct Opened {
  explicit Opened(const fs::path& file)
      : descriptor(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
    struct stat status{};
    if (descriptor < 0 || ::fstat(descriptor, &status) != 0) {
      missing = errno == ENOENT || errno == ENOTDIR;
      why = missing ? "it is not there" : std::generic_category().message(errno);
    } else if (S_ISDIR(status.st_mode)) {
      why = "it is a folder";
    } else if (S_ISFIFO(status.st_mode)) {
      pipe = true;
    } else if (!S_ISREG(status.st_mode)) {
      why = "it is a device, not a file";
    } else {
      bytes = idx(status.st_size);
    }
  }
  ~Opened() {
    if (descriptor >= 0) {
      ::close(descriptor);
    }
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  int descriptor;
  std::size_t bytes = 0;  // of a regular file
  bool missing = false;
  bool pipe = false;
  std::string why;  // it cannot be read
};

// Why not all of it could be read, or "".
std::string read_all(const Opened& file, std::string& text, std::size_t most) {
  constexpr int kPatienceMs = 1000;  // until a pipe has a writer
  constexpr int kPauseMs = 20;
  std::vector<char> block(std::size_t{1} << 16);
  bool written = false;  // the pipe had a writer
  for (int waited_ms = 0;;) {
    const ssize_t bytes = ::read(file.descriptor, block.data(), block.size());
    if (bytes > 0) {
      text.append(block.data(), idx(bytes));
      if (text.size() > most) {  // `yes |` has no end, and a file may grow while it is read
        return (file.pipe ? "the pipe gives more than " : "it has more than ") +
               std::to_string(most) + " bytes, and such a file has fewer";
      }
    } else if (bytes == 0 && (!file.pipe || written || !text.empty())) {
      return "";
    } else if (bytes == 0 && waited_ms >= kPatienceMs) {
      return "it is a pipe without a writer";
    } else if (bytes == 0) {
      waited_ms += kPauseMs;
      ::poll(nullptr, 0, kPauseMs);
    } else if (errno == EAGAIN) {
      written = true;
      pollfd one{.fd = file.descriptor, .events = POLLIN, .revents = 0};
      ::poll(&one, 1, -1);
    } else if (errno != EINTR) {
      return std::generic_category().message(errno);
    }
  }
}

// The first bytes of a regular file.  Why they cannot be read, or "".
std::string read_head(const fs::path& file, std::size_t bytes, std::string& head) {
  const Opened opened(file);
  if (!opened.why.empty() || opened.pipe) {
    return opened.pipe ? "it is a pipe" : opened.why;
  }
  head.resize(bytes);
  std::size_t read = 0;
  while (read < bytes) {
    const ssize_t more = ::read(opened.descriptor, head.data() + read, bytes - read);
    if (more == 0) {
      break;
    }
    if (more < 0 && errno != EINTR) {
      const std::string why = std::generic_category().message(errno);
      head.clear();
      return why;
    }
    read += idx(std::max<ssize_t>(more, 0));
  }
  head.resize(read);
  return "";
}

// A device or a pipe takes the text; a folder or a socket does not.  Opening never waits: not for
// the reader of a pipe.
void write_into(const fs::path& file, const std::string& text) {
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  const bool written =
      descriptor >= 0 && ::fcntl(descriptor, F_SETFL, 0) == 0 && write_all(descriptor, text);
  const int error = errno;
  if (descriptor >= 0) {
    ::close(descriptor);
  }
  if (!written) {
    errno = error;
    refuse(file, "cannot be written");
  }
}

}  // namespace

std::string why_no_file_in(const fs::path& folder, bool makes_folders) {
  fs::path at = folder.empty() ? fs::path(".") : folder;
  std::error_code error;
  while (fs::status(at, error).type() == fs::file_type::not_found &&
         fs::symlink_status(at, error).type() == fs::file_type::not_found) {
    if (!makes_folders) {
      return "the folder " + at.string() + " is not there; make it, or name another";
    }
    const fs::path above = at.parent_path();
    at = above == at || above.empty() ? fs::path(".") : above;
  }
  if (!fs::is_directory(at, error)) {
    return at.string() + " is not a folder" + (error ? ": " + error.message() : std::string()) +
           "; name another";
  }
  if (const int wrong = try_to_write(at); wrong != 0) {
    return "the folder " + at.string() +
           " cannot be written: " + std::generic_category().message(wrong) +
           "; name another, or check its permissions and the free disk space";
  }
  return "";
}

std::string why_not_writable(const fs::path& file, bool makes_folders) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (fs::is_directory(status) || !file.has_filename()) {
    return "is a folder; give the name of a file";
  }
  if (fs::is_fifo(status)) {
    // Stays open until the program ends: a reader that sees its last writer go would go, too.
    return ::open(file.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC) >= 0 ? ""
           : errno == ENXIO ? "is a pipe without a reader: start its reader first"
                            : "cannot be written: " + std::generic_category().message(errno);
  }
  if (fs::is_other(status) || fs::is_character_file(status)) {
    return "";
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return "cannot be written: " + error.message();
  }
  return why_no_file_in(file.parent_path(), makes_folders);
}

namespace {

std::string without_blanks(std::string_view text) {
  std::string all(text);
  std::erase_if(
      all, [](char one) { return one == ' ' || one == '\n' || one == '\r' || one == '\t'; });
  return all;
}

}  // namespace

std::string why_not_ours(
    const fs::path& file, const std::string& what, std::string_view mark, std::size_t at) {
  constexpr std::size_t kHead = 200;
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    return "";
  }
  std::string head;
  if (const std::string why = read_head(file, kHead, head); !why.empty()) {
    return "exists and cannot be read, so it is not replaced: " + why;
  }
  return head.empty() || (head.size() > at && without_blanks(std::string_view(head).substr(at))
                                                  .starts_with(without_blanks(mark)))
             ? ""
             : "exists and is not " + what + " of paradyse, so it is not replaced";
}

std::string message_of(const std::exception& error) {
  const auto* const of_files = dynamic_cast<const fs::filesystem_error*>(&error);
  if (of_files == nullptr) {
    return error.what();
  }
  const auto shown = [](const fs::path& path) { return path.empty() ? "\"\"" : path.string(); };
  std::string paths = shown(of_files->path1());
  if (!of_files->path2().empty()) {
    paths += " and " + of_files->path2().string();
  }
  return paths + ": " + of_files->code().message();
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno != EINTR) {
      return false;
    }
    text.remove_prefix(idx(written < 0 ? 0 : written));
  }
  return true;
}

void sync_path(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    refuse(path, "cannot be opened");
  }
  const bool synced = ::fsync(descriptor) == 0 || errno == EINVAL;  // some file systems cannot
  const int error = errno;
  ::close(descriptor);
  if (!synced) {
    errno = error;
    refuse(path, "cannot be written");
  }
}

fs::path behind_links(const fs::path& file) {
  constexpr int kMostLinks = 40;  // as Linux follows
  fs::path place = file;
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(place, error)); ++links) {
    if (links == kMostLinks) {
      errno = ELOOP;
      refuse(file, "cannot be written");
    }
    place = place.parent_path() / fs::read_symlink(place);
  }
  return place;
}

std::pair<fs::path, int> new_file_beside(const fs::path& file) {
  constexpr int kTries = 100;
  std::random_device number;
  const auto beside = [&] {
    fs::path partial = file;
    partial += "." + std::to_string(number()) + ".partial";
    return partial;
  };
  if (::access(kOpenFiles, X_OK) == 0) {  // by which it is named in the end
    const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    const int nameless = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (nameless >= 0) {
      return {beside(), nameless};
    }
  }
  for (int i = 0; i < kTries; ++i) {
    const fs::path partial = beside();
    const int descriptor = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
      return {partial, descriptor};
    }
    if (errno != EEXIST) {
      refuse(partial, "cannot be created");
    }
  }
  refuse(file, "cannot create a temporary file next to it");
}

bool place_new_file(const fs::path& partial, int descriptor, const fs::path& file) {
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) {
    return false;
  }
  const std::string open = kOpenFiles + std::to_string(descriptor);
  if (status.st_nlink == 0 &&
      ::linkat(AT_FDCWD, open.c_str(), AT_FDCWD, partial.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    return false;
  }
  return ::rename(partial.c_str(), file.c_str()) == 0;
}

void replace_file(const fs::path& file, const std::string& text) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (error && status.type() != fs::file_type::not_found) {  // as a link that is not to be followed
    errno = error.value();
    refuse(file, "cannot be written");
  }
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    write_into(file, text);
    return;
  }
  const fs::path place = behind_links(file);
  const auto [partial, descriptor] = new_file_beside(place);
  struct stat before{};
  const bool replaces = ::stat(place.c_str(), &before) == 0;
  const bool written = write_all(descriptor, text) &&
                       (!replaces || ::fchmod(descriptor, before.st_mode & 07777U) == 0) &&
                       ::fsync(descriptor) == 0;
  const bool placed = written && place_new_file(partial, descriptor, place);
  const int wrong = errno;
  ::close(descriptor);
  if (!placed) {
    ::unlink(partial.c_str());
    errno = wrong;
    refuse(file, "cannot be written");
  }
  sync_path(place.has_parent_path() ? place.parent_path() : fs::path("."));
}

std::string why_not_readable(const fs::path& file) {
  const Opened opened(file);
  return opened.why.empty() && opened.pipe
             ? "it is a pipe, but the data is read more than once; save it to a file"
             : opened.why;
}

std::string beginning_of(const fs::path& file, std::size_t bytes) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  const bool unknown = error && status.type() != fs::file_type::not_found;
  if (!unknown && !fs::is_regular_file(status)) {
    return "";
  }
  std::string head;
  const std::string why = unknown ? error.message() : read_head(file, bytes, head);
  if (!why.empty()) {
    throw std::runtime_error(file.string() + ": cannot be read: " + why);
  }
  return head;
}

std::optional<std::string> content_of(const fs::path& file, std::size_t most) {
  const Opened opened(file);
  if (opened.missing) {
    return std::nullopt;
  }
  std::string text;
  const std::string why = !opened.why.empty() ? opened.why
                          : opened.bytes > most
                              ? "it has " + std::to_string(opened.bytes) +
                                    " bytes; such a file has at most " + std::to_string(most)
                              : read_all(opened, text, most);
  if (!why.empty()) {
    throw std::runtime_error(file.string() + ": cannot be read: " + why);
  }
  return text;
}

std::string content_of_named(const fs::path& file, const std::string& remedy) {
  std::optional<std::string> text;
  try {
    text = content_of(file);
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(std::string(error.what()) + "; " + remedy);
  }
  if (!text) {
    throw std::invalid_argument(file.string() + ": is not there; " + remedy);
  }
  return *std::move(text);
}

std::vector<fs::path> paths_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator at(folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    found.push_back(at->path());
  }
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory) {
    throw std::runtime_error(folder.string() + ": cannot be read: " + error.message());
  }
  return found;
}

FileEnd::FileEnd(const fs::path& file, std::size_t bytes)
    : file_(file), descriptor_(::open(file.c_str(), O_WRONLY | O_CLOEXEC)), bytes_(bytes) {
  // A constructor that throws runs no destructor: closed by hand.
  const auto fail = [&](const std::string& what) {
    const int error = errno;
    ::close(descriptor_);
    errno = error;
    refuse(what);
  };
  if (descriptor_ < 0) {
    refuse("cannot be opened for writing");
  }
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    fail("is being written by another program; let that one end");
  }
  const auto end = static_cast<off_t>(bytes);
  if (::ftruncate(descriptor_, end) != 0 || ::lseek(descriptor_, end, SEEK_SET) != end ||
      ::fsync(descriptor_) != 0) {
    fail("cannot be written");
  }
}

FileEnd::~FileEnd() { ::close(descriptor_); }

void FileEnd::append(std::string_view text) {
  if (!write_all(descriptor_, text) || ::fsync(descriptor_) != 0) {
    const int error = errno;
    const auto end = static_cast<off_t>(bytes_);
    if (::ftruncate(descriptor_, end) == 0) {
      ::lseek(descriptor_, end, SEEK_SET);
    }
    errno = error;
    refuse("cannot be written");
  }
  bytes_ += text.size();
}

void FileEnd::refuse(const std::string& what) const { paradyse::refuse(file_, what); }

}  // namespace paradyse
