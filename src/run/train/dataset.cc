#include "src/run/train/dataset.h"

#include <utility>

#include "paradyse/plan/index.h"
#include "paradyse/run/accountant.h"
#include "src/plan/base/xxh64.h"

namespace paradyse {
namespace {

void add(Xxh64& hash, const Tokens& tokens) {
  const std::uint64_t count = tokens.size();
  hash.add({reinterpret_cast<const char*>(&count), sizeof(count)});
  hash.add({reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(tokens[0])});
}

}  // namespace

Dataset::Dataset(Corpus corpus) : corpus_(std::move(corpus)) {
  for (const Tokens& document : corpus_.documents) {
    lengths_.push_back(static_cast<std::int64_t>(document.size()));
  }
}

Dataset::Dataset(GridData samples)
    : samples_(std::move(samples)),
      lengths_(idx(samples_->size()), samples_->rows()),
      dims_(samples_->dims) {
  corpus_.counts.documents = samples_->size();
  corpus_.counts.tokens = samples_->size() * samples_->rows();
}

std::string Dataset::fingerprint() const {
  if (samples_) {
    return samples_->fingerprint();
  }
  Xxh64 documents;
  for (std::size_t d = 0; d < corpus_.documents.size(); ++d) {
    add(documents, corpus_.documents[d]);
    if (!corpus_.labels.empty()) {
      add(documents, corpus_.labels[d]);
    }
  }
  return documents.hex();
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
    documents_.push_back(&data.corpus_.documents[idx(i)]);
    if (!data.corpus_.labels.empty()) {
      labels_.push_back(&data.corpus_.labels[idx(i)]);
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
