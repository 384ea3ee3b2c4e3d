#include "src/plan/base/disk_file.h"

#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paradyse/plan/index.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

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
  bool missing = false;
  bool pipe = false;
  std::string why;  // it cannot be read
};

// Why not all of it could be read, or "".
std::string read_all(const Opened& file, std::string& text) {
  constexpr std::size_t kMostOfPipe = std::size_t{1} << 30;  // bytes: `yes |` has no end
  constexpr int kPatienceMs = 1000;                          // until a pipe has a writer
  constexpr int kPauseMs = 20;
  std::vector<char> block(std::size_t{1} << 16);
  bool written = false;  // the pipe had a writer
  for (int waited_ms = 0;;) {
    const ssize_t bytes = ::read(file.descriptor, block.data(), block.size());
    if (bytes > 0) {
      text.append(block.data(), idx(bytes));
      if (file.pipe && text.size() > kMostOfPipe) {
        return "the pipe gives more than 1 GiB; save it to a file";
      }
    } else if (bytes == 0 && (!file.pipe || written || !text.empty())) {
      return "";
    } else if (bytes == 0 && waited_ms >= kPatienceMs) {
      return "it is a pipe that nobody writes";
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
           : errno == ENXIO ? "is a pipe that nobody reads: start its reader first"
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

std::string why_not_ours(const fs::path& file, const std::string& what, std::string_view mark) {
  constexpr std::size_t kHead = 200;
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    return "";
  }
  std::string head(kHead, '\0');
  std::ifstream there(file, std::ios::binary);
  if (!there) {
    return "exists and cannot be read, so it is not replaced";
  }
  there.read(head.data(), static_cast<std::streamsize>(kHead));
  head.resize(static_cast<std::size_t>(there.gcount()));
  return head.empty() || head.find(mark) != std::string::npos
             ? ""
             : "exists and is not " + what + " of paradyse, so it is not replaced";
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

void replace_file(const fs::path& file, const std::string& text) {
  fs::path partial = file;
  partial += "." + std::to_string(::getpid()) + ".partial";
  const int descriptor = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    refuse(partial, "cannot be created");
  }
  const bool written = write_all(descriptor, text) && ::fsync(descriptor) == 0;
  int error = errno;
  ::close(descriptor);
  const bool placed = written && ::rename(partial.c_str(), file.c_str()) == 0;
  if (!placed) {
    error = written ? errno : error;
    ::unlink(partial.c_str());
    errno = error;
    refuse(file, "cannot be written");
  }
  sync_path(file.has_parent_path() ? file.parent_path() : fs::path("."));
}

std::string why_not_readable(const fs::path& file) {
  const Opened opened(file);
  return opened.why.empty() && opened.pipe
             ? "it is a pipe, and this is read more than once; save it to a file"
             : opened.why;
}

std::optional<std::string> content_of(const fs::path& file) {
  const Opened opened(file);
  if (opened.missing) {
    return std::nullopt;
  }
  std::string text;
  const std::string why = opened.why.empty() ? read_all(opened, text) : opened.why;
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
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
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
