#include "src/run/train/files.h"

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/xxh64.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(const fs::path& path, const std::string& what) {
  throw std::runtime_error(
      path.string() + ": " + what + ": " + std::generic_category().message(errno));
}

// An open file; closed again whatever happens.
class Handle {
 public:
  Handle(const fs::path& path, int flags) : file_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~Handle() {
    if (file_ >= 0) {
      ::close(file_);
    }
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  [[nodiscard]] int get() const { return file_; }
  // False: errno says why what was written may be lost.
  [[nodiscard]] bool close() { return ::close(std::exchange(file_, -1)) == 0; }

 private:
  int file_;
};

void replace(const fs::path& path, const std::string& text, bool durably) {
  fs::path partial = path;
  partial += ".partial";
  try {
    ::unlink(partial.c_str());  // of a process that was killed; no link is followed
    Handle file(partial, O_WRONLY | O_CREAT | O_EXCL);
    if (file.get() < 0) {
      refuse(partial, "cannot be created");
    }
    if (!write_all(file.get(), text) || (durably && ::fsync(file.get()) != 0) || !file.close()) {
      refuse(partial, "cannot be written");
    }
    if (::rename(partial.c_str(), path.c_str()) != 0) {
      refuse(path, "cannot be written: " + partial.string() + " cannot get its name");
    }
  } catch (...) {
    ::unlink(partial.c_str());
    throw;
  }
}

}  // namespace

void replace_text(const fs::path& path, const std::string& text) {
  replace(path, text, /*durably=*/false);
}

void write_durably(const fs::path& path, const std::string& text) {
  replace(path, text, /*durably=*/true);
  sync_path(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

void append_text(const fs::path& path, const std::string& text) {
  Handle file(path, O_WRONLY | O_CREAT | O_APPEND);
  if (file.get() < 0) {
    refuse(path, "cannot be opened");
  }
  const off_t end = ::lseek(file.get(), 0, SEEK_END);
  if (end < 0 || !write_all(file.get(), text) || !file.close()) {
    const int error = errno;
    const bool cut = end >= 0 && ::truncate(path.c_str(), end) == 0;
    errno = error;
    refuse(path, cut ? "cannot be written" : "cannot be written, and may end in half a line");
  }
}

void move_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    refuse(from, "cannot be moved to " + to.string());
  }
}

std::string file_text(const fs::path& path, std::size_t most) {
  if (const std::string why = why_not_readable(path); !why.empty()) {
    throw std::runtime_error(path.string() + ": cannot be read: " + why);
  }
  return content_of(path, most).value_or("");
}

std::string file_xxh64(const fs::path& path) {
  constexpr std::size_t kBlock = 1 << 20;
  if (const std::string why = why_not_readable(path); !why.empty()) {
    throw std::runtime_error(path.string() + ": cannot be read: " + why);
  }
  const Handle file(path, O_RDONLY);
  std::vector<char> block(kBlock);
  Xxh64 check;
  while (true) {
    const ssize_t bytes = file.get() < 0 ? -1 : ::read(file.get(), block.data(), block.size());
    if (bytes == 0) {
      return check.hex();
    }
    if (bytes > 0) {
      check.add({block.data(), idx(bytes)});
    } else if (errno != EINTR) {
      refuse(path, "cannot be read");
    }
  }
}

fs::path free_name(const fs::path& path) {
  fs::path name = path;
  for (int i = 1; fs::exists(fs::symlink_status(name)); ++i) {
    name.replace_filename(
        path.stem().string() + "-" + std::to_string(i) + path.extension().string());
  }
  return name;
}

}  // namespace paradyse
