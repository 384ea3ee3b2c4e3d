#include "src/run/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/refuse.h"
#include "src/plan/base/text_match.h"
#include "src/plan/tokens/mapped_file.h"
#include "src/run/weights/foreign_tensors.h"

namespace paradyse {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMostHeaderBytes =
    100'000'000;                       // the limit of the reference implementation
constexpr std::size_t kMostDims = 64;  // of a torch tensor that can be computed with
constexpr const char* kMetadata = "__metadata__";

struct StoredType {
  const char* name;
  at::ScalarType type;
};
constexpr std::array kStoredTypes = {
    StoredType{"F64", at::kDouble},
    StoredType{"F32", at::kFloat},
    StoredType{"F16", at::kHalf},
    StoredType{"BF16", at::kBFloat16},
    StoredType{"F8_E5M2", at::kFloat8_e5m2},
    StoredType{"F8_E4M3", at::kFloat8_e4m3fn},
    StoredType{"C64", at::kComplexFloat},
    StoredType{"I64", at::kLong},
    StoredType{"I32", at::kInt},
    StoredType{"I16", at::kShort},
    StoredType{"I8", at::kChar},
    StoredType{"U64", at::kUInt64},
    StoredType{"U32", at::kUInt32},
    StoredType{"U16", at::kUInt16},
    StoredType{"U8", at::kByte},
    StoredType{"BOOL", at::kBool},
};

[[noreturn]] void refuse_errno(const fs::path& path, const std::string& what) {
  refuse(path, what + ": " + std::generic_category().message(errno));
}

// Bytes of a contiguous tensor of this shape and type.  Throws
// std::invalid_argument, saying why, for a shape that no tensor can have.
std::uint64_t bytes_of(const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  if (shape.size() > kMostDims) {
    throw std::invalid_argument(
        "has " + std::to_string(shape.size()) + " dims; at most " + std::to_string(kMostDims) +
        " are accepted");
  }
  std::uint64_t bytes = c10::elementSize(dtype);
  bool empty = false;
  for (const std::int64_t dim : shape) {
    if (dim < 0) {
      throw std::invalid_argument("has shape " + excerpt(shape) + "; a size is never negative");
    }
    empty = empty || dim == 0;
    // A zero counts as one: strides are computed so, and must not overflow either.
    if (__builtin_mul_overflow(
            bytes, static_cast<std::uint64_t>(std::max<std::int64_t>(dim, 1)), &bytes) ||
        bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      throw std::invalid_argument(
          "has shape " + excerpt(shape) + ", which overflows 63 bits of bytes");
    }
  }
  return empty ? 0 : bytes;
}

// Parses what a stranger wrote: no name twice in an object, no deep nesting.
json parsed(const char* begin, const char* end, const fs::path& path, const std::string& part) {
  constexpr int kDeepest = 8;                                        // a header needs 3
  std::vector<std::unordered_set<std::string>> names(kDeepest + 2);  // [depth]
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kDeepest) {
      refuse(path, "the " + part + " nests deeper than " + std::to_string(kDeepest));
    }
    // The members of an object lie one deeper than its braces.
    if (event == json::parse_event_t::object_start) {
      names[idx(depth) + 1].clear();
    }
    if (event == json::parse_event_t::key &&
        !names[idx(depth)].insert(value.get<std::string>()).second) {
      refuse(path, "the " + part + " has " + excerpt(value) + " twice");
    }
    return true;
  };
  try {
    no_nul({begin, end});
    json result = json::parse(begin, end, check);
    if (!result.is_object()) {
      refuse(path, "the " + part + " is not a JSON object but " + excerpt(result));
    }
    return result;
  } catch (const json::exception& error) {  // a number may also be out of range
    const auto* parse_error = dynamic_cast<const json::parse_error*>(&error);
    refuse(
        path,
        "the " + part + " is not JSON" +
            (parse_error == nullptr ? "" : ", near byte " + std::to_string(parse_error->byte)) +
            "; the file is damaged: fetch it again");
  }
}

std::uint64_t offset_in(const fs::path& path, const std::string& tensor, const json& value) {
  if (!value.is_number_unsigned()) {
    refuse(
        path,
        tensor + " has data_offsets with " + excerpt(value) +
            "; an offset is a whole number from 0 to 2^64 - 1");
  }
  return value.get<std::uint64_t>();
}

// What the header says of one tensor, checked against itself.
StoredTensor stored_tensor(const fs::path& path, const std::string& name, const json& entry) {
  const std::string tensor = "tensor " + excerpt(name);
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
      !entry.contains("shape") || !entry.contains("data_offsets")) {
    refuse(
        path,
        tensor + " is described by " + excerpt(entry) +
            "; it takes an object of dtype, shape and data_offsets");
  }
  StoredTensor stored;

  const json& dtype = entry["dtype"];
  const auto known =
      std::find_if(kStoredTypes.begin(), kStoredTypes.end(), [&](const StoredType& each) {
        return dtype == each.name;
      });
  if (known == kStoredTypes.end()) {
    refuse(
        path,
        tensor + " has dtype " + excerpt(dtype) +
            ", which is not known; store it as F64, F32, F16 or BF16");
  }
  stored.dtype = known->type;

  const json& shape = entry["shape"];
  if (!shape.is_array()) {
    refuse(path, tensor + " has shape " + excerpt(shape) + "; it takes a list of sizes");
  }
  for (const json& dim : shape) {
    if (!dim.is_number_integer() ||
        (dim.is_number_unsigned() && !std::in_range<std::int64_t>(dim.get<std::uint64_t>()))) {
      refuse(
          path,
          tensor + " has shape " + excerpt(shape) +
              "; a size is a whole number from 0 to 2^63 - 1");
    }
    stored.shape.push_back(dim.get<std::int64_t>());
  }

  const json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) {
    refuse(path, tensor + " has data_offsets " + excerpt(offsets) + "; it takes [begin, end]");
  }
  stored.begin = offset_in(path, tensor, offsets[0]);
  stored.end = offset_in(path, tensor, offsets[1]);
  std::uint64_t bytes = 0;
  try {
    bytes = bytes_of(stored.shape, stored.dtype);
  } catch (const std::invalid_argument& error) {
    refuse(path, tensor + " " + error.what());
  }
  if (stored.begin > stored.end || stored.end - stored.begin != bytes) {
    refuse(
        path,
        tensor + " has data_offsets " + excerpt(offsets) + ", but its shape " + excerpt(shape) +
            " of " + known->name + " takes " + std::to_string(bytes) + " bytes");
  }
  return stored;
}

// Throws unless the tensors lie one after the other and fill the data section.
void expect_filled(
    const fs::path& path,
    const std::map<std::string, StoredTensor>& tensors,
    std::uint64_t data_bytes) {
  std::vector<std::pair<StoredTensor, std::string>> by_offset;
  by_offset.reserve(tensors.size());
  for (const auto& [name, stored] : tensors) {
    by_offset.emplace_back(stored, name);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.begin, a.first.end) < std::pair(b.first.begin, b.first.end);
  });
  std::uint64_t filled = 0;
  std::string before = "the start of the data";
  for (const auto& [stored, name] : by_offset) {
    const std::string tensor = "tensor " + excerpt(name);
    const std::string from = " begins at byte " + std::to_string(stored.begin);
    if (stored.end > data_bytes) {
      refuse(
          path,
          tensor + " ends at byte " + std::to_string(stored.end) + " of " +
              std::to_string(data_bytes) + " in the data: the file is cut short; fetch it again");
    }
    if (stored.begin < filled) {
      refuse(
          path,
          tensor + from + " and overlaps " + before + ", which ends at byte " +
              std::to_string(filled));
    }
    if (stored.begin > filled) {
      refuse(
          path,
          tensor + from + " and leaves a hole after " + before + ", which ends at byte " +
              std::to_string(filled));
    }
    filled = stored.end;
    before = tensor;
  }
  if (filled != data_bytes) {
    refuse(
        path,
        "the data has " + std::to_string(data_bytes) + " bytes, but a hole after " + before +
            ", which ends at byte " + std::to_string(filled));
  }
}

// One file: its mapping, and what its header says.
struct File {
  MappedFile mapped;
  const char* data = nullptr;  // of the data section
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
};

File opened(const fs::path& path) {
  File file{MappedFile(path), nullptr, {}, {}};
  const MappedFile& mapped = file.mapped;
  if (mapped.bytes().size() < kLengthBytes) {
    refuse(
        path,
        "has " + std::to_string(mapped.bytes().size()) +
            " bytes, too few for the length of a header; fetch it again");
  }
  if (const std::string what = foreign_tensors(mapped.bytes()); !what.empty()) {
    refuse(path, what + ", not safetensors; give a file as safetensors.torch.save_file writes it");
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, mapped.bytes().data(), kLengthBytes);
  const std::uint64_t rest = mapped.bytes().size() - kLengthBytes;
  if (header_bytes > kMostHeaderBytes) {
    refuse(
        path,
        "announces a header of " + std::to_string(header_bytes) + " bytes; at most " +
            std::to_string(kMostHeaderBytes) + " are accepted: is it a safetensors file?");
  }
  if (header_bytes > rest) {
    refuse(
        path,
        "announces a header of " + std::to_string(header_bytes) + " bytes, but only " +
            std::to_string(rest) + " follow: it is cut short; fetch it again");
  }
  const char* const header = mapped.bytes().data() + kLengthBytes;
  if (header_bytes == 0 || *header != '{') {  // the parser would skip a byte order mark
    refuse(path, "the header is not a JSON object: it does not begin with '{'");
  }
  const json entries = parsed(header, header + header_bytes, path, "header");
  for (const auto& [name, entry] : entries.items()) {
    if (name != kMetadata) {
      file.tensors.emplace(name, stored_tensor(path, name, entry));
      continue;
    }
    const auto is_text = [](const json& value) { return value.is_string(); };
    if (!entry.is_object() || !std::all_of(entry.begin(), entry.end(), is_text)) {
      refuse(path, "__metadata__ is " + excerpt(entry) + "; it takes an object of strings");
    }
    file.metadata = entry.get<std::map<std::string, std::string>>();
  }
  file.data = header + header_bytes;
  expect_filled(path, file.tensors, rest - header_bytes);
  return file;
}

// Where the index says each tensor lies.  A shard is named by a path inside the index's folder.
std::map<std::string, fs::path> weight_map(const fs::path& index) {
  const MappedFile mapped(index);
  if (mapped.bytes().size() > kMostHeaderBytes) {
    refuse(
        index,
        "has " + std::to_string(mapped.bytes().size()) + " bytes; an index has at most " +
            std::to_string(kMostHeaderBytes));
  }
  const json content =
      parsed(mapped.bytes().data(), mapped.bytes().data() + mapped.bytes().size(), index, "index");
  const auto found = content.find("weight_map");
  if (found == content.end() || !found->is_object()) {
    refuse(index, "has no object weight_map, which names the file of each tensor");
  }
  std::map<std::string, fs::path> shards;
  for (const auto& [name, shard] : found->items()) {
    const fs::path path = shard.is_string() ? fs::path(shard.get<std::string>()) : fs::path();
    // By its spelling: the hub's own cache has links to elsewhere in its folders.
    const bool inside = path.has_filename() && path.is_relative() &&
                        std::find(path.begin(), path.end(), "..") == path.end() &&
                        path.native().find('\0') == std::string::npos;
    if (!inside) {
      refuse(
          index,
          "tensor " + excerpt(name) + " is in " + excerpt(shard) +
              "; a shard is the name of a file in the folder of the index");
    }
    shards.emplace(name, path);
  }
  return shards;
}

}  // namespace

struct SafetensorsReader::Files {
  fs::path path;  // for messages
  std::vector<File> files;
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, std::size_t> file_of;  // tensor -> index into files
  std::vector<std::string> not_in_index;

  [[nodiscard]] std::string_view bytes(std::size_t file, const StoredTensor& stored) const {
    return {files[file].data + stored.begin, stored.end - stored.begin};
  }
};

SafetensorsReader::SafetensorsReader(const fs::path& path) : files_(std::make_unique<Files>()) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  const fs::path whole = folder ? path / "model.safetensors" : path;
  const fs::path index = path / "model.safetensors.index.json";
  if (!folder && !fs::exists(path, error)) {
    refuse(path, "is not there; give a .safetensors file or the folder of a model");
  }
  if (!folder || fs::exists(whole, error)) {
    add(whole);
    return;
  }
  if (!fs::exists(index, error)) {
    refuse(
        path,
        "holds neither model.safetensors nor model.safetensors.index.json; "
        "give the folder of a model, or a .safetensors file itself");
  }
  add_index(index);
}

SafetensorsReader::SafetensorsReader(const std::vector<fs::path>& files)
    : files_(std::make_unique<Files>()) {
  for (const fs::path& file : files) {
    if (file.native().ends_with(".index.json")) {
      add_index(file);
    } else {
      add(file);
    }
  }
}

void SafetensorsReader::add(const fs::path& file) {
  files_->path = file;
  const std::size_t number = files_->files.size();
  files_->files.push_back(opened(file));
  for (const auto& [name, stored] : files_->files.back().tensors) {
    const auto [before, is_new] = files_->file_of.emplace(name, number);
    if (!is_new) {
      refuse(
          file,
          "has tensor " + excerpt(name) + ", which " +
              files_->files[before->second].mapped.path().string() +
              " has too: they are not the shards of one model");
    }
    files_->tensors.emplace(name, stored);
  }
}

void SafetensorsReader::add_index(const fs::path& index) {
  files_->path = index;
  std::map<fs::path, std::size_t> number;  // shard -> index into files
  for (const auto& [name, shard] : weight_map(index)) {
    const auto [entry, is_new] = number.emplace(shard, files_->files.size());
    if (is_new) {
      files_->files.push_back(opened(index.parent_path() / shard));
    }
    const File& file = files_->files[entry->second];
    const auto stored = file.tensors.find(name);
    if (stored == file.tensors.end()) {
      refuse(
          index,
          "promises tensor " + excerpt(name) + " in " + excerpt(shard.string()) +
              ", which does not have it; index and shards are of different models");
    }
    files_->tensors.emplace(name, stored->second);
    files_->file_of.emplace(name, entry->second);
  }
  for (const auto& [shard, file] : number) {
    for (const auto& [name, stored] : files_->files[file].tensors) {
      const auto [chosen, is_new] = files_->file_of.emplace(name, file);
      if (is_new) {
        files_->tensors.emplace(name, stored);
        files_->not_in_index.push_back(name);
        continue;
      }
      if (chosen->second == file) {
        continue;
      }
      const StoredTensor& other = files_->tensors.at(name);
      if (stored.dtype != other.dtype || stored.shape != other.shape ||
          files_->bytes(file, stored) != files_->bytes(chosen->second, other)) {
        refuse(
            files_->files[file].mapped.path(),
            "has tensor " + excerpt(name) + ", which " +
                files_->files[chosen->second].mapped.path().string() +
                " has too, with other values: readers differ in which one they take; remove the "
                "wrong one, or fetch the files of one model");
      }
    }
  }
}

const std::vector<std::string>& SafetensorsReader::not_in_index() const {
  return files_->not_in_index;
}

const fs::path& SafetensorsReader::file_of(const std::string& name) const {
  const auto found = files_->file_of.find(name);
  return found == files_->file_of.end() ? files_->path : files_->files[found->second].mapped.path();
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;

const std::map<std::string, StoredTensor>& SafetensorsReader::tensors() const {
  return files_->tensors;
}

bool SafetensorsReader::contains(const std::string& name) const {
  return files_->tensors.contains(name);
}

std::vector<fs::path> SafetensorsReader::files() const {
  std::vector<fs::path> paths;
  for (const File& file : files_->files) {
    paths.push_back(file.mapped.path());
  }
  return paths;
}

at::Tensor SafetensorsReader::view(const std::string& name) const {
  const auto found = files_->tensors.find(name);
  if (found == files_->tensors.end()) {
    std::vector<std::string> names;
    for (const auto& [each, unused] : files_->tensors) {
      names.push_back(each);
    }
    refuse(
        files_->path,
        "has no tensor " + excerpt(name) + did_you_mean(name, names) + " among its " +
            std::to_string(names.size()));
  }
  const StoredTensor& stored = found->second;
  const char* const bytes = files_->files[files_->file_of.at(name)].data + stored.begin;
  const auto address = reinterpret_cast<std::uintptr_t>(bytes);
  if (address % c10::elementSize(stored.dtype) != 0) {
    // The format does not promise alignment, and kernels may rely on it.
    at::Tensor copy = at::empty(stored.shape, stored.dtype);
    if (stored.end > stored.begin) {
      std::memcpy(copy.data_ptr(), bytes, stored.end - stored.begin);
    }
    return copy;
  }
  // Torch has no tensors of const; who writes to this one meets the page protection.
  return at::from_blob(const_cast<char*>(bytes), stored.shape, stored.dtype);
}

const std::map<std::string, std::string>& SafetensorsReader::metadata() const {
  static const std::map<std::string, std::string> none;
  return files_->files.empty() ? none : files_->files[0].metadata;
}

struct SafetensorsWriter::State {
  fs::path path;
  fs::path partial;
  std::vector<std::pair<std::string, StoredTensor>> tensors;
  std::size_t next = 0;  // tensor to be written
  int file = -1;
  bool failed = false;  // the file has a part of a tensor

  ~State() {
    if (file >= 0) {
      ::close(file);
      ::unlink(partial.c_str());
    }
  }

  void write_bytes(const char* data, std::uint64_t size) {
    constexpr std::uint64_t kMostAtOnce = 1 << 30;  // Linux takes no more than 2 GiB
    while (size > 0) {
      const ssize_t written = ::write(file, data, std::min(size, kMostAtOnce));
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written < 0) {
        failed = true;
        refuse_errno(partial, "cannot be written");
      }
      data += written;
      size -= static_cast<std::uint64_t>(written);
    }
  }
};

namespace {

// The header, with its length before it and padded so that the data begins at a multiple of 8.
std::string header_of(
    const std::vector<std::pair<std::string, StoredTensor>>& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += json(kMetadata).dump() + ":" + json(metadata).dump();
  }
  for (const auto& [name, stored] : tensors) {
    const auto dtype =
        std::find_if(kStoredTypes.begin(), kStoredTypes.end(), [&](const StoredType& each) {
          return each.type == stored.dtype;
        });
    const json entry = {
        {"dtype", dtype->name},
        {"shape", stored.shape},
        {"data_offsets", {stored.begin, stored.end}},
    };
    if (header.size() > 1) {
      header += ',';
    }
    header += json(name).dump();
    header += ':';
    header += entry.dump();
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  const std::uint64_t length = header.size();
  std::array<char, kLengthBytes> length_bytes{};
  std::memcpy(length_bytes.data(), &length, kLengthBytes);
  return std::string(length_bytes.data(), kLengthBytes) + header;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(
    fs::path path,
    std::vector<std::pair<std::string, StoredTensor>> tensors,
    const std::map<std::string, std::string>& metadata)
    : state_(std::make_unique<State>()) {
  const auto wrong = [&path](const std::string& what) {
    throw std::invalid_argument(path.string() + ": " + what);
  };
  std::unordered_set<std::string> names;
  std::uint64_t end = 0;
  for (auto& [name, stored] : tensors) {
    const std::string tensor = "tensor " + excerpt(name);
    if (name == kMetadata || !names.insert(name).second) {
      wrong(tensor + " is declared twice or has a reserved name; give each tensor its own");
    }
    const at::ScalarType dtype = stored.dtype;
    if (std::none_of(kStoredTypes.begin(), kStoredTypes.end(), [=](const StoredType& each) {
          return each.type == dtype;
        })) {
      wrong(tensor + " has dtype " + c10::toString(dtype) + ", which the format does not have");
    }
    std::uint64_t bytes = 0;
    try {
      bytes = bytes_of(stored.shape, dtype);
    } catch (const std::invalid_argument& error) {
      wrong(tensor + " " + error.what());
    }
    stored.begin = end;
    if (__builtin_add_overflow(end, bytes, &end)) {
      wrong(tensor + " makes a file of more than 2^64 bytes");
    }
    stored.end = end;
  }
  std::string header;
  try {
    header = header_of(tensors, metadata);
  } catch (const json::type_error&) {
    wrong("a name or the metadata is not UTF-8; the header is JSON and needs it");
  }
  if (header.size() - kLengthBytes > kMostHeaderBytes) {
    wrong(
        "the header takes " + std::to_string(header.size() - kLengthBytes) +
        " bytes, readers accept " + std::to_string(kMostHeaderBytes) + "; write several files");
  }
  std::error_code unknown;
  const fs::file_status there = fs::status(path, unknown);
  if (fs::exists(there) && !fs::is_regular_file(there)) {  // it would be replaced, whatever it is
    refuse(path, "is not a regular file; name one, or a new one");
  }
  state_->path = behind_links(path);
  state_->tensors = std::move(tensors);
  std::tie(state_->partial, state_->file) = new_file_beside(state_->path);
  state_->write_bytes(header.data(), header.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const auto wrong = [&](const std::string& what) {
    throw std::invalid_argument(state_->path.string() + ": tensor " + excerpt(name) + " " + what);
  };
  if (state_->file < 0) {
    wrong("comes after the file was finished");
  }
  if (state_->failed) {
    wrong("comes after a failed write; begin the file anew");
  }
  if (state_->next == state_->tensors.size()) {
    wrong("comes after all declared tensors were written");
  }
  const auto& [expected, stored] = state_->tensors[state_->next];
  if (name != expected) {
    wrong("is not the next one declared, which is " + excerpt(expected));
  }
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu()) {
    wrong("is not a dense tensor in CPU memory");
  }
  if (tensor.scalar_type() != stored.dtype || tensor.sizes() != at::IntArrayRef(stored.shape)) {
    wrong(
        "is " + std::string(c10::toString(tensor.scalar_type())) + excerpt(tensor.sizes().vec()) +
        ", but was declared " + c10::toString(stored.dtype) + excerpt(stored.shape));
  }
  const at::Tensor dense = tensor.resolve_conj().resolve_neg().contiguous();
  state_->write_bytes(static_cast<const char*>(dense.data_ptr()), stored.end - stored.begin);
  ++state_->next;
}

void SafetensorsWriter::finish() {
  State& state = *state_;
  const auto wrong = [&](const std::string& what) {
    throw std::invalid_argument(state.path.string() + ": " + what);
  };
  if (state.file < 0) {
    wrong("was finished before");
  }
  if (state.failed) {
    wrong("cannot be finished after a failed write; begin the file anew");
  }
  if (state.next != state.tensors.size()) {
    wrong(
        "cannot be finished: tensor " + excerpt(state.tensors[state.next].first) + " and " +
        std::to_string(state.tensors.size() - state.next - 1) + " more are not written");
  }
  // The data must be on the disk before its name is: else a crash leaves a name without data.
  if (::fsync(state.file) != 0) {
    state.failed = true;
    refuse_errno(state.partial, "cannot be written");
  }
  if (!place_new_file(state.partial, state.file, state.path)) {
    refuse_errno(state.path, "cannot be put in place of " + state.partial.string());
  }
  ::close(std::exchange(state.file, -1));
  sync_path(state.path.has_parent_path() ? state.path.parent_path() : fs::path("."));
}

}  // namespace paradyse
