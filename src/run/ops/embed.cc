// x [T, H]: for each token the sum of the rows that its id, position and segment name, times a
// scale.
//
// Words.  The *table* has the rows of ids, positions and segments under one another; a *tile* is
// some of its rows, gathered from the weight domain, used and let go.  A *lookup* names a row for
// each token: ids, then positions, then segments.  *Hits* are the tokens whose row is in the tile.
// Adjoint: tile by tile, the gradient of a row is the sum of those of the tokens that name it,
// which the owner of the row adds to its own.  A frozen table has none.
#include <algorithm>
#include <stdexcept>

#include "src/run/ops/frame.h"

namespace paradyse::ops {

namespace {

// What is looked up: for every token a row of the table.
struct Lookup {
  std::vector<std::int64_t> rows;  // [token]
  std::int64_t no_gradient = -1;   // the row that gets none
};

std::vector<Lookup> lookups(const Frame& frame) {
  const PartShape& shape = frame.program().shape;
  const MicroBatch& batch = *frame.batch;
  std::vector<Lookup> all(1);
  all[0].rows.assign(batch.ids.begin(), batch.ids.end());
  all[0].no_gradient = shape.padding_id;
  if (!shape.padding_in_documents &&
      std::ranges::find(batch.ids, shape.padding_id) != batch.ids.end()) {
    throw std::invalid_argument(
        "a document has the token " + std::to_string(shape.padding_id) +
        ", which is the model's padding (pad_token_id) and has no position of its own: documents "
        "are "
        "not padded here, so take it out of the data");
  }
  if (shape.positions > 0) {
    Lookup& positions = all.emplace_back();
    for (const std::int64_t position : batch.positions) {
      if (position >= shape.positions) {
        throw std::logic_error(
            "embed: position " + std::to_string(position) + " of " +
            std::to_string(shape.positions));
      }
      positions.rows.push_back(shape.vocab + shape.position_offset + position);
    }
  }
  if (shape.segments > 0) {
    all.push_back(
        {.rows = std::vector<std::int64_t>(batch.ids.size(), shape.vocab + shape.position_rows)});
  }
  return all;
}

// Of a tile of the table, which is as wide as x.
Extent extent_of(const Frame& frame, const Op& op, const Redistribution& tile) {
  const std::int64_t H = local_extent(frame.program(), op.out[0], frame.rank->seat).cols;
  return {tile.to().elements(place_in_domain(frame.program(), frame.rank->seat)) / H, H};
}

// Which tokens look up a row of each tile, and which row of it: made once for a micro-batch.
class Hits {
 public:
  // `gradient`: without the rows that get none.
  Hits(Frame& frame, const Op& op, bool gradient) {
    const std::vector<Lookup> all = lookups(frame);
    lookups_ = all.size();
    std::vector<std::int64_t> tokens;
    std::vector<std::int64_t> rows;
    std::int64_t first = 0;
    for (const Redistribution& tile : op.copies) {
      const std::int64_t count = extent_of(frame, op, tile).rows;
      for (const Lookup& lookup : all) {
        begins_.push_back(static_cast<std::int64_t>(tokens.size()));
        for (std::size_t t = 0; t < lookup.rows.size(); ++t) {
          const std::int64_t row = lookup.rows[t] - first;
          if (row >= 0 && row < count && !(gradient && lookup.rows[t] == lookup.no_gradient)) {
            tokens.push_back(static_cast<std::int64_t>(t));
            rows.push_back(row);
          }
        }
      }
      first += count;
    }
    begins_.push_back(static_cast<std::int64_t>(tokens.size()));
    // Both directions look up the same but for a row that gets no gradient.
    const bool other = gradient && frame.program().shape.padding_id >= 0;
    const std::vector<std::int64_t> which = {frame.part->weights, op.out[0], other ? 1 : 0};
    tokens_ = frame.numbers->of({BatchNumbers::Kind::looking_up, which}, [&] { return tokens; });
    rows_ = frame.numbers->of({BatchNumbers::Kind::looked_up, which}, [&] { return rows; });
  }

  // Calls body(tokens, rows, whether it is the first) for what each lookup finds in `tile`.
  template <typename Body>
  void for_each(std::size_t tile, Body body) const {
    for (std::size_t lookup = 0; lookup < lookups_; ++lookup) {
      const std::size_t i = tile * lookups_ + lookup;
      const std::int64_t count = begins_[i + 1] - begins_[i];
      if (count > 0) {
        body(tokens_.narrow(0, begins_[i], count), rows_.narrow(0, begins_[i], count), lookup == 0);
      }
    }
  }

 private:
  std::size_t lookups_ = 0;
  std::vector<std::int64_t> begins_;  // [tile * lookups + lookup]
  at::Tensor tokens_;
  at::Tensor rows_;
};

}  // namespace

void embed(Frame& frame, const Op& op) {
  const at::Tensor x_TH = frame.make(op.out[0]);
  const Hits hits(frame, op, /*gradient=*/false);
  for (std::size_t v = 0; v < op.copies.size(); ++v) {
    const Extent extent = extent_of(frame, op, op.copies[v]);
    const at::Tensor table = frame.empty(extent.rows, extent.cols, frame.activation);
    frame.rank->domain
        ->exchange(
            frame.parameters->stack,
            table,
            op.copies[v].table(),
            frame.call("embed", frame.stack_lasts()))
        ->wait();
    // Ids are looked up first, in the first rows, so that every token's row is set.
    hits.for_each(v, [&](const at::Tensor& tokens, const at::Tensor& rows, bool sets) {
      frame.kernels().look_up(x_TH, table, tokens, rows, /*add=*/!sets);
    });
  }
  if (const double scale = frame.program().shape.embedding_scale; scale != 1) {
    at::Tensor(x_TH).mul_(scale);
  }
}

void embed_adjoint(Frame& frame, const Op& op) {
  if (op.frozen) {
    return;
  }
  const at::Tensor grad_x_TH = frame.gradient(op.out[0]);
  const Hits hits(frame, op, /*gradient=*/true);
  for (std::size_t v = 0; v < op.copies.size(); ++v) {
    const Extent extent = extent_of(frame, op, op.copies[v]);
    const at::Tensor grad_table = frame.empty(extent.rows, extent.cols, frame.statistic).zero_();
    hits.for_each(v, [&](const at::Tensor& tokens, const at::Tensor& rows, bool /*sets*/) {
      frame.kernels().add_looked_up(grad_table, grad_x_TH, tokens, rows);
    });
    if (const double scale = frame.program().shape.embedding_scale; scale != 1) {
      at::Tensor(grad_table).mul_(scale);
    }
    frame.rank->domain
        ->exchange_sum(
            grad_table,
            frame.parameters->stack_grad,
            op.copies[v].table(),
            true,
            frame.call("embed adjoint"))
        ->wait();
  }
}

}  // namespace paradyse::ops
