#include "src/run/data/micro_batch.h"

#include <algorithm>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "src/run/data/held.h"

namespace paradyse {
namespace {

constexpr const char* kBatch = "batch";

}  // namespace

MicroBatch micro_batch(
    const Documents& packed,
    std::span<const Item> documents,
    int group_rank,
    std::span<const std::int64_t> first_tokens,
    bool masked_lm) {
  MicroBatch batch;
  batch.packed = packed;
  std::vector<std::int64_t> starts;  // of each document among the packed tokens
  std::int64_t start = 0;
  for (std::size_t d = 0; d < packed.lengths.size(); ++d) {
    const TokenView tokens = documents[d].tokens;
    const TokenView labels = documents[d].labels;
    if (std::ssize(tokens) != packed.lengths[d]) {
      throw std::invalid_argument(
          "document " + std::to_string(d) + " has " + std::to_string(tokens.size()) +
          " tokens, the plan says " + std::to_string(packed.lengths[d]));
    }
    if (!labels.empty() && labels.size() != tokens.size()) {
      throw std::invalid_argument(
          "document " + std::to_string(d) + " has " + std::to_string(tokens.size()) +
          " tokens, but " + std::to_string(labels.size()) + " labels; every token takes one");
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
      const Item& document = documents[d];
      const auto i = idx(t - starts[d]);
      batch.ids.push_back(document.tokens[i]);
      const TokenView wanted = document.labels.empty() ? document.tokens : document.labels;
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

namespace {

// [row of the rank] Its number among the rows of the whole, in the order of the stream's dims.
std::vector<std::int64_t> natural_rows(const Stream& stream, const Layout& layout, int rank) {
  std::vector<std::int64_t> rows = {0};
  for (std::size_t d = 0; d + 1 < layout.dims.size(); ++d) {
    const Dim& dim = layout.dims[d];
    std::int64_t stride = 1;  // of the dim among natural rows
    for (auto name = stream.rows.rbegin(); *name != dim.name; ++name) {
      stride *= layout.dims[layout.place(*name)].size;
    }
    std::vector<std::int64_t> more;
    for (const std::int64_t row : rows) {
      for (const Interval run : dim.piece(rank)) {
        for (std::int64_t i = run.begin; i < run.end; ++i) {
          more.push_back(row + i * stride);
        }
      }
    }
    rows = std::move(more);
  }
  return rows;
}

// Calls `copy(s, held, piece)` for each sample that the rank has something of: what it holds of the
// input's dims, but "batch", in the input's order, and where that is in the rank's piece.
template <typename Copy>
void for_each_held(
    const Stream& input,
    std::int64_t samples,
    const Layout& layout,
    int group_rank,
    const at::Tensor& piece,
    const Copy& copy) {
  std::vector<std::string> natural = input.rows;
  natural.push_back(layout.columns().name);
  std::erase(natural, kBatch);
  std::vector<Piece> held(natural.size());
  std::vector<std::int64_t> order(natural.size());  // [dim of the input] its place in the piece
  std::vector<std::int64_t> sizes;
  std::int64_t batch_place = -1;
  Piece held_samples;
  if (samples > 0) {
    held_samples = {{0, 1}};
  }
  std::int64_t place = 0;  // in a sample's part of the piece
  for (const Dim& dim : layout.dims) {
    Piece of_dim = dim.piece(group_rank);
    sizes.push_back(size(of_dim));
    if (dim.name == kBatch) {
      batch_place = static_cast<std::int64_t>(sizes.size()) - 1;
      held_samples = std::move(of_dim);
      continue;
    }
    const auto d = idx(std::ranges::find(natural, dim.name) - natural.begin());
    held.at(d) = std::move(of_dim);
    order.at(d) = place++;
  }
  const at::Tensor all = piece.view(sizes);
  std::int64_t at = 0;
  for (const Interval run : held_samples) {
    for (std::int64_t s = run.begin; s < run.end; ++s, ++at) {
      copy(s, held, (batch_place < 0 ? all : all.select(batch_place, at)).permute(order));
    }
  }
}

const Stream& input_of(const MicroBatch& batch, const std::string& name) {
  const auto input = std::ranges::find(batch.inputs, name, &Stream::name);
  if (input == batch.inputs.end()) {
    throw std::logic_error("batch: brings no '" + name + "'");
  }
  return *input;
}

}  // namespace

MicroBatch micro_batch(
    const Documents& packed,
    const Model& model,
    std::vector<Item> samples,
    const Layout& scored,
    int group_rank,
    std::vector<std::int64_t> numbers) {
  MicroBatch batch;
  batch.packed = packed;
  const Stream& stream = model.stream(model.parts.back().part->reads.front());
  const auto count = static_cast<std::int64_t>(samples.size());
  const std::int64_t rows = count == 0 ? 0 : scored.extent().rows / count;  // of a sample
  for (const std::int64_t row : natural_rows(stream, scored, group_rank)) {
    const TokenView labels = samples[idx(row / rows)].labels;
    batch.document_of.push_back(static_cast<std::int32_t>(row / rows));
    if (!labels.empty()) {
      batch.labels.push_back(std::max(labels[idx(row % rows)], -1));
    }
  }
  batch.samples = std::move(samples);
  batch.sample_numbers = std::move(numbers);
  batch.inputs = model.inputs();
  return batch;
}

void copy_input(
    const MicroBatch& batch,
    const std::string& name,
    const Layout& layout,
    int group_rank,
    const at::Tensor& piece,
    Interval columns) {
  for_each_held(
      input_of(batch, name),
      std::ssize(batch.samples),
      layout,
      group_rank,
      piece,
      [&](std::int64_t s, std::vector<Piece> held, const at::Tensor& to) {
        for (Interval& run : held.back()) {
          run = {run.begin + columns.begin, run.end + columns.begin};
        }
        batch.samples[idx(s)].inputs->at(name).copy(held, to);
      });
}

void keep_prediction(
    const MicroBatch& batch,
    const std::string& name,
    const Layout& layout,
    int group_rank,
    const at::Tensor& piece) {
  for_each_held(
      input_of(batch, name),
      std::ssize(batch.predictions),
      layout,
      group_rank,
      piece,
      [&](std::int64_t s, const std::vector<Piece>& held, const at::Tensor& from) {
        for_each_run(
            batch.predictions[idx(s)],
            from,
            held,
            [](const at::Tensor& whole, const at::Tensor& own) { whole.copy_(own); });
      });
}

LossSums loss_sums(const MicroBatch& batch, const at::Tensor& losses, std::int64_t numbers_a_row) {
  LossSums sums;
  sums.losses.resize(batch.packed.lengths.size());
  sums.counts.resize(batch.packed.lengths.size());
  if (!losses.defined()) {
    return sums;
  }
  const auto* loss = losses.const_data_ptr<double>();
  for (std::size_t row = 0; row < batch.document_of.size(); ++row) {
    if (batch.labels.empty() || batch.labels[row] >= 0) {
      const auto document = idx(batch.document_of[row]);
      sums.losses[document] += loss[row];
      sums.counts[document] += numbers_a_row;
    }
  }
  return sums;
}

}  // namespace paradyse
