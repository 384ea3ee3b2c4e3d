#include "paradyse/run/sample_file.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "src/plan/base/row_table.h"
#include "src/plan/base/xxh64.h"
#include "src/run/data/sample_readers.h"

namespace paradyse {
namespace {

RowTable<SampleReader>& table() {
  static RowTable<SampleReader> table(
      {clip_reader(), alignment_reader()}, "add_sample_reader", "remove_sample_reader");
  return table;
}

}  // namespace

SampleFile::SampleFile(std::string file, BatchSizes sizes)
    : file_(std::move(file)), sizes_(std::move(sizes)) {}

std::vector<Sample> SampleFile::samples(std::uint64_t seed) const {
  std::vector<Sample> all;
  all.reserve(sizes_.lengths.size());
  for (std::int64_t i = 0; i < size(); ++i) {
    all.push_back(sample(i, seed, static_cast<std::uint64_t>(i)));
  }
  return all;
}

std::string SampleFile::fingerprint() const {
  Xxh64 hash;
  const DimSizes* before = nullptr;
  for (const DimSizes& dims : sizes_.dims) {
    if (before != nullptr && *before == dims) {
      continue;
    }
    before = &dims;
    for (const auto& [name, size] : dims) {
      hash.add(fmt::format("{} {} ", name, size));
    }
  }
  add_content([&](std::string_view bytes) { hash.add(bytes); });
  return hash.hex();
}

const SampleReader* sample_reader(const std::string& family) {
  const std::span<const SampleReader> readers = table().rows();
  const auto found = std::ranges::find(readers, family, &SampleReader::family);
  return found == readers.end() ? nullptr : &*found;
}

void add_sample_reader(SampleReader reader) {
  if (reader.family.empty() || reader.data.empty() || !reader.read) {
    throw std::invalid_argument(fmt::format(
        "add_sample_reader: '{}': a reader has a family, data and read", reader.family));
  }
  if (sample_reader(reader.family) != nullptr) {
    throw std::invalid_argument(
        fmt::format("add_sample_reader: family '{}' has a reader", reader.family));
  }
  table().add(std::move(reader));
}

void remove_sample_reader(const std::string& family) {
  table().remove(family, &SampleReader::family);
}

}  // namespace paradyse
