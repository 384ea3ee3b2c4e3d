#include "src/run/data/micro_batch.h"

#include <algorithm>
#include <stdexcept>

#include "paradyse/plan/index.h"

namespace paradyse {

MicroBatch micro_batch(
    const Documents& packed,
    std::span<const std::vector<std::int32_t>* const> documents,
    int group_rank,
    std::span<const std::vector<std::int32_t>* const> labels,
    std::span<const std::int64_t> first_tokens,
    bool masked_lm) {
  MicroBatch batch;
  batch.packed = packed;
  std::vector<std::int64_t> starts;  // of each document among the packed tokens
  std::int64_t start = 0;
  for (std::size_t d = 0; d < packed.lengths.size(); ++d) {
    if (static_cast<std::int64_t>(documents[d]->size()) != packed.lengths[d]) {
      throw std::invalid_argument(
          "document " + std::to_string(d) + " has " + std::to_string(documents[d]->size()) +
          " tokens, the plan says " + std::to_string(packed.lengths[d]));
    }
    if (!labels.empty() && labels[d]->size() != documents[d]->size()) {
      throw std::invalid_argument(
          "document " + std::to_string(d) + " has " + std::to_string(documents[d]->size()) +
          " tokens, but " + std::to_string(labels[d]->size()) + " labels; every token takes one");
    }
    starts.push_back(start);
    const std::int64_t first = first_tokens.empty() ? start : first_tokens[d];
    start += packed.lengths[d];
    for (std::int64_t i = 0; i < packed.lengths[d]; ++i) {
      batch.all_positions.push_back(i);
      batch.all_tokens_of.push_back(first + i);
    }
  }
  std::size_t d = 0;
  for (const Interval interval : packed.cuts.at(idx(group_rank))) {
    for (std::int64_t t = interval.begin; t < interval.end; ++t) {
      while (t >= starts[d] + packed.lengths[d]) {  // pieces ascend: documents come in order
        ++d;
      }
      const std::vector<std::int32_t>& document = *documents[d];
      const auto i = idx(t - starts[d]);
      batch.ids.push_back(document[i]);
      const std::vector<std::int32_t>& wanted = labels.empty() ? document : *labels[d];
      const std::size_t at = masked_lm ? i : i + 1;
      batch.labels.push_back(at < wanted.size() ? std::max(wanted[at], -1) : -1);
      batch.tokens_of.push_back(
          (first_tokens.empty() ? starts[d] : first_tokens[d]) + static_cast<std::int64_t>(i));
      batch.document_of.push_back(static_cast<std::int32_t>(d));
      batch.positions.push_back(static_cast<std::int64_t>(i));
    }
  }
  return batch;
}

}  // namespace paradyse
