// What a run is trained or evaluated on, whatever its model: documents, or samples of several dims.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"
#include "paradyse/run/data.h"
#include "paradyse/run/detail/item.h"
#include "paradyse/run/session.h"
#include "src/run/data/draws.h"
#include "src/run/data/grid_data.h"
#include "src/run/data/owned_item.h"

namespace paradyse {

class ItemSource;
struct LikeClip;

class Dataset {
 public:
  explicit Dataset(Corpus corpus);
  explicit Dataset(GridData samples);

  // Documents, or samples.
  [[nodiscard]] std::int64_t size() const;
  // Tokens, or rows, of an item, and the most that one has.
  [[nodiscard]] std::int64_t length(std::int64_t item) const;
  [[nodiscard]] std::int64_t longest() const;
  // Of these items.
  [[nodiscard]] BatchSizes sizes(std::span<const std::int64_t> items) const;
  // Where an item was found, for messages: its file, or file:line; of a sample with its number.
  [[nodiscard]] std::string name(std::int64_t item) const;
  [[nodiscard]] const DataCounts& counts() const { return counts_; }
  // What there is to tell of documents, as data_lines() says; of samples what is noted.
  [[nodiscard]] std::vector<std::string> lines(const std::string& key) const;
  // Of all samples that it was read from, held out or not; of documents none.
  [[nodiscard]] const BatchSizes& sample_sizes() const;
  // So many of them, if these are clips, from the first on and in turn; else none.
  [[nodiscard]] std::vector<LikeClip> clips(std::int64_t count) const;
  // A hash of all that it was read from, held out or not.
  [[nodiscard]] std::string fingerprint() const;
  // Which items are of which path, and how much of each is drawn.
  [[nodiscard]] Draws::Blend blend(const std::vector<double>& weights) const;

  // Takes items out: such a share of them (amount below 1), or so many.  An item is held out by a
  // hash of the seed and of its file's name and its place there, so that other files change nothing
  // (of a share), and all pieces of a document are on one side.  Throws std::invalid_argument where
  // none or all would be.
  [[nodiscard]] Dataset hold_out(double amount, std::uint64_t seed);

 private:
  friend class BatchItems;

  explicit Dataset(std::shared_ptr<const ItemSource> source);

  // In the source.
  [[nodiscard]] std::int64_t number(std::int64_t item) const;
  // Keeps these of its items.
  void keep(std::vector<std::int32_t> numbers);

  std::shared_ptr<const ItemSource> source_;
  DataCounts counts_;
  // Their numbers, ascending; empty: all of them.  32 bits: as much as a large corpus has to spare.
  std::vector<std::int32_t> items_;
};

// Some items of a data set as a session plays them on one rank by a plan; the data set lives as
// long.
class BatchItems {
 public:
  // Reads the documents that the rank has a part of; of the others it counts their labels alone.
  // What is drawn into samples, noise and masks, is that of (seed, first_draw), (seed, first_draw +
  // 1), ...  Throws as Corpus::document().
  BatchItems(
      const Dataset& data,
      std::span<const std::int64_t> items,
      std::uint64_t seed,
      std::uint64_t first_draw,
      const Plan& plan,
      int rank);
  BatchItems(const BatchItems&) = delete;
  BatchItems& operator=(const BatchItems&) = delete;

  [[nodiscard]] Batch batch(std::uint64_t dropout_seed = 0) const;

 private:
  std::vector<OwnedItem> owned_;  // a document of another rank: empty
  std::vector<Item> items_;
  std::optional<std::int64_t> predicted_tokens_ = 0;  // none: samples are counted where they lie
};

}  // namespace paradyse
