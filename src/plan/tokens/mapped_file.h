// A file as bytes in memory: mapped, read-only, so that only what is looked at is read, and the
// pages are the system's, shared by all processes of a machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace paradyse {

// By which a file that was changed is told from what it was.
struct FileState {
  std::uint64_t inode = 0;
  std::int64_t bytes = 0;
  std::int64_t seconds = 0;  // of its last change
  std::int64_t nanoseconds = 0;
  friend bool operator==(const FileState&, const FileState&) = default;
};

class MappedFile {
 public:
  // Throws std::runtime_error naming the file and why it cannot be read.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::string_view bytes() const { return {data_, size_}; }
  [[nodiscard]] const FileState& state() const { return state_; }

  // Throws std::runtime_error, naming the file and what changed, unless the file at this path still
  // is what was mapped, or what `was` says.  Bytes that are gone from a mapped file end the program
  // (SIGBUS) when they are looked at: call this first.
  void expect_unchanged() const;
  void expect_unchanged_since(const FileState& was) const;

  // Nobody looks at these bytes soon: their pages no longer count as this process's memory.
  void release(std::size_t begin, std::size_t size) const;
  void release() const { release(0, size_); }

 private:
  void unmap();

  std::filesystem::path path_;
  const char* data_ = nullptr;
  std::size_t size_ = 0;
  FileState state_;
};

}  // namespace paradyse
