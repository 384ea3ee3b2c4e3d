// What a run is trained or evaluated on, whatever its model: documents, or samples of several dims.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paradyse/run/data.h"
#include "paradyse/run/session.h"
#include "src/run/data/grid_data.h"

namespace paradyse {

// A hash of tokens and labels.
std::string fingerprint(const Corpus& corpus);

class Dataset {
 public:
  explicit Dataset(Corpus corpus);
  explicit Dataset(GridData samples);

  // Documents, or samples.
  [[nodiscard]] std::int64_t size() const { return std::ssize(lengths()); }
  // [item] Its tokens, or rows.
  [[nodiscard]] const std::vector<std::int64_t>& lengths() const { return sizes_.lengths; }
  // Of these items.
  [[nodiscard]] BatchSizes sizes(std::span<const std::int64_t> items) const;
  [[nodiscard]] const DataCounts& counts() const { return corpus_.counts; }
  // What there is to tell of documents, as data_lines() says; of samples nothing.
  [[nodiscard]] std::vector<std::string> lines(const std::string& key) const;
  // Where an item was found: its file, or file:line; of a sample its number.
  [[nodiscard]] std::string name(std::int64_t item) const;
  // Null: these are documents.
  [[nodiscard]] const GridData* samples() const { return samples_ ? &*samples_ : nullptr; }
  [[nodiscard]] std::string fingerprint() const;  // of what is in it

 private:
  friend class BatchItems;

  Corpus corpus_;
  std::optional<GridData> samples_;
  BatchSizes sizes_;
};

// Some items of a data set as a session takes them; both live as long as the batch.
class BatchItems {
 public:
  // What is drawn into samples, noise and masks, is that of (seed, first_draw), (seed, first_draw +
  // 1), ...
  BatchItems(
      const Dataset& data,
      std::span<const std::int64_t> items,
      std::uint64_t seed,
      std::uint64_t first_draw);
  BatchItems(const BatchItems&) = delete;
  BatchItems& operator=(const BatchItems&) = delete;

  [[nodiscard]] Batch batch(std::uint64_t dropout_seed = 0) const;

 private:
  std::vector<TokenView> documents_;
  std::vector<TokenView> labels_;
  std::vector<Sample> drawn_;
  std::vector<const Sample*> samples_;
};

}  // namespace paradyse
