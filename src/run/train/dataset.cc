#include "src/run/train/dataset.h"

#include <numeric>
#include <utility>

#include "paradyse/plan/index.h"
#include "paradyse/run/accountant.h"
#include "src/plan/base/xxh64.h"
#include "src/run/data/data_report.h"

namespace paradyse {
namespace {

void add(Xxh64& hash, const Tokens& tokens) {
  const std::uint64_t count = tokens.size();
  hash.add({reinterpret_cast<const char*>(&count), sizeof(count)});
  hash.add({reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(tokens[0])});
}

}  // namespace

std::string fingerprint(const Corpus& corpus) {
  Xxh64 documents;
  for (std::size_t d = 0; d < corpus.documents.size(); ++d) {
    add(documents, corpus.documents[d]);
    if (!corpus.labels.empty()) {
      add(documents, corpus.labels[d]);
    }
  }
  return documents.hex();
}

Dataset::Dataset(Corpus corpus) : corpus_(std::move(corpus)) {
  for (const Tokens& document : corpus_.documents) {
    sizes_.lengths.push_back(static_cast<std::int64_t>(document.size()));
  }
}

Dataset::Dataset(GridData samples) : samples_(std::move(samples)), sizes_(samples_->sizes()) {
  corpus_.counts.documents = size();
  corpus_.counts.tokens = std::accumulate(lengths().begin(), lengths().end(), std::int64_t{0});
}

BatchSizes Dataset::sizes(std::span<const std::int64_t> items) const {
  BatchSizes of_items;
  for (const std::int64_t item : items) {
    of_items.lengths.push_back(sizes_.lengths[idx(item)]);
    if (!sizes_.dims.empty()) {
      of_items.dims.push_back(sizes_.dims[idx(item)]);
    }
  }
  return of_items;
}

std::vector<std::string> Dataset::lines(const std::string& key) const {
  return samples_ ? std::vector<std::string>() : data_lines(corpus_.counts, key);
}

std::string Dataset::name(std::int64_t item) const {
  return std::cmp_less(item, corpus_.names.size()) ? corpus_.names[idx(item)]
                                                   : "sample " + std::to_string(item);
}

std::string Dataset::fingerprint() const {
  return samples_ ? samples_->fingerprint() : paradyse::fingerprint(corpus_);
}

BatchItems::BatchItems(
    const Dataset& data,
    std::span<const std::int64_t> items,
    std::uint64_t seed,
    std::uint64_t first_draw) {
  const HostScope host;  // what is drawn is no memory of a rank
  for (const std::int64_t i : items) {
    if (data.samples_) {
      drawn_.push_back(data.samples_->sample(i, seed, first_draw++));
      continue;
    }
    documents_.emplace_back(data.corpus_.documents[idx(i)]);
    if (!data.corpus_.labels.empty()) {
      labels_.emplace_back(data.corpus_.labels[idx(i)]);
    }
  }
  for (const Sample& sample : drawn_) {
    samples_.push_back(&sample);
  }
}

Batch BatchItems::batch(std::uint64_t dropout_seed) const {
  return {
      .documents = documents_,
      .labels = labels_,
      .samples = samples_,
      .dropout_seed = dropout_seed};
}

}  // namespace paradyse
