// Samples of alignments: letters to predict, and features that a rank makes of what it holds.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <utility>
#include <vector>

#include "paradyse/plan/index.h"
#include "src/run/data/drawn_samples.h"
#include "src/run/data/held.h"

namespace paradyse {
namespace {

// What a letter is to the model: `seen`, after so many that were left out, in the column of
// `first`, a letter of the first row.
void put_features(
    std::int32_t seen, double deleted, std::int32_t first, bool openfold, double* features) {
  const double any = deleted > 0 ? 1 : 0;
  const double how_many = 2 / std::numbers::pi * std::atan(deleted / 3);
  if (!openfold) {
    features[seen] = 1;
    features[kMsaClasses] = any;
    features[kMsaClasses + 1] = how_many;
    features[kMsaClasses + 2 + first] = 1;
    return;
  }
  if (first < kTargetFeatures - 1) {
    features[1 + first] = 1;
  }
  double* const letter = features + kTargetFeatures;
  letter[seen] = 1;
  letter[kMsaClasses] = any;
  letter[kMsaClasses + 1] = how_many;
  letter[kMsaClasses + 2 + seen] = 1;
  letter[kLetterFeatures - 1] = how_many;
}

// An alignment as the model sees it, letters masked.
struct SeenAlignment {
  std::int64_t residues = 0;
  std::vector<std::int32_t> places;     // as Alignment has them
  std::vector<std::int32_t> first;      // the first row's letters, as they are
  std::vector<std::int8_t> seen;        // [sequence][residue]
  std::vector<std::int32_t> deletions;  // [sequence][residue]
  bool openfold = false;

  [[nodiscard]] std::int64_t features_of_letter() const {
    return openfold ? kTargetFeatures + kLetterFeatures : kMsaFeatures;
  }
  [[nodiscard]] std::int64_t features_of_pair() const {
    return openfold ? 2 * kTargetFeatures + kPlaceBins : kPairFeatures;
  }
  // What `held` has of letters and of pairs of residues.
  void put_letters(std::span<const Piece> held, const at::Tensor& piece) const;
  void put_pairs(std::span<const Piece> held, const at::Tensor& piece) const;
};

// Row by row; `fill(i, j, features)` sets those that are not zero.
template <typename Fill>
void put_rows(
    std::span<const Piece> held, const at::Tensor& piece, std::int64_t columns, const Fill& fill) {
  const at::Tensor row = at::empty({size(held[1]), columns}, at::kDouble);
  std::int64_t k = 0;
  for_each_index(held[0], [&](std::int64_t i) {
    auto* features = row.zero_().mutable_data_ptr<double>();
    for_each_index(held[1], [&](std::int64_t j) {
      fill(i, j, features);
      features += columns;
    });
    copy_held(row, piece[k++], std::vector<Piece>{{{0, row.size(0)}}, held[2]});
  });
}

void SeenAlignment::put_letters(std::span<const Piece> held, const at::Tensor& piece) const {
  put_rows(
      held, piece, features_of_letter(), [&](std::int64_t i, std::int64_t j, double* features) {
        const auto letter = idx(i * residues + j);
        put_features(seen[letter], deletions[letter], first[idx(j)], openfold, features);
      });
}

void SeenAlignment::put_pairs(std::span<const Piece> held, const at::Tensor& piece) const {
  constexpr std::int64_t kFarthest = 32;  // residues apart that the features tell
  const std::int64_t each = openfold ? kTargetFeatures : kMsaClasses;
  const std::int64_t begin = openfold ? 1 : 0;  // of the classes among those
  const auto place_of = [&](std::int64_t residue) {
    return places.empty() ? residue : std::int64_t{places[idx(residue)]};
  };
  put_rows(held, piece, features_of_pair(), [&](std::int64_t i, std::int64_t j, double* features) {
    for (const auto& [place, residue] : {std::pair{std::int64_t{0}, i}, {each, j}}) {
      const std::int64_t letter = begin + first[idx(residue)];
      if (letter < each) {
        features[place + letter] = 1;
      }
    }
    const std::int64_t apart = place_of(i) - place_of(j);
    features[2 * each + std::clamp(apart, -kFarthest, kFarthest) + kFarthest] = 1;
  });
}

}  // namespace

Sample sample_of(const Alignment& alignment, Draw draw) {
  constexpr std::int32_t kMasked = 22;
  constexpr std::int64_t kAcids = 20;
  constexpr double kPredicted = 0.15;
  const auto s = static_cast<std::int64_t>(alignment.letters.size());
  const auto r = static_cast<std::int64_t>(alignment.letters.front().size());
  auto made = std::make_shared<SeenAlignment>();
  made->residues = r;
  made->places = alignment.places;
  made->first = alignment.letters.front();
  made->openfold = alignment.openfold;
  Sample sample;
  sample.labels.reserve(idx(s * r));
  made->seen.reserve(idx(s * r));
  made->deletions.reserve(idx(s * r));
  for (std::int64_t i = 0; i < s; ++i) {
    const std::vector<std::int32_t>& deletions = alignment.deletions[idx(i)];
    made->deletions.insert(made->deletions.end(), deletions.begin(), deletions.end());
    for (std::int64_t j = 0; j < r; ++j) {
      const std::int32_t truth = alignment.letters[idx(i)][idx(j)];
      std::int32_t seen = truth;
      const bool predicted = draw.uniform() < kPredicted;
      if (predicted) {
        const double how = draw.uniform();
        seen = how < 0.7   ? kMasked
               : how < 0.8 ? static_cast<std::int32_t>(draw.below(kAcids))
               : how < 0.9 ? alignment.letters[idx(draw.below(s))][idx(j)]
                           : truth;
      }
      sample.labels.push_back(predicted ? truth : -1);
      made->seen.push_back(static_cast<std::int8_t>(seen));
    }
  }
  const std::shared_ptr<const SeenAlignment> seen = std::move(made);
  sample.inputs["msa"] = SampleInput(
      {s, r, seen->features_of_letter()},
      [seen](std::span<const Piece> held, const at::Tensor& piece) {
        seen->put_letters(held, piece);
      });
  sample.inputs["pair"] = SampleInput(
      {r, r, seen->features_of_pair()},
      [seen](std::span<const Piece> held, const at::Tensor& piece) {
        seen->put_pairs(held, piece);
      });
  return sample;
}

}  // namespace paradyse
