#include "src/run/data/grid_data.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/printable.h"
#include "src/plan/base/refuse.h"
#include "src/plan/base/xxh64.h"
#include "src/run/data/data_files.h"
#include "src/run/data/data_report.h"
#include "src/run/data/sample_readers.h"

namespace paradyse {

GridData::GridData(
    SampleFiles files, std::vector<std::string> notes, std::map<std::string, LeftOut> left_out)
    : files_(std::move(files)), notes_(std::move(notes)), left_out_(std::move(left_out)) {
  for (const auto& file : files_) {
    first_.push_back(size());
    const BatchSizes& sizes = file->sizes();
    sizes_.lengths.insert(sizes_.lengths.end(), sizes.lengths.begin(), sizes.lengths.end());
    sizes_.dims.insert(sizes_.dims.end(), sizes.dims.begin(), sizes.dims.end());
  }
}

std::pair<const SampleFile*, std::int64_t> GridData::place(std::int64_t i) const {
  const auto after = std::ranges::upper_bound(first_, i);
  const auto file = idx(after - first_.begin() - 1);
  return {files_.at(file).get(), i - first_.at(file)};
}

Sample GridData::sample(std::int64_t i, std::uint64_t seed, std::uint64_t draw) const {
  const auto [file, number] = place(i);
  return file->sample(number, seed, draw);
}

std::vector<Sample> GridData::samples(std::uint64_t seed) const {
  std::vector<Sample> all;
  for (std::int64_t i = 0; i < size(); ++i) {
    all.push_back(sample(i, seed, static_cast<std::uint64_t>(i)));
  }
  return all;
}

std::string GridData::fingerprint() const {
  if (files_.size() == 1) {
    return files_.front()->fingerprint();
  }
  Xxh64 hash;
  for (const auto& file : files_) {
    hash.add(file->fingerprint());
  }
  return hash.hex();
}

namespace {

// Why what is in a folder is left out, or "".
std::string why_no_sample_file(
    const std::filesystem::directory_entry& entry, const SampleReader& reader) {
  return entry.path().filename().string().starts_with(".") ? kHidden
         : entry.is_directory()                            ? "folder"
         : !entry.is_regular_file()                        ? kNoFile
         : reader.why_left_out                             ? reader.why_left_out(entry.path())
                                                           : "";
}

std::vector<std::filesystem::path> files_of(
    const std::vector<std::filesystem::path>& paths,
    const SampleReader& reader,
    std::map<std::string, LeftOut>& left_out) {
  std::vector<std::filesystem::path> files;
  for (const std::filesystem::path& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::filesystem::path> inside;
    std::map<std::string, LeftOut> others;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.is_symlink() && !entry.exists()) {
        refuse(entry.path(), "is a link to nothing: link a file, or remove it");
      }
      const std::string why = why_no_sample_file(entry, reader);
      if (why.empty()) {
        inside.push_back(entry.path());
      } else {
        leave_out(others, why.c_str(), entry.path());
        leave_out(left_out, why.c_str(), entry.path());
      }
    }
    if (inside.empty()) {
      refuse(
          path,
          fmt::format(
              "the folder has no {}; files in folders inside it are not read",
              others.empty() ? "files"
                             : fmt::format("{}, only {}", reader.data, left_out_text(others))));
    }
    std::ranges::sort(inside);
    files.insert(files.end(), inside.begin(), inside.end());
  }
  std::set<std::filesystem::path> seen;
  for (const std::filesystem::path& file : files) {
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(file, error);
    if (!error && !seen.insert(real).second) {
      refuse(file, "is given twice: name each file once");
    }
  }
  return files;
}

void expect_settings_of(const Model& model, const RunConfig::Data& settings) {
  const bool masks =
      std::ranges::any_of(model.streams, [](const Stream& one) { return !one.mask.empty(); });
  if (settings.masked_letters != "none" && !masks) {
    throw std::invalid_argument(
        "data.masked_letters: the model takes no masks of letters, so that masked letters would "
        "count; write msa_mask = true into its configuration, or leave data.masked_letters out");
  }
}

// A reader that was added may have faults of its own.
void expect_sizes_of(
    const SampleFile* found, const std::filesystem::path& file, const Model& model) {
  const auto fault = [&](const std::string& what) {
    refuse(
        file,
        fmt::format(
            "the reader of family '{}' (add_sample_reader()) {}: mend the reader",
            model.family,
            what));
  };
  if (found == nullptr) {
    fault("gives no SampleFile: it shall throw for a file that it cannot read");
  }
  const BatchSizes& sizes = found->sizes();
  if (sizes.lengths.size() != sizes.dims.size()) {
    fault(fmt::format(
        "gives {} lengths and {} dims: each sample takes one of both",
        sizes.lengths.size(),
        sizes.dims.size()));
  }
  for (std::size_t i = 0; i < sizes.dims.size(); ++i) {
    for (const Stream& stream : model.streams) {
      for (const std::string& dim : stream.rows) {
        const auto size = sizes.dims[i].find(dim);
        if (dim != "batch" && (size == sizes.dims[i].end() || size->second < 1)) {
          fault(fmt::format("gives sample {} no dim '{}' of at least 1", i, dim));
        }
      }
    }
    if (const std::int64_t rows = model.rows(sizes.dims[i]); rows != sizes.lengths[i]) {
      fault(fmt::format(
          "gives sample {} the length {}, but its dims have {} rows (Model::rows())",
          i,
          sizes.lengths[i],
          rows));
    }
  }
}

}  // namespace

GridData read_grid_data(
    const std::vector<std::filesystem::path>& paths,
    const Model& model,
    const RunConfig::Data& settings) {
  const SampleReader* const reader = sample_reader(model.family);
  if (reader == nullptr) {
    throw std::invalid_argument(fmt::format(
        "data.path: no data is read for models of family '{}', which was added to this program: "
        "add a reader of its files (add_sample_reader(), paradyse/run/sample_file.h), or give its "
        "samples as tensors (examples/axial.cc)",
        model.family));
  }
  expect_settings_of(model, settings);
  std::map<std::string, LeftOut> left_out;
  SampleFiles files;
  for (const std::filesystem::path& file : files_of(paths, *reader, left_out)) {
    files.push_back(reader->read(file, model, settings));
    expect_sizes_of(files.back().get(), file, model);
  }
  std::vector<std::string> notes;
  if (reader->notes) {
    notes = reader->notes(files, model, settings);
  }
  if (!left_out.empty()) {
    notes.push_back(printable("files left out: " + left_out_text(left_out)));
  }
  return GridData(std::move(files), std::move(notes), std::move(left_out));
}

}  // namespace paradyse
