#include "src/run/data/sample_memory.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/plan/base/bytes_text.h"

namespace paradyse {
namespace {

constexpr double kFloat = 4;   // bytes: inputs are cut, and all ranks' shares are in this type
constexpr double kDouble = 8;  // of samples that are held whole
constexpr double kLetter = 9;  // as it is seen, what was left out before it, its label

// Of all that a sample has for each residue of a sequence, and for each pair of residues: what the
// model's embeddings, ours or OpenFold's, read most of.
constexpr std::int64_t kMostOfPair = std::max(kPairFeatures, 2 * kTargetFeatures + kPlaceBins);
constexpr double kOfPair = kFloat * kMostOfPair;
double of_residue(bool openfold) {
  return kLetter + kFloat * (openfold ? kTargetFeatures + kLetterFeatures : kMsaFeatures);
}

// What was rounded down from a whole number is that number.
double whole(double number) { return std::floor(number + 1e-6); }

std::string text_of(double bytes) {
  constexpr double kMost = 9e18;
  return bytes_text(static_cast<std::int64_t>(std::min(bytes, kMost)));
}

[[noreturn]] void refuse_size(
    const std::string& what, double needed, std::int64_t available, const std::string& remedy) {
  throw std::runtime_error(fmt::format(
      "{} takes {} of memory, and {} are available on this machine; {}",
      what,
      text_of(needed),
      bytes_text(available),
      remedy));
}

}  // namespace

namespace {

// Of all sequences, for each residue of one; letters of those that are not of the MSA are kept.
double of_residues(const AlignmentSizes& sizes) {
  return of_residue(sizes.openfold) * static_cast<double>(sizes.sequences) +
         kFloat * kExtraFeatures * static_cast<double>(sizes.extra) +
         kLetter * static_cast<double>(sizes.others);
}

}  // namespace

double alignment_sample_bytes(const AlignmentSizes& sizes) {
  const auto R = static_cast<double>(sizes.residues);
  return of_residues(sizes) * R + kOfPair * R * R;
}

double clip_sample_bytes(at::IntArrayRef sizes, const StditShape& shape) {
  const std::int64_t patch = shape.patch;
  const std::int64_t of_place = shape.stdit3 ? shape.hidden : kPlaceFeatures;
  // The noisy clip and the velocity, which is as wide as what is predicted; features of places.
  const double copies = shape.stdit3 && shape.pred_sigma ? 3 : 2;
  double elements = 1;
  for (const std::int64_t size : sizes) {
    elements *= static_cast<double>(size);
  }
  const double patches =
      elements / static_cast<double>(sizes.front()) / static_cast<double>(patch * patch);
  return kFloat * (copies * elements + static_cast<double>(of_place) * patches);
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
  refuse_size(
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
                "keep at most {:.0f} sequences, or train on a machine with more", whole(sequences))
          : fmt::format(
                "cut the alignment into pieces of at most {:.0f} residues, or train on a machine "
                "with more",
                std::max(1.0, whole(residues))));
}

void expect_room(
    const std::string& where,
    at::IntArrayRef clip,
    const StditShape& shape,
    std::int64_t available) {
  const double needed = clip_sample_bytes(clip, shape);
  if (needed <= static_cast<double>(available)) {
    return;
  }
  const double of_frame = needed / static_cast<double>(clip[1]);
  const double frames = whole(static_cast<double>(available) / of_frame);
  refuse_size(
      fmt::format("{}: the sample of a clip of [{}]", where, fmt::join(clip, ", ")),
      needed,
      available,
      frames >= 1
          ? fmt::format(
                "cut clips to at most {:.0f} frames, or train on a machine with more", frames)
          : "give smaller frames, or train on a machine with more");
}

void expect_room(
    const Model& model,
    const std::map<std::string, std::int64_t>& dims,
    std::int64_t count,
    std::int64_t available) {
  double needed = 0;
  for (const Stream& input : model.inputs()) {
    double elements = static_cast<double>(input.columns) * static_cast<double>(count);
    for (const std::int64_t size : row_sizes(input.rows, dims)) {
      elements *= static_cast<double>(size);
    }
    needed += kDouble * elements;
  }
  if (needed <= static_cast<double>(available)) {
    return;
  }
  std::string sizes;
  for (const auto& [name, size] : dims) {
    sizes += fmt::format("{}{} {}", sizes.empty() ? "" : ", ", name, size);
  }
  refuse_size(
      fmt::format("{} sample{} of {}", count, count == 1 ? "" : "s", sizes),
      needed,
      available,
      "give smaller sizes, or use a machine with more");
}

}  // namespace paradyse
