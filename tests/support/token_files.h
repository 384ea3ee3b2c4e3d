// Token files as other programs write them, written by hand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace paradyse::test {

template <typename Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

inline void write_bytes(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

// What Megatron-core's _IndexWriter writes of sequences of these lengths, each a document unless
// `ends` says otherwise.
inline std::string megatron_index(
    const std::vector<std::int32_t>& lengths,
    std::uint8_t code,
    std::size_t width,
    std::vector<std::int64_t> ends = {}) {
  if (ends.empty()) {
    for (std::size_t i = 0; i <= lengths.size(); ++i) {
      ends.push_back(static_cast<std::int64_t>(i));
    }
  }
  std::string bytes("MMIDIDX\0\0", 9);
  put(bytes, std::uint64_t{1});
  put(bytes, code);
  put(bytes, std::uint64_t{lengths.size()});
  put(bytes, std::uint64_t{ends.size()});
  std::int64_t at = 0;
  std::string pointers;
  for (const std::int32_t length : lengths) {
    put(bytes, length);
    put(pointers, at);
    at += length * static_cast<std::int64_t>(width);
  }
  bytes += pointers;
  for (const std::int64_t end : ends) {
    put(bytes, end);
  }
  return bytes;
}

// `prefix`.bin and .idx.
template <typename Number>
void write_megatron(
    const std::filesystem::path& prefix,
    const std::vector<std::vector<std::int32_t>>& documents,
    std::uint8_t code) {
  std::string bin;
  std::vector<std::int32_t> lengths;
  for (const std::vector<std::int32_t>& document : documents) {
    lengths.push_back(static_cast<std::int32_t>(document.size()));
    for (const std::int32_t id : document) {
      put(bin, static_cast<Number>(id));
    }
  }
  write_bytes(prefix.string() + ".bin", bin);
  write_bytes(prefix.string() + ".idx", megatron_index(lengths, code, sizeof(Number)));
}

// llm.c's file, with its magic and version.
template <typename Number>
std::string llmc_file(
    std::int32_t magic, std::int32_t version, const std::vector<std::int32_t>& ids) {
  std::string bytes;
  put(bytes, magic);
  put(bytes, version);
  put(bytes, static_cast<std::int32_t>(ids.size()));
  bytes.resize(1024);
  for (const std::int32_t id : ids) {
    put(bytes, static_cast<Number>(id));
  }
  return bytes;
}

}  // namespace paradyse::test
