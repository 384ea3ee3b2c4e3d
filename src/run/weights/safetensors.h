// Reading and writing safetensors files, memory-mapped, slice by slice, and distrustful.
//
// Format: https://huggingface.co/docs/safetensors (8-byte little-endian header length, JSON header,
// data).  A file from the network is not to be believed: every length and offset is checked before
// it is used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace paradyse {

// One tensor of a file, as its header says.
struct StoredTensor {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the data section
  std::uint64_t end = 0;
};

// One or several files (a `model.safetensors.index.json` and its shards), seen as one.
class SafetensorsReader {
 public:
  // `path`: a .safetensors file, or a folder that holds `model.safetensors` or
  // `model.safetensors.index.json` with the shards it names.
  // Throws std::runtime_error, naming file, tensor and both values, when: a file is missing or
  // shorter than its header says; the header length exceeds the file or 100 MB; the header is no
  // JSON object, has a duplicate name, an unknown dtype, a negative or overflowing shape, offsets
  // outside the data, overlapping or leaving a hole, or a span that is not shape x dtype; a shard
  // of the index lies outside the folder, or lacks a tensor the index promises; or two shards have
  // different tensors of one name.
  explicit SafetensorsReader(const std::filesystem::path& path);
  // The files together, or an index with the shards that it names; no tensor is in two files.
  explicit SafetensorsReader(const std::vector<std::filesystem::path>& files);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&&) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) noexcept;

  [[nodiscard]] const std::map<std::string, StoredTensor>& tensors() const;
  [[nodiscard]] bool contains(const std::string& name) const;
  // Tensors of its shards that an index does not name: they are there like all others.
  [[nodiscard]] const std::vector<std::string>& not_in_index() const;
  // That are read, in a fixed order.
  [[nodiscard]] std::vector<std::filesystem::path> files() const;

  // A tensor of the file that shares the mapping's memory (writing to it is a fault; valid while
  // the reader lives): slice it, then copy. Touches no page by itself, unless the file stores it at
  // an address that is no multiple of its element: then it is a copy. Throws std::runtime_error
  // naming the file and the nearest names when there is none.
  [[nodiscard]] at::Tensor view(const std::string& name) const;

  // The file that a tensor lies in, or, of one that there is none of, the first.
  [[nodiscard]] const std::filesystem::path& file_of(const std::string& name) const;

  // The `__metadata__` of the (first) file.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;

 private:
  struct Files;
  void add(const std::filesystem::path& file);
  void add_index(const std::filesystem::path& index);
  std::unique_ptr<Files> files_;
};

// A safetensors file that is written tensor after tensor, so that no more than one is in memory.
class SafetensorsWriter {
 public:
  // Declares all tensors first (names, dtypes, shapes; stored in this order), then takes their data
  // in the same order. Writes a file beside `path` and renames it at `finish`: a file is there
  // whole or not at all, and what stood there before stays until then.  What `path` leads to and is
  // no regular file is refused. Throws std::runtime_error when the disk says no,
  // std::invalid_argument for a wrong order or shape, a name twice, or a dtype the format does not
  // have; `begin` and `end` are not read.
  SafetensorsWriter(
      std::filesystem::path path,
      std::vector<std::pair<std::string, StoredTensor>> tensors,
      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();  // removes an unfinished .partial
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  void write(const std::string& name, const at::Tensor& tensor);
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paradyse
