// Files of alignments as samples: what each takes of memory, and what is told of them.
#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/printable.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/run/data/evoformer/alignment_formats.h"
#include "src/run/data/evoformer/alignment_samples.h"
#include "src/run/data/sample_memory.h"
#include "src/run/data/sample_readers.h"
#include "src/run/device/host_memory.h"

namespace paradyse {
namespace {

constexpr double kLetter = 9;  // bytes: as it is seen, what was left out before it, its label

// Of all that a sample has for each residue of a sequence, and for each pair of residues: what the
// model's embeddings, ours or OpenFold's, read most of.
constexpr std::int64_t kMostOfPair = std::max(kPairFeatures, 2 * kTargetFeatures + kPlaceBins);
constexpr double kOfPair = kCutInputBytes * kMostOfPair;
double of_residue(bool openfold) {
  return kLetter + kCutInputBytes * (openfold ? kTargetFeatures + kLetterFeatures : kMsaFeatures);
}

// Of all sequences, for each residue of one; letters of those that are not of the MSA are kept.
double of_residues(const AlignmentSizes& sizes) {
  return of_residue(sizes.openfold) * static_cast<double>(sizes.sequences) +
         kCutInputBytes * kExtraFeatures * static_cast<double>(sizes.extra) +
         kLetter * static_cast<double>(sizes.others);
}

}  // namespace

double alignment_sample_bytes(const AlignmentSizes& sizes) {
  const auto R = static_cast<double>(sizes.residues);
  return of_residues(sizes) * R + kOfPair * R * R;
}

void expect_room(const std::string& where, const Alignment& alignment, std::int64_t available) {
  const std::int64_t s = alignment.msa > 0 ? alignment.msa : std::ssize(alignment.letters);
  const auto r = std::ssize(alignment.letters.front());
  const AlignmentSizes sizes{
      .sequences = s,
      .residues = r,
      .openfold = alignment.openfold,
      .extra = alignment.extra,
      .others = std::ssize(alignment.letters) - s};
  const double needed = alignment_sample_bytes(sizes);
  const double others =
      of_residues(sizes) - of_residue(alignment.openfold) * static_cast<double>(s);
  const double residue = of_residue(alignment.openfold);
  const auto room = static_cast<double>(available);
  if (needed <= room) {
    return;
  }
  const auto R = static_cast<double>(r);
  const double of_pairs = kOfPair * R * R;
  // The largest R with kOfPair R^2 + residue S R within the room; or the largest S.
  const double b = of_residues(sizes);
  const double residues = (std::sqrt(b * b + 4 * kOfPair * room) - b) / (2 * kOfPair);
  const double sequences = (room - of_pairs - others * R) / (residue * R);
  refuse_sample(
      fmt::format(
          "{}: the sample of an alignment of {} sequences and {} residues, with {} features of "
          "each pair of residues,",
          where,
          s,
          r,
          kMostOfPair),
      needed,
      available,
      sequences >= 1
          ? fmt::format(
                "keep at most {:.0f} sequences, or train on a machine with more",
                whole_of(sequences))
          : fmt::format(
                "cut the alignment into pieces of at most {:.0f} residues, or train on a machine "
                "with more",
                std::max(1.0, whole_of(residues))));
}

namespace {

void add_numbers(const SampleFile::AddBytes& add, const std::vector<std::int32_t>& numbers) {
  add({reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0])});
}

}  // namespace

AlignmentFile::AlignmentFile(std::string file, BatchSizes sizes, std::vector<Alignment> alignments)
    : SampleFile(std::move(file), std::move(sizes)), alignments_(std::move(alignments)) {}

void AlignmentFile::expect_room_for(std::int64_t i, std::int64_t available) const {
  const Alignment& alignment = alignments_[idx(i)];
  expect_room(fmt::format("{}:{}", file(), alignment.line), alignment, available);
}

Sample AlignmentFile::sample(std::int64_t i, std::uint64_t seed, std::uint64_t draw) const {
  expect_room_for(i, available_memory());
  return sample_of(alignments_[idx(i)], Draw(seed, draw));
}

void AlignmentFile::add_content(const AddBytes& add) const {
  for (const Alignment& alignment : alignments_) {
    for (std::size_t row = 0; row < alignment.letters.size(); ++row) {
      add_numbers(add, alignment.letters[row]);
      add_numbers(add, alignment.deletions[row]);
    }
    add_numbers(add, alignment.places);
    for (const std::vector<std::int8_t>& row : alignment.counts) {
      add({reinterpret_cast<const char*>(row.data()), row.size()});
    }
  }
}

AlignmentFile read_alignments(
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
  AlignmentFile data(file.string(), std::move(sizes), std::move(alignments));
  const std::int64_t available = available_memory();
  for (std::int64_t i = 0; i < data.size(); ++i) {
    data.expect_room_for(i, available);
  }
  return data;
}

namespace {

// Calls body(file, alignment) for all alignments.
template <typename Body>
void for_alignments(const SampleFiles& files, Body body) {
  for (const auto& one : files) {
    const auto& file = dynamic_cast<const AlignmentFile&>(*one);
    for (const Alignment& alignment : file.alignments()) {
      body(file, alignment);
    }
  }
}

// Where files and data.masked_letters do not say the same of which letters count.
std::vector<std::string> notes_on_marks(
    const SampleFiles& files, MaskedLetters letters, bool masks) {
  std::string marked;  // the first file with marks
  for_alignments(files, [&](const SampleFile& file, const Alignment& alignment) {
    if (marked.empty() && alignment.marks_letters) {
      marked = file.file();
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
std::vector<std::string> notes_on_gaps(const SampleFiles& files) {
  std::int64_t rows = 0;
  std::string first;
  for_alignments(files, [&](const SampleFile& file, const Alignment& alignment) {
    rows += std::ssize(alignment.gap_rows);
    if (first.empty() && !alignment.gap_rows.empty()) {
      const GapRow& row = alignment.gap_rows.front();
      first = fmt::format("{}:{}, '{}'", file.file(), row.line, row.name);
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
std::vector<std::string> notes_on_few_letters(const SampleFiles& files) {
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
          "{}:{} with {} letter{}", file.file(), alignment.line, letters, letters == 1 ? "" : "s");
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

// What the settings say of a model's alignments.
AlignmentReading reading_of(const EvoformerShape& shape, const RunConfig::Data& settings) {
  AlignmentReading reading{
      .surely_protein = settings.protein,
      .masked = masked_residues(settings.masked_residues),
      .letters = masked_letters(settings.masked_letters),
      .masks = shape.msa_mask,
      .sequences = settings.sequences,
      .extra_sequences = settings.extra_sequences};
  if (shape.extra_blocks > 0) {
    const auto or_else = [](std::int64_t asked, std::int64_t otherwise) {
      return asked > 0 ? asked : otherwise;
    };
    reading.sequences = or_else(settings.sequences, kMsaSequences);
    reading.extra_sequences = or_else(settings.extra_sequences, kExtraSequences);
  } else if (settings.extra_sequences > 0) {
    throw std::invalid_argument(
        "data.extra_sequences: the model has no stack for extra sequences (no_extra_blocks); "
        "leave it out");
  }
  return reading;
}

std::string why_no_alignment(const std::filesystem::path& file) {
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

std::vector<std::string> notes_on(
    const SampleFiles& files, const Model& model, const RunConfig::Data& settings) {
  std::vector<std::string> notes = notes_on_marks(
      files, masked_letters(settings.masked_letters), evoformer_shape(model).msa_mask);
  for (const auto& more : {notes_on_gaps(files), notes_on_few_letters(files)}) {
    notes.insert(notes.end(), more.begin(), more.end());
  }
  return notes;
}

}  // namespace

SampleReader alignment_reader() {
  return {
      .family = "evoformer",
      .data = "alignments",
      .read =
          [](const std::filesystem::path& file,
             const Model& model,
             const RunConfig::Data& settings) {
            const EvoformerShape shape = evoformer_shape(model);
            return std::make_shared<const AlignmentFile>(
                read_alignments(file, shape.openfold, reading_of(shape, settings)));
          },
      .why_left_out = why_no_alignment,
      .notes = notes_on};
}

}  // namespace paradyse
