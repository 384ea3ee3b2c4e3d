#include "src/run/train/dataset.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/index.h"
#include "paradyse/run/accountant.h"
#include "src/plan/base/xxh64.h"
#include "src/plan/plan/group_timeline.h"
#include "src/run/data/data_report.h"

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

Dataset::Dataset(Corpus corpus) : corpus_(std::move(corpus)) {}

Dataset::Dataset(GridData samples) : samples_(std::move(samples)) {
  corpus_.counts.documents = size();
  corpus_.counts.left_out = samples_->left_out();
  for (const std::int64_t rows : samples_->sizes().lengths) {
    corpus_.counts.tokens += rows;
  }
}

std::int64_t Dataset::size() const {
  return !items_.empty() ? std::ssize(items_) : samples_ ? samples_->size() : corpus_.size();
}

std::int64_t Dataset::number(std::int64_t item) const {
  return items_.empty() ? item : items_.at(idx(item));
}

std::int64_t Dataset::length(std::int64_t item) const {
  const std::int64_t i = number(item);
  return samples_ ? samples_->sizes().lengths.at(idx(i)) : corpus_.length(i);
}

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
    if (samples_ && !samples_->sizes().dims.empty()) {
      of_items.dims.push_back(samples_->sizes().dims[idx(number(item))]);
    }
  }
  return of_items;
}

std::string Dataset::name(std::int64_t item) const {
  if (!samples_) {
    return corpus_.name(number(item));
  }
  const auto [file, place] = samples_->place(number(item));
  return fmt::format("{}, sample {}", file->file(), place);
}

std::vector<std::string> Dataset::lines(const std::string& key) const {
  if (!samples_) {
    return data_lines(corpus_.counts, key);
  }
  std::vector<std::string> lines;
  lines.reserve(samples_->notes().size());
  for (const std::string& note : samples_->notes()) {
    lines.push_back(fmt::format("{}: {}", key, note));
  }
  return lines;
}

std::string Dataset::fingerprint() const {
  return samples_ ? samples_->fingerprint() : corpus_.fingerprint();
}

Draws::Blend Dataset::blend(const std::vector<double>& weights) const {
  if (samples_ || weights.empty()) {
    if (!weights.empty()) {
      throw std::invalid_argument(
          "data.weights is for documents; samples have no weights: leave it out");
    }
    return {.ends = {size()}, .weights = {}};
  }
  Draws::Blend blend{.ends = corpus_.ends(), .weights = weights};
  if (!items_.empty()) {
    for (std::int64_t& end : blend.ends) {
      end = std::ranges::lower_bound(items_, end) - items_.begin();
    }
  }
  return blend;
}

std::uint64_t Dataset::key(std::int64_t item) const {
  if (!samples_) {
    return corpus_.key(number(item));
  }
  const auto [file, place] = samples_->place(number(item));
  Xxh64 hash;
  hash.add(fmt::format("{}:{}", std::filesystem::path(file->file()).filename().string(), place));
  return hash.value();
}

Dataset Dataset::hold_out(double amount, std::uint64_t seed) {
  if (size() > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument(fmt::format(
        "data.held_out: there are {} documents, more than can be divided (2^31 - 1); give "
        "data.eval_path",
        size()));
  }
  const auto wanted = static_cast<std::uint64_t>(amount);  // of a share 0
  std::uint64_t bound = 0;                                 // hashes up to it are held out
  if (amount < 1) {
    bound = static_cast<std::uint64_t>(std::ldexp(amount, 64));
  } else if (std::cmp_less(wanted, size())) {
    std::vector<std::uint64_t> hashes(idx(size()));
    for (std::int64_t i = 0; i < size(); ++i) {
      hashes[idx(i)] = hash_of(key(i), seed);
    }
    const auto last = hashes.begin() + static_cast<std::ptrdiff_t>(wanted) - 1;
    std::ranges::nth_element(hashes, last);
    bound = *last;
  } else {
    bound = std::numeric_limits<std::uint64_t>::max();
  }
  std::vector<std::int32_t> held;
  std::vector<std::int32_t> kept;
  for (std::int64_t i = 0; i < size(); ++i) {
    std::vector<std::int32_t>& side = hash_of(key(i), seed) <= bound ? held : kept;
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
  DataCounts& counts = corpus_.counts;
  counts.documents = size();
  counts.tokens = 0;
  counts.labels = 0;
  counts.beyond_window = 0;
  counts.labels_counted = samples_ || !corpus_.labelled();  // else all would have to be read again
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::int64_t tokens = length(i);
    counts.tokens += tokens;
    counts.labels += counts.labels_counted && !samples_ ? corpus_.scored(number(i)) : 0;
    counts.beyond_window += counts.window > 0 && tokens > counts.window ? 1 : 0;
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
  if (data.samples_) {
    for (const std::int64_t i : items) {
      drawn_.push_back(data.samples_->sample(data.number(i), seed, first_draw++));
    }
    for (const Sample& sample : drawn_) {
      samples_.push_back(&sample);
    }
    return;
  }
  std::vector<bool> mine(items.size());
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const std::int64_t document :
         micro.groups[rank_place(plan, micro, rank).group].documents) {
      mine.at(idx(document)) = true;
    }
  }
  const Corpus& corpus = data.corpus_;
  read_.resize(items.size());
  predicted_tokens_ = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::int64_t document = data.number(items[i]);
    if (mine[i]) {
      read_[i] = corpus.document(document);
    }
    *predicted_tokens_ += mine[i] ? corpus.scored(read_[i]) : corpus.scored(document);
    documents_.emplace_back(read_[i].tokens);
    if (corpus.labelled()) {
      labels_.emplace_back(read_[i].labels ? TokenView(*read_[i].labels) : TokenView());
    }
  }
}

Batch BatchItems::batch(std::uint64_t dropout_seed) const {
  return {
      .documents = documents_,
      .labels = labels_,
      .samples = samples_,
      .predicted_tokens = predicted_tokens_,
      .dropout_seed = dropout_seed};
}

}  // namespace paradyse
