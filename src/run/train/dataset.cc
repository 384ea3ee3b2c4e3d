#include "src/run/train/dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/accountant.h"
#include "src/plan/base/xxh64.h"
#include "src/plan/plan/group_timeline.h"
#include "src/run/data/data_report.h"
#include "src/run/data/stdit/made_clips.h"

namespace paradyse {
namespace {

// Another number for each key and seed, all as likely.
std::uint64_t hash_of(std::uint64_t key, std::uint64_t seed) {
  Xxh64 hash;
  hash.add({reinterpret_cast<const char*>(&key), sizeof(key)});
  hash.add({reinterpret_cast<const char*>(&seed), sizeof(seed)});
  return hash.value();
}

}  // namespace

// What a data set was read from: documents or samples, by their numbers.
class ItemSource {
 public:
  virtual ~ItemSource() = default;

  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual DataCounts counts() const = 0;
  [[nodiscard]] virtual std::int64_t length(std::int64_t i) const = 0;
  [[nodiscard]] virtual std::string name(std::int64_t i) const = 0;
  // By which it is known whatever other files there are.
  [[nodiscard]] virtual std::uint64_t key(std::int64_t i) const = 0;
  [[nodiscard]] virtual std::string fingerprint() const = 0;
  [[nodiscard]] virtual std::vector<std::string> lines(
      const DataCounts& counts, const std::string& key) const = 0;
  // [path] The number of items of it and those before it, for weights of paths.
  [[nodiscard]] virtual const std::vector<std::int64_t>& ends() const = 0;
  // Labels that count; none: it would have to be read again.
  [[nodiscard]] virtual std::optional<std::int64_t> labels(std::int64_t i) const = 0;
  // As Dataset has them.
  [[nodiscard]] virtual const BatchSizes& sample_sizes() const {
    static const BatchSizes none;
    return none;
  }
  [[nodiscard]] virtual std::vector<LikeClip> clips(std::int64_t /*count*/) const { return {}; }

  struct Taken {
    OwnedItem item;
    std::optional<std::int64_t> scored;  // none: whoever has the item counts it
  };
  // What is drawn is that of (seed, draw).  `here`: whether this rank has a part of it; else a
  // document is empty.
  [[nodiscard]] virtual Taken take(
      std::int64_t i, bool here, std::uint64_t seed, std::uint64_t draw) const = 0;
};

namespace {

class DocumentSource final : public ItemSource {
 public:
  explicit DocumentSource(Corpus corpus) : corpus_(std::move(corpus)) {}

  [[nodiscard]] std::int64_t size() const override { return corpus_.size(); }
  [[nodiscard]] DataCounts counts() const override { return corpus_.counts; }
  [[nodiscard]] std::int64_t length(std::int64_t i) const override { return corpus_.length(i); }
  [[nodiscard]] std::string name(std::int64_t i) const override { return corpus_.name(i); }
  [[nodiscard]] std::uint64_t key(std::int64_t i) const override { return corpus_.key(i); }
  [[nodiscard]] std::string fingerprint() const override { return corpus_.fingerprint(); }
  [[nodiscard]] std::vector<std::string> lines(
      const DataCounts& counts, const std::string& key) const override {
    return data_lines(counts, key);
  }
  [[nodiscard]] const std::vector<std::int64_t>& ends() const override { return corpus_.ends(); }
  [[nodiscard]] std::optional<std::int64_t> labels(std::int64_t i) const override {
    return corpus_.labelled() ? std::nullopt : std::optional(corpus_.scored(i));
  }
  [[nodiscard]] Taken take(
      std::int64_t i, bool here, std::uint64_t /*seed*/, std::uint64_t /*draw*/) const override {
    if (!here) {
      return {.item = Document(), .scored = corpus_.scored(i)};
    }
    Document document = corpus_.document(i);
    const std::int64_t scored = corpus_.scored(document);
    return {.item = std::move(document), .scored = scored};
  }

 private:
  Corpus corpus_;
};

class SampleSource final : public ItemSource {
 public:
  explicit SampleSource(GridData samples) : samples_(std::move(samples)) {}

  [[nodiscard]] std::int64_t size() const override { return samples_.size(); }
  [[nodiscard]] DataCounts counts() const override {
    DataCounts counts{.documents = size(), .left_out = samples_.left_out()};
    for (const std::int64_t rows : samples_.sizes().lengths) {
      counts.tokens += rows;
    }
    return counts;
  }
  [[nodiscard]] std::int64_t length(std::int64_t i) const override {
    return samples_.sizes().lengths.at(idx(i));
  }
  [[nodiscard]] std::string name(std::int64_t i) const override {
    const auto [file, place] = samples_.place(i);
    return fmt::format("{}, sample {}", file->file(), place);
  }
  [[nodiscard]] std::uint64_t key(std::int64_t i) const override {
    const auto [file, place] = samples_.place(i);
    Xxh64 hash;
    hash.add(fmt::format("{}:{}", std::filesystem::path(file->file()).filename().string(), place));
    return hash.value();
  }
  [[nodiscard]] std::string fingerprint() const override { return samples_.fingerprint(); }
  [[nodiscard]] std::vector<std::string> lines(
      const DataCounts& /*counts*/, const std::string& key) const override {
    std::vector<std::string> lines;
    lines.reserve(samples_.notes().size());
    for (const std::string& note : samples_.notes()) {
      lines.push_back(fmt::format("{}: {}", key, note));
    }
    return lines;
  }
  [[nodiscard]] const std::vector<std::int64_t>& ends() const override {
    throw std::invalid_argument(
        "data.weights is for documents; samples have no weights: leave it out");
  }
  [[nodiscard]] std::optional<std::int64_t> labels(std::int64_t /*i*/) const override { return 0; }
  [[nodiscard]] const BatchSizes& sample_sizes() const override { return samples_.sizes(); }
  [[nodiscard]] std::vector<LikeClip> clips(std::int64_t count) const override {
    std::vector<LikeClip> clips;
    if (has_clips(*samples_.place(0).first)) {
      for (std::int64_t i = 0; i < count; ++i) {
        const auto [file, number] = samples_.place(i % size());
        clips.push_back({.file = file, .number = number});
      }
    }
    return clips;
  }
  [[nodiscard]] Taken take(
      std::int64_t i, bool /*here*/, std::uint64_t seed, std::uint64_t draw) const override {
    return {.item = samples_.sample(i, seed, draw), .scored = std::nullopt};
  }

 private:
  GridData samples_;
};

}  // namespace

Dataset::Dataset(Corpus corpus) : Dataset(std::make_shared<DocumentSource>(std::move(corpus))) {}

Dataset::Dataset(GridData samples) : Dataset(std::make_shared<SampleSource>(std::move(samples))) {}

Dataset::Dataset(std::shared_ptr<const ItemSource> source)
    : source_(std::move(source)), counts_(source_->counts()) {}

std::int64_t Dataset::size() const { return items_.empty() ? source_->size() : std::ssize(items_); }

std::int64_t Dataset::number(std::int64_t item) const {
  return items_.empty() ? item : items_.at(idx(item));
}

std::int64_t Dataset::length(std::int64_t item) const { return source_->length(number(item)); }

std::int64_t Dataset::longest() const {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < size(); ++i) {
    most = std::max(most, length(i));
  }
  return most;
}

BatchSizes Dataset::sizes(std::span<const std::int64_t> items) const {
  BatchSizes of_items;
  for (const std::int64_t item : items) {
    of_items.lengths.push_back(length(item));
    if (!sample_sizes().dims.empty()) {
      of_items.dims.push_back(sample_sizes().dims[idx(number(item))]);
    }
  }
  return of_items;
}

std::string Dataset::name(std::int64_t item) const { return source_->name(number(item)); }

std::vector<std::string> Dataset::lines(const std::string& key) const {
  return source_->lines(counts_, key);
}

const BatchSizes& Dataset::sample_sizes() const { return source_->sample_sizes(); }

std::vector<LikeClip> Dataset::clips(std::int64_t count) const { return source_->clips(count); }

std::string Dataset::fingerprint() const { return source_->fingerprint(); }

Draws::Blend Dataset::blend(const std::vector<double>& weights) const {
  if (weights.empty()) {
    return {.ends = {size()}, .weights = {}};
  }
  Draws::Blend blend{.ends = source_->ends(), .weights = weights};
  if (!items_.empty()) {
    for (std::int64_t& end : blend.ends) {
      end = std::ranges::lower_bound(items_, end) - items_.begin();
    }
  }
  return blend;
}

Dataset Dataset::hold_out(double amount, std::uint64_t seed) {
  if (size() > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument(fmt::format(
        "data.held_out: there are {} documents, more than can be divided (2^31 - 1); give "
        "data.eval_path",
        size()));
  }
  std::uint64_t bound = 0;  // hashes up to it are held out
  if (amount < 1) {
    bound = static_cast<std::uint64_t>(std::ldexp(amount, 64));
  } else if (amount < static_cast<double>(size())) {
    std::vector<std::uint64_t> hashes(idx(size()));
    for (std::int64_t i = 0; i < size(); ++i) {
      hashes[idx(i)] = hash_of(source_->key(number(i)), seed);
    }
    const auto last = hashes.begin() + static_cast<std::ptrdiff_t>(amount) - 1;
    std::ranges::nth_element(hashes, last);
    bound = *last;
  } else {
    bound = std::numeric_limits<std::uint64_t>::max();
  }
  std::vector<std::int32_t> held;
  std::vector<std::int32_t> kept;
  for (std::int64_t i = 0; i < size(); ++i) {
    std::vector<std::int32_t>& side = hash_of(source_->key(number(i)), seed) <= bound ? held : kept;
    side.push_back(static_cast<std::int32_t>(number(i)));
  }
  if (held.empty() || kept.empty()) {
    throw std::invalid_argument(fmt::format(
        "data.held_out is {}, which holds out {} of {} documents; choose a value that leaves "
        "documents for both training and evaluation",
        amount,
        held.empty() ? "none" : "all",
        size()));
  }
  Dataset other = *this;
  other.keep(std::move(held));
  keep(std::move(kept));
  return other;
}

void Dataset::keep(std::vector<std::int32_t> numbers) {
  items_ = std::move(numbers);
  counts_.documents = size();
  counts_.tokens = 0;
  counts_.labels = 0;
  counts_.beyond_window = 0;
  counts_.labels_counted = true;
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::int64_t tokens = length(i);
    const std::optional<std::int64_t> labels = source_->labels(number(i));
    counts_.tokens += tokens;
    counts_.labels += labels.value_or(0);
    counts_.labels_counted = counts_.labels_counted && labels.has_value();
    counts_.beyond_window += counts_.window > 0 && tokens > counts_.window ? 1 : 0;
  }
}

BatchItems::BatchItems(
    const Dataset& data,
    std::span<const std::int64_t> items,
    std::uint64_t seed,
    std::uint64_t first_draw,
    const Plan& plan,
    int rank) {
  const HostScope host;  // what is drawn is no memory of a rank
  std::vector<bool> mine(items.size());
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const std::int64_t document :
         micro.groups[rank_place(plan, micro, rank).group].documents) {
      mine.at(idx(document)) = true;
    }
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto [item, scored] = data.source_->take(data.number(items[i]), mine[i], seed, first_draw + i);
    owned_.push_back(std::move(item));
    predicted_tokens_ =
        predicted_tokens_ && scored ? std::optional(*predicted_tokens_ + *scored) : std::nullopt;
  }
  items_ = items_of(owned_);
}

Batch BatchItems::batch(std::uint64_t dropout_seed) const {
  return {.items = items_, .predicted_tokens = predicted_tokens_, .dropout_seed = dropout_seed};
}

}  // namespace paradyse
