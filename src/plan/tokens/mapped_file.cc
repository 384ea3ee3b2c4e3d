#include "src/plan/tokens/mapped_file.h"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/refuse.h"

namespace paradyse {
namespace {

std::string last_error() { return std::generic_category().message(errno); }

FileState state_from(const struct stat& status) {
  return {
      .inode = status.st_ino,
      .bytes = status.st_size,
      .seconds = status.st_mtim.tv_sec,
      .nanoseconds = status.st_mtim.tv_nsec};
}

void expect_same(const std::filesystem::path& path, const FileState& was, const FileState& is) {
  if (is == was) {
    return;
  }
  refuse(
      path.string(),
      is.bytes != was.bytes
          ? fmt::format(
                "has {} bytes, but had {} when it was first read: it was changed while it is in "
                "use; restore it, and start or resume again",
                is.bytes,
                was.bytes)
          : std::string(
                "was written or replaced after it was first read: do not change data while it is "
                "in use; restore it, and start or resume again"));
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  if (const std::string why = why_not_readable(path_); !why.empty()) {
    refuse(path_.string(), "cannot be read: " + why);
  }
  const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status{};
  if (file < 0 || ::fstat(file, &status) != 0) {
    const std::string why = last_error();
    if (file >= 0) {
      ::close(file);
    }
    refuse(path_.string(), "cannot be read: " + why);
  }
  state_ = state_from(status);
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {  // no bytes cannot be mapped
    void* const data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) {
      const std::string why = last_error();
      ::close(file);
      size_ = 0;
      refuse(path_.string(), "cannot be mapped into memory: " + why);
    }
    data_ = static_cast<const char*>(data);
  }
  ::close(file);
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      state_(other.state_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    state_ = other.state_;
  }
  return *this;
}

void MappedFile::unmap() {
  if (data_ != nullptr) {
    ::munmap(const_cast<char*>(data_), size_);
  }
}

void MappedFile::expect_unchanged() const {
  struct stat status{};
  if (::stat(path_.c_str(), &status) != 0) {
    refuse(
        path_.string(),
        "cannot be read any more: " + last_error() + "; restore it, and start or resume again");
  }
  expect_same(path_, state_, state_from(status));
}

void MappedFile::expect_unchanged_since(const FileState& was) const {
  expect_same(path_, was, state_);
}

void MappedFile::release(std::size_t begin, std::size_t size) const {
  if (data_ == nullptr || begin >= size_ || size == 0) {
    return;
  }
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = begin / page * page;
  const std::size_t end = begin + std::min(size, size_ - begin);
  // A hint: what is looked at all the same is mapped again.
  (void)::madvise(const_cast<char*>(data_) + first, end - first, MADV_DONTNEED);
}

}  // namespace paradyse
