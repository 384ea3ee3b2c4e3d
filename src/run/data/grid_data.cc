#include "src/run/data/grid_data.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/index.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/printable.h"
#include "src/plan/base/refuse.h"
#include "src/plan/base/xxh64.h"
#include "src/run/data/alignment_formats.h"
#include "src/run/data/data_files.h"
#include "src/run/data/data_report.h"
#include "src/run/data/drawn_samples.h"
#include "src/run/data/sample_memory.h"
#include "src/run/device/host_memory.h"
#include "src/run/weights/foreign_tensors.h"
#include "src/run/weights/safetensors.h"

namespace paradyse {
namespace {

void add(Xxh64& hash, const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  hash.add({static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()});
}

void add(Xxh64& hash, const std::vector<std::int32_t>& numbers) {
  hash.add({reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0])});
}

// Where there is memory for sample `i`.
void expect_room_for_sample(const SampleFile& data, std::int64_t i, std::int64_t available) {
  if (const auto* const clips = std::get_if<Clips>(&data.content)) {
    expect_room(
        fmt::format("{}: clip {}", data.file, i),
        clips->latents.sizes().slice(1),
        clips->shape,
        available);
    return;
  }
  const Alignment& alignment = std::get<std::vector<Alignment>>(data.content)[idx(i)];
  expect_room(fmt::format("{}:{}", data.file, alignment.line), alignment, available);
}

}  // namespace

Sample SampleFile::sample(std::int64_t i, std::uint64_t seed, std::uint64_t draw) const {
  expect_room_for_sample(*this, i, available_memory());
  const auto* const clips = std::get_if<Clips>(&content);
  return clips != nullptr
             ? sample_of(*clips, i, Draw(seed, draw))
             : sample_of(std::get<std::vector<Alignment>>(content)[idx(i)], Draw(seed, draw));
}

std::vector<Sample> SampleFile::samples(std::uint64_t seed) const {
  std::vector<Sample> all;
  for (std::int64_t i = 0; i < size(); ++i) {
    all.push_back(sample(i, seed, static_cast<std::uint64_t>(i)));
  }
  return all;
}

std::string SampleFile::fingerprint() const {
  Xxh64 hash;
  const DimSizes* before = nullptr;
  for (const DimSizes& dims : sizes.dims) {
    if (before != nullptr && *before == dims) {
      continue;
    }
    before = &dims;
    for (const auto& [name, size] : dims) {
      hash.add(fmt::format("{} {} ", name, size));
    }
  }
  if (const auto* const clips = std::get_if<Clips>(&content)) {
    hash.add(fmt::format("{} ", clips->patch));
    add(hash, clips->latents);
    for (const at::Tensor& numbers : {clips->timesteps, clips->frames_a_second}) {
      if (numbers.defined()) {
        add(hash, numbers);
      }
    }
    for (const at::Tensor& text : clips->text) {
      add(hash, text);
    }
  } else {
    for (const Alignment& alignment : std::get<std::vector<Alignment>>(content)) {
      for (std::size_t row = 0; row < alignment.letters.size(); ++row) {
        add(hash, alignment.letters[row]);
        add(hash, alignment.deletions[row]);
      }
      add(hash, alignment.places);
      for (const std::vector<std::int8_t>& row : alignment.counts) {
        hash.add({reinterpret_cast<const char*>(row.data()), row.size()});
      }
    }
  }
  return hash.hex();
}

namespace {

// A tensor of the file, of which nothing is copied yet.
at::Tensor floats(
    const SafetensorsReader& reader, const std::filesystem::path& file, const std::string& name) {
  at::Tensor stored = reader.view(name);
  const at::ScalarType type = stored.scalar_type();
  if (type != at::kHalf && type != at::kBFloat16 && type != at::kFloat && type != at::kDouble) {
    refuse(
        file,
        fmt::format(
            "'{}' is of type {}; needed are floating-point numbers (F16, BF16, F32 or F64), as an "
            "encoder gives them",
            name,
            c10::toString(type)));
  }
  return stored;
}

// Else says which of the tensor's `items`, along this dim, is the first with NaN or infinity.
void expect_finite(
    const at::Tensor& tensor,
    const std::string& what,
    const std::string& items,
    std::int64_t dim,
    const std::filesystem::path& file) {
  const at::Tensor wrong = at::isfinite(tensor).logical_not();
  const auto count = wrong.sum().item<std::int64_t>();
  if (count == 0) {
    return;
  }
  const at::Tensor first = wrong.movedim(dim, 0).flatten(1).any(1).nonzero()[0];
  refuse(
      file,
      fmt::format(
          "{} has {} number{} that {} not finite (NaN or infinity), the first in {} {}; leave the "
          "clip out, or encode it again (F16 overflows above 65504)",
          what,
          count,
          count == 1 ? "" : "s",
          count == 1 ? "is" : "are",
          items,
          first.item<std::int64_t>()));
}

// [B, C, T, h, w]
void expect_clips(
    const at::Tensor& latents, const std::filesystem::path& file, const StditShape& shape) {
  const auto wrong = [&](const std::string& what) {
    refuse(
        file,
        fmt::format(
            "'latents' is [{}]; needed is [clips, {}, frames, height, width], height and width "
            "multiples of the model's patch_size {}: {}",
            fmt::join(latents.sizes(), ", "),
            shape.channels,
            shape.patch,
            what));
  };
  constexpr const char* kDims[] = {"clips", "channels", "frames", "height", "width"};
  if (latents.dim() != std::ssize(kDims)) {
    wrong(fmt::format(
        "it has {} dims{}",
        latents.dim(),
        latents.dim() == std::ssize(kDims) - 1 ? "; a single clip is the first of one" : ""));
  }
  for (std::int64_t dim = 0; dim < latents.dim(); ++dim) {
    if (latents.size(dim) == 0) {
      wrong(fmt::format("there are no {}", kDims[dim]));
    }
  }
  if (latents.size(1) != shape.channels) {
    wrong(fmt::format(
        "it has {} channels{}",
        latents.size(1),
        latents.size(2) == shape.channels
            ? "; if frames come first, transpose these two"
            : ", and the model in_channels " + std::to_string(shape.channels)));
  }
  for (const std::int64_t dim : {3, 4}) {
    const std::int64_t size = latents.size(dim);
    const std::int64_t left = size % shape.patch;
    if (left != 0) {
      wrong(fmt::format(
          "{} {} is no multiple; {}pad to {}",
          kDims[dim],
          size,
          size > left ? fmt::format("crop to {} or ", size - left) : "",
          size - left + shape.patch));
    }
  }
}

// Clips stay in memory, and a sample is made of one of them.
void expect_room_for(
    const at::Tensor& latents,
    const std::filesystem::path& file,
    const StditShape& shape,
    std::int64_t available) {
  const auto stored = static_cast<std::int64_t>(latents.nbytes());
  if (stored > available) {
    refuse(
        file,
        fmt::format(
            "'latents' takes {} of memory, and {} are available on this machine; keep fewer or "
            "shorter clips in the file",
            bytes_text(stored),
            bytes_text(available)));
  }
  expect_room(file.string() + ": clip 0", latents.sizes().slice(1), shape, available - stored);
}

// Of each clip the tokens that are not masked.
std::vector<at::Tensor> text_of(
    const SafetensorsReader& reader,
    const std::filesystem::path& file,
    std::int64_t clips,
    const StditShape& shape) {
  const std::string needed = fmt::format(
      "the model attends to text: needed is 'text' [{}, tokens, {}]",
      clips,
      shape.caption_channels);
  if (!reader.contains("text")) {
    refuse(file, needed);
  }
  const at::Tensor text = floats(reader, file, "text").clone();
  if (text.dim() != 3 || text.size(0) != clips || text.size(1) == 0 ||
      text.size(2) != shape.caption_channels) {
    refuse(file, fmt::format("{}, and it is [{}]", needed, fmt::join(text.sizes(), ", ")));
  }
  at::Tensor mask = at::ones({clips, text.size(1)}, at::kLong);
  if (reader.contains("text_mask")) {
    mask = reader.view("text_mask").to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    if (mask.sizes() != at::IntArrayRef({clips, text.size(1)})) {
      refuse(
          file,
          fmt::format(
              "'text_mask' is [{}]; needed is one number for each token of 'text', [{}, {}]",
              fmt::join(mask.sizes(), ", "),
              clips,
              text.size(1)));
    }
  }
  if (const at::Tensor odd = mask.ne(0).logical_and_(mask.ne(1)); odd.any().item<bool>()) {
    refuse(
        file,
        fmt::format(
            "'text_mask' has {}; it has 1 for a token that is attended to and 0 for one that is "
            "not",
            mask.masked_select(odd)[0].item<double>()));
  }
  std::vector<at::Tensor> all;
  for (std::int64_t b = 0; b < clips; ++b) {
    all.push_back(text[b].index_select(0, mask[b].ne(0).nonzero().view({-1})));
    if (all.back().size(0) == 0) {
      refuse(file, fmt::format("'text_mask' leaves clip {} no token to attend to", b));
    }
    expect_finite(all.back(), fmt::format("clip {} of 'text'", b), "token", 0, file);
  }
  return all;
}

}  // namespace

SampleFile read_frames(const std::filesystem::path& file, const StditShape& shape) {
  const SafetensorsReader reader(file);
  for (const auto& [name, stored] : reader.tensors()) {
    const bool of_all =
        name == "latents" || name == "timesteps" || name == "text" || name == "text_mask";
    if (!of_all && !(shape.stdit3 && name == "fps")) {
      refuse(
          file,
          fmt::format(
              "tensor '{}' is not known; there are latents, timesteps, text, text_mask{}",
              name,
              shape.stdit3 ? ", fps" : ""));
    }
  }
  if (!reader.contains("latents")) {
    refuse(
        file,
        fmt::format(
            "has no 'latents', the clips: needed is a tensor [clips, {}, frames, height, width]",
            shape.channels));
  }
  const at::Tensor stored = floats(reader, file, "latents");
  expect_clips(stored, file, shape);
  expect_room_for(stored, file, shape, available_memory());
  Clips clips{
      .latents = stored.clone(), .timesteps = {}, .text = {}, .patch = shape.patch, .shape = shape};
  const at::Tensor& latents = clips.latents;
  if (reader.contains("fps")) {
    clips.frames_a_second =
        floats(reader, file, "fps").to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    const at::Tensor& fps = clips.frames_a_second;
    const bool fits = fps.dim() == 1 && fps.size(0) == latents.size(0) &&
                      fps.gt(0).logical_and(fps.isfinite()).all().item<bool>();
    if (!fits) {
      refuse(
          file,
          fmt::format(
              "'fps' is [{}]; needed is one positive number for each of the {} clips",
              fmt::join(fps.sizes(), ", "),
              latents.size(0)));
    }
  }
  if (reader.contains("timesteps")) {
    clips.timesteps =
        reader.view("timesteps").to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    if (clips.timesteps.dim() != 1 || clips.timesteps.size(0) != latents.size(0)) {
      refuse(
          file,
          fmt::format(
              "'timesteps' is [{}]; needed is one for each of the {} clips",
              fmt::join(clips.timesteps.sizes(), ", "),
              latents.size(0)));
    }
  }
  for (std::int64_t b = 0; b < latents.size(0); ++b) {
    expect_finite(latents[b], fmt::format("clip {} of 'latents'", b), "frame", 1, file);
    const double t = clips.timesteps.defined() ? clips.timesteps[b].item<double>() : 0;
    if (!(t >= 0 && t <= 1)) {
      refuse(
          file,
          fmt::format("'timesteps' has {} for clip {}; they are from 0, all noise, to 1", t, b));
    }
  }
  const std::int64_t patches = latents.size(3) / shape.patch * (latents.size(4) / shape.patch);
  if (shape.caption_channels > 0) {
    clips.text = text_of(reader, file, latents.size(0), shape);
  } else if (reader.contains("text") || reader.contains("text_mask")) {
    refuse(
        file,
        "has a 'text' or 'text_mask', and the model has no caption_channels: it attends to none");
  }
  SampleFile data{.content = {}, .sizes = {}, .file = file.string()};
  for (std::int64_t b = 0; b < latents.size(0); ++b) {
    data.sizes.lengths.push_back(latents.size(2) * patches);
    DimSizes& dims =
        data.sizes.dims.emplace_back(DimSizes{{"frames", latents.size(2)}, {"patches", patches}});
    if (!clips.text.empty()) {
      dims["text"] = clips.text[idx(b)].size(0);
    }
  }
  data.content = std::move(clips);
  return data;
}

MaskedResidues masked_residues(const std::string& name) {
  if (name == "none") {
    return MaskedResidues::none;
  }
  if (name == "marked") {
    return MaskedResidues::marked;
  }
  if (name == "unknown") {
    return MaskedResidues::unknown;
  }
  throw std::invalid_argument("masked residues: '" + name + "' is not none, marked or unknown");
}

MaskedLetters masked_letters(const std::string& name) {
  if (name == "none") {
    return MaskedLetters::none;
  }
  if (name == "marked") {
    return MaskedLetters::marked;
  }
  if (name == "ends") {
    return MaskedLetters::ends;
  }
  throw std::invalid_argument("masked letters: '" + name + "' is not none, marked or ends");
}

SampleFile read_alignments(
    const std::filesystem::path& file, bool openfold, const AlignmentReading& reading) {
  std::vector<Alignment> alignments = read_alignment_file(file, reading);
  BatchSizes sizes;
  for (Alignment& alignment : alignments) {
    alignment.openfold = openfold;
    alignment.masks = reading.masks;
    const auto all = std::ssize(alignment.letters);
    const auto r = std::ssize(alignment.letters.front());
    alignment.msa = reading.sequences > 0 ? std::min(all, reading.sequences) : all;
    const std::int64_t s = alignment.msa;
    sizes.lengths.push_back(s * r);
    DimSizes& dims =
        sizes.dims.emplace_back(DimSizes{{"sequences", s}, {"residues", r}, {"i", r}, {"j", r}});
    if (reading.extra_sequences > 0) {
      alignment.extra = std::clamp<std::int64_t>(all - s, 1, reading.extra_sequences);
      dims["extra_sequences"] = alignment.extra;
    }
  }
  SampleFile data{
      .content = std::move(alignments), .sizes = std::move(sizes), .file = file.string()};
  const std::int64_t available = available_memory();
  for (std::int64_t i = 0; i < data.size(); ++i) {
    expect_room_for_sample(data, i, available);
  }
  return data;
}

GridData::GridData(
    std::vector<SampleFile> files,
    std::vector<std::string> notes,
    std::map<std::string, LeftOut> left_out)
    : files_(std::move(files)), notes_(std::move(notes)), left_out_(std::move(left_out)) {
  for (const SampleFile& file : files_) {
    first_.push_back(size());
    sizes_.lengths.insert(
        sizes_.lengths.end(), file.sizes.lengths.begin(), file.sizes.lengths.end());
    sizes_.dims.insert(sizes_.dims.end(), file.sizes.dims.begin(), file.sizes.dims.end());
  }
}

std::pair<const SampleFile*, std::int64_t> GridData::place(std::int64_t i) const {
  const auto after = std::ranges::upper_bound(first_, i);
  const auto file = idx(after - first_.begin() - 1);
  return {&files_.at(file), i - first_.at(file)};
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
    return files_.front().fingerprint();
  }
  Xxh64 hash;
  for (const SampleFile& file : files_) {
    hash.add(file.fingerprint());
  }
  return hash.hex();
}

namespace {

// Why a file in a folder is left out, or "".
const char* why_left_out(const std::filesystem::directory_entry& entry, bool video) {
  const std::filesystem::path& file = entry.path();
  if (file.filename().string().starts_with(".")) {
    return kHidden;
  }
  if (entry.is_directory()) {
    return "folder";
  }
  if (!entry.is_regular_file()) {
    return kNoFile;
  }
  if (video) {
    return file.extension() == ".safetensors" || foreign_tensor_file(file).empty()
               ? ""
               : "no safetensors";
  }
  switch (beside_alignments(file)) {
    case BesideAlignments::alignment:
      return "";
    case BesideAlignments::nothing:
      return "without sequences";
    case BesideAlignments::other:
      return "no alignment";
  }
  return "";
}

std::vector<std::filesystem::path> files_of(
    const std::vector<std::filesystem::path>& paths,
    bool video,
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
      const std::string why = why_left_out(entry, video);
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
                             : fmt::format(
                                   "{}, only {}",
                                   video ? "clips (safetensors)" : "alignments",
                                   left_out_text(others))));
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

// Calls body(file, alignment) for all alignments; clips are none.
template <typename Body>
void for_alignments(const std::vector<SampleFile>& files, Body body) {
  for (const SampleFile& file : files) {
    if (const auto* const all = std::get_if<std::vector<Alignment>>(&file.content)) {
      for (const Alignment& alignment : *all) {
        body(file, alignment);
      }
    }
  }
}

// Where files and data.masked_letters do not say the same of which letters count.
std::vector<std::string> notes_on_marks(
    const std::vector<SampleFile>& files, MaskedLetters letters, bool masks) {
  std::string marked;  // the first file with marks
  for_alignments(files, [&](const SampleFile& file, const Alignment& alignment) {
    if (marked.empty() && alignment.marks_letters) {
      marked = file.file;
    }
  });
  if (letters == MaskedLetters::none && !marked.empty()) {
    return {fmt::format(
        "{} marks letters as masked (#=GR, MM), and they count: {}",
        printable(marked),
        masks ? "data.masked_letters is none; marked leaves them out"
              : "the model takes no masks of letters (msa_mask)")};
  }
  if (letters == MaskedLetters::marked && marked.empty() && !files.empty()) {
    return {
        "data.masked_letters is marked, but no file marks a letter (#=GR, MM, of Stockholm): all "
        "letters count"};
  }
  return {};
}

// Sequences that say nothing: mostly what is left of them when columns were taken out.
std::vector<std::string> notes_on_gaps(const std::vector<SampleFile>& files) {
  std::int64_t rows = 0;
  std::string first;
  for_alignments(files, [&](const SampleFile& file, const Alignment& alignment) {
    rows += std::ssize(alignment.gap_rows);
    if (first.empty() && !alignment.gap_rows.empty()) {
      const GapRow& row = alignment.gap_rows.front();
      first = fmt::format("{}:{}, '{}'", file.file, row.line, row.name);
    }
  });
  if (rows == 0) {
    return {};
  }
  return {printable(fmt::format(
      "{} of gaps alone (first: {}): remove {} unless you mean that",
      rows == 1 ? "1 row counts as a sequence though it is one"
                : fmt::format("{} rows count as sequences though they are", rows),
      first,
      rows == 1 ? "it" : "them"))};
}

// Alignments so small that many draws have no letter to predict.
std::vector<std::string> notes_on_few_letters(const std::vector<SampleFile>& files) {
  const auto letters_of = [](const Alignment& alignment) {
    std::int64_t letters = 0;
    for (const auto& row : alignment.counts) {
      letters += std::ranges::count(row, std::int8_t{1});
    }
    const auto residues = std::ssize(alignment.letters.front());
    return alignment.counts.empty() ? residues * std::ssize(alignment.letters) : letters;
  };
  std::int64_t few = 0;
  std::string first;
  for_alignments(files, [&](const SampleFile& file, const Alignment& alignment) {
    const std::int64_t letters = letters_of(alignment);
    if (kPredictedShare * static_cast<double>(letters) < 1 && few++ == 0) {
      first = fmt::format(
          "{}:{} with {} letter{}", file.file, alignment.line, letters, letters == 1 ? "" : "s");
    }
  });
  if (few == 0) {
    return {};
  }
  return {printable(fmt::format(
      "{} alignment{} so small that often no letter is to be predicted (first: {}): {:.0f} % of "
      "the letters are drawn, and a sample without any teaches nothing",
      few,
      few == 1 ? " is" : "s are",
      first,
      100 * kPredictedShare))};
}

}  // namespace

GridData read_grid_data(
    const std::vector<std::filesystem::path>& paths,
    const Model& model,
    const AlignmentReading& reading) {
  if (model.family != "stdit" && model.family != "evoformer") {
    throw std::invalid_argument(
        "data.path: no data is read for models of family '" + model.family +
        "', which was added to this program: give its samples as tensors (examples/axial.cc)");
  }
  std::vector<SampleFile> files;
  const bool masks = model.family != "stdit" && evoformer_shape(model).msa_mask;
  if (reading.letters != MaskedLetters::none && !masks) {
    throw std::invalid_argument(
        "data.masked_letters: the model takes no masks of letters, so that masked letters would "
        "count; write msa_mask = true into its configuration, or leave data.masked_letters out");
  }
  std::map<std::string, LeftOut> left_out;
  for (const std::filesystem::path& file : files_of(paths, model.family == "stdit", left_out)) {
    if (model.family == "stdit") {
      files.push_back(read_frames(file, stdit_shape(model)));
      continue;
    }
    const EvoformerShape shape = evoformer_shape(model);
    AlignmentReading of_model = reading;
    of_model.masks = masks;
    if (shape.extra_blocks == 0 && reading.extra_sequences > 0) {
      throw std::invalid_argument(
          "data.extra_sequences: the model has no stack for extra sequences (no_extra_blocks); "
          "leave "
          "it out");
    }
    if (shape.extra_blocks > 0) {
      const auto or_else = [](std::int64_t asked, std::int64_t otherwise) {
        return asked > 0 ? asked : otherwise;
      };
      of_model.sequences = or_else(reading.sequences, kMsaSequences);
      of_model.extra_sequences = or_else(reading.extra_sequences, kExtraSequences);
    }
    files.push_back(read_alignments(file, shape.openfold, of_model));
  }
  std::vector<std::string> notes = notes_on_marks(files, reading.letters, masks);
  for (std::string& note : notes_on_gaps(files)) {
    notes.push_back(std::move(note));
  }
  for (std::string& note : notes_on_few_letters(files)) {
    notes.push_back(std::move(note));
  }
  if (!left_out.empty()) {
    notes.push_back(printable("files left out: " + left_out_text(left_out)));
  }
  return GridData(std::move(files), std::move(notes), std::move(left_out));
}

}  // namespace paradyse
