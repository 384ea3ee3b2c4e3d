// Samples of alignments: letters to predict, and features that a rank makes of what it holds.
#include "src/run/data/evoformer/alignment_samples.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/run/data/held.h"

namespace paradyse {
namespace {

constexpr std::int32_t kKnown = 21;  // classes that are no gap and not masked
constexpr std::int32_t kMasked = 22;

// How many letters were left out, from 0 to 1.
double shown(double deleted) { return 2 / std::numbers::pi * std::atan(deleted / 3); }

// What a letter is to the model: `seen`, after so many that were left out, in the column of
// `first`, a letter of the first row.
void put_features(std::int32_t seen, double deleted, std::int32_t first, double* features) {
  features[seen] = 1;
  features[kMsaClasses] = deleted > 0 ? 1 : 0;
  features[kMsaClasses + 1] = shown(deleted);
  features[kMsaClasses + 2 + first] = 1;
}

// Rows of an alignment, one after the other.
struct Rows {
  std::vector<std::int8_t> letters;     // [row][residue]
  std::vector<std::int32_t> deletions;  // [row][residue]
  std::vector<std::int8_t> counts;      // [row][residue] 1, or 0; empty: all count

  void add(
      const std::vector<std::int32_t>& of,
      const std::vector<std::int32_t>& deleted,
      const std::vector<std::int8_t>& counted) {
    counts.insert(counts.end(), counted.begin(), counted.end());
    for (const std::int32_t letter : of) {
      letters.push_back(static_cast<std::int8_t>(letter));
    }
    deletions.insert(deletions.end(), deleted.begin(), deleted.end());
  }
  [[nodiscard]] bool count(std::size_t letter) const {
    return counts.empty() || counts[letter] != 0;
  }
};

// An alignment as the model sees it, letters masked.
struct SeenAlignment {
  std::int64_t residues = 0;
  std::vector<std::int32_t> places;                 // as Alignment has them
  std::vector<std::int32_t> first;                  // the first row's letters, as they are
  Rows msa;                                         // as it is seen
  Rows others;                                      // all that are not of the MSA
  std::vector<std::vector<std::int64_t>> clusters;  // [row of the MSA] the others in its cluster
  bool openfold = false;

  [[nodiscard]] std::int64_t features_of_letter() const {
    return openfold ? kTargetFeatures + kLetterFeatures : kMsaFeatures;
  }
  [[nodiscard]] std::int64_t features_of_pair() const {
    return openfold ? 2 * kTargetFeatures + kPlaceBins : kPairFeatures;
  }
  void find_clusters();
  // Of OpenFold's embeddings: what letter j of row i is, and the means over its cluster.
  void put_openfold(std::int64_t i, std::int64_t j, double* features) const;
  // What `held` has of letters, of those of other sequences, and of pairs of residues.
  void put_letters(std::span<const Piece> held, const at::Tensor& piece) const;
  void put_extra(std::span<const Piece> held, const at::Tensor& piece) const;
  void put_pairs(std::span<const Piece> held, const at::Tensor& piece) const;
};

// Each of the others goes to the row with which it agrees most often, the first of them, but for
// gaps, letters to predict and those that do not count (Jumper et al. 2021, supplement 1.2.7).
void SeenAlignment::find_clusters() {
  const std::int64_t rows = std::ssize(msa.letters) / residues;
  clusters.resize(idx(rows));
  for (std::int64_t other = 0; other < std::ssize(others.letters) / residues; ++other) {
    const std::int8_t* const of_other = others.letters.data() + other * residues;
    std::int32_t best = -1;
    std::int64_t nearest = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int8_t* const of_row = msa.letters.data() + row * residues;
      std::int32_t agreeing = 0;
      for (std::int64_t j = 0; j < residues; ++j) {
        const bool agree = of_row[j] == of_other[j] && of_row[j] < kKnown &&
                           msa.count(idx(row * residues + j)) &&
                           others.count(idx(other * residues + j));
        agreeing += agree ? 1 : 0;
      }
      if (agreeing > best) {
        best = agreeing;
        nearest = row;
      }
    }
    clusters[idx(nearest)].push_back(other);
  }
}

void SeenAlignment::put_openfold(std::int64_t i, std::int64_t j, double* features) const {
  const auto at = idx(i * residues + j);
  const double deleted = msa.deletions[at];
  if (first[idx(j)] < kTargetFeatures - 1) {
    features[1 + first[idx(j)]] = 1;
  }
  double* const letter = features + kTargetFeatures;
  letter[msa.letters[at]] = 1;
  letter[kMsaClasses] = deleted > 0 ? 1 : 0;
  letter[kMsaClasses + 1] = shown(deleted);
  double* const profile = letter + kMsaClasses + 2;
  const std::vector<std::int64_t>& cluster = clusters[idx(i)];
  const auto counted = std::ranges::count_if(
      cluster, [&](std::int64_t other) { return others.count(idx(other * residues + j)); });
  const double one = 1 / static_cast<double>(1 + counted);
  double mean = deleted * one;
  profile[msa.letters[at]] = one;
  for (const std::int64_t other : cluster) {
    const auto there = idx(other * residues + j);
    if (!others.count(there)) {
      continue;
    }
    profile[others.letters[there]] += one;
    mean += others.deletions[there] * one;
  }
  letter[kLetterFeatures - 1] = shown(mean);
}

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
        if (openfold) {
          put_openfold(i, j, features);
          return;
        }
        const auto at = idx(i * residues + j);
        put_features(msa.letters[at], msa.deletions[at], first[idx(j)], features);
      });
}

void SeenAlignment::put_extra(std::span<const Piece> held, const at::Tensor& piece) const {
  put_rows(held, piece, kExtraFeatures, [&](std::int64_t i, std::int64_t j, double* features) {
    const auto at = idx(i * residues + j);
    const double deleted = others.deletions[at];
    features[others.letters[at]] = 1;
    features[kMsaClasses] = deleted > 0 ? 1 : 0;
    features[kMsaClasses + 1] = shown(deleted);
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

// Rows of an alignment in the order in which they are taken: the MSA, then the others.  The first
// is the first; where some are left out of the MSA the rest are shuffled.
std::vector<std::int64_t> order_of(std::int64_t rows, std::int64_t msa, Draw& draw) {
  std::vector<std::int64_t> order(idx(rows));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = 1; msa < rows && i < rows; ++i) {  // Fisher and Yates 1938
    std::swap(order[idx(i)], order[idx(i + draw.below(rows - i))]);
  }
  return order;
}

// [rows, residues, 1] Which letters count, of the first rows.
at::Tensor mask_of(const Rows& of, std::int64_t rows, std::int64_t residues) {
  const at::Tensor mask = at::ones({rows, residues, 1}, at::kChar);
  if (!of.counts.empty()) {
    std::copy_n(of.counts.begin(), mask.numel(), mask.mutable_data_ptr<std::int8_t>());
  }
  return mask;
}

}  // namespace

Sample sample_of(const Alignment& alignment, Draw draw) {
  constexpr std::int64_t kAcids = 20;
  const auto all = static_cast<std::int64_t>(alignment.letters.size());
  const std::int64_t s = alignment.msa > 0 ? alignment.msa : all;
  const auto r = static_cast<std::int64_t>(alignment.letters.front().size());
  auto made = std::make_shared<SeenAlignment>();
  made->residues = r;
  made->places = alignment.places;
  made->first = alignment.letters.front();
  made->openfold = alignment.openfold;
  Sample sample;
  sample.labels.reserve(idx(s * r));
  const std::vector<std::int64_t> order = order_of(all, s, draw);
  const auto counts = [&](std::int64_t row, std::int64_t j) {
    return alignment.counts.empty() || alignment.counts[idx(row)][idx(j)] != 0;
  };
  // [residue] Of a row; empty: all
  const auto counts_of = [&](std::size_t row) {
    return alignment.counts.empty() ? std::vector<std::int8_t>{} : alignment.counts[row];
  };
  for (std::int64_t i = 0; i < s; ++i) {
    const auto row = idx(order[idx(i)]);
    std::vector<std::int32_t> seen_letters;
    for (std::int64_t j = 0; j < r; ++j) {
      const std::int32_t truth = alignment.letters[row][idx(j)];
      std::int32_t seen = truth;
      const bool predicted = draw.uniform() < kPredictedShare;
      if (predicted) {
        const double how = draw.uniform();
        if (how < 0.7) {
          seen = kMasked;
        } else if (how < 0.8) {
          seen = static_cast<std::int32_t>(draw.below(kAcids));
        } else if (how < 0.9) {
          const std::int64_t other = draw.below(all);
          seen = counts(other, j) ? alignment.letters[idx(other)][idx(j)] : truth;
        }
      }
      sample.labels.push_back(predicted && counts(order[idx(i)], j) ? truth : -1);
      seen_letters.push_back(seen);
    }
    made->msa.add(seen_letters, alignment.deletions[row], counts_of(row));
  }
  for (std::int64_t i = s; i < all; ++i) {
    const auto row = idx(order[idx(i)]);
    made->others.add(alignment.letters[row], alignment.deletions[row], counts_of(row));
  }
  if (made->openfold) {
    made->find_clusters();
  }
  if (alignment.extra > 0 && s == all) {  // none is left: the first once more, or one that is none
    made->others.add(
        alignment.letters.front(),
        alignment.deletions.front(),
        std::vector<std::int8_t>(alignment.masks ? idx(r) : 0, 0));
  }
  const std::shared_ptr<const SeenAlignment> seen = std::move(made);
  sample.inputs["msa"] = SampleInput(
      {s, r, seen->features_of_letter()},
      [seen](std::span<const Piece> held, const at::Tensor& piece) {
        seen->put_letters(held, piece);
      });
  if (alignment.extra > 0) {
    sample.inputs["extra_msa"] = SampleInput(
        {alignment.extra, r, kExtraFeatures},
        [seen](std::span<const Piece> held, const at::Tensor& piece) {
          seen->put_extra(held, piece);
        });
  }
  if (alignment.masks) {
    sample.inputs["msa_mask"] = mask_of(seen->msa, s, r);
    if (alignment.extra > 0) {
      sample.inputs["extra_msa_mask"] = mask_of(seen->others, alignment.extra, r);
    }
  }
  sample.inputs["pair"] = SampleInput(
      {r, r, seen->features_of_pair()},
      [seen](std::span<const Piece> held, const at::Tensor& piece) {
        seen->put_pairs(held, piece);
      });
  return sample;
}

}  // namespace paradyse
