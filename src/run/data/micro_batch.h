// The tokens, or rows, of one rank in a micro-batch, and what came of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "paradyse/plan/program.h"
#include "paradyse/run/detail/item.h"

namespace paradyse {

// In the order in which the rank stores them.  Of a model of several dims: rows of what its loss is
// of, in place of tokens, samples for documents; it has no ids and no positions.
struct MicroBatch {
  Documents packed;
  std::vector<std::int32_t> ids;            // [t]
  std::vector<std::int32_t> labels;         // [t] the id to predict; -1: none
  std::vector<std::int32_t> document_of;    // [t] index of the packed documents
  std::vector<std::int64_t> positions;      // [t] inside the document
  std::vector<std::int64_t> all_positions;  // [T] of the packed tokens in natural order
  std::vector<std::int64_t> tokens_of;      // [t] index of the token in the global batch
  std::vector<std::int64_t> all_tokens_of;  // [T] the same, of the packed tokens
  std::uint64_t dropout_seed = 0;
  std::vector<Item> samples = {};
  std::vector<std::int64_t> sample_numbers = {};  // of those in the global batch
  std::vector<Stream> inputs = {};                // of theirs: names and dims
  // [sample] Where predictions go, in the shape of what is predicted; empty: nobody asks.
  std::vector<at::Tensor> predictions = {};
};

// `documents`: those that are packed, in their order.  Of a masked LM token i is to predict label
// i, else label i + 1, and the last token nothing: that is settled before tokens are cut.
// `first_tokens`: the index of every document's first token in the global batch; empty: as they
// come.
MicroBatch micro_batch(
    const Documents& packed,
    std::span<const Item> documents,
    int group_rank,
    std::span<const std::int64_t> first_tokens = {},
    bool masked_lm = false);

// The samples of a group; `scored`: how the stream that the loss is of lies; `numbers`: of the
// samples in the global batch, by which dropout is drawn.
MicroBatch micro_batch(
    const Documents& packed,
    const Model& model,
    std::vector<Item> samples,
    const Layout& scored,
    int group_rank,
    std::vector<std::int64_t> numbers = {});

// What the rank holds of the samples' input of this name, or of these columns of it, which lies
// like this: to `piece`, [rows, columns].
void copy_input(
    const MicroBatch& batch,
    const std::string& name,
    const Layout& layout,
    int group_rank,
    const at::Tensor& piece,
    Interval columns = {});

// The way back: puts `piece`, the rank's part of what is predicted of the input of this name, into
// the batch's predictions.
void keep_prediction(
    const MicroBatch& batch,
    const std::string& name,
    const Layout& layout,
    int group_rank,
    const at::Tensor& piece);

struct MicroBatchResult {
  // [row of this rank] float64 on the device: what each adds to the loss where it counts.
  at::Tensor losses = {};
  std::int64_t numbers_a_row = 1;  // that are scored
  std::int64_t saved_bytes = 0;    // at the end of the forward pass, as the accountant saw it
};

// [document, or sample, of the layout] What its rows on this rank add to the loss, in their order,
// and the scored numbers of these.
struct LossSums {
  std::vector<double> losses;
  std::vector<std::int64_t> counts;
};
// `losses`: those of a result, on the host; undefined: nothing is scored.
LossSums loss_sums(const MicroBatch& batch, const at::Tensor& losses, std::int64_t numbers_a_row);

}  // namespace paradyse
