// x [T, H]: for each token the sum of the rows that its id, position and segment name.
//
// Words.  The *table* has the rows of ids, positions and segments under one another; a *tile* is
// some of its rows, gathered from the weight domain, used and let go.  A *lookup* names a row for
// each token: ids, then positions, then segments.  *Hits* are the tokens whose row is in the tile.
// Adjoint: tile by tile, the gradient of a row is the sum of those of the tokens that name it,
// which the owner of the row adds to its own.
#include <optional>
#include <stdexcept>
#include <type_traits>

#include <ATen/Dispatch.h>

#include "paradyse/run/accountant.h"
#include "src/run/device/through_aten.h"
#include "src/run/kernels/aten/aten_kernels.h"
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
  return {tile.to().elements(frame.rank->seat.domain_rank) / H, H};
}

// Which tokens look up a row of each tile, and which row of it.  All tiles' go to the device at
// once, so that the host waits no more often for many of them.
class Hits {
 public:
  // `gradient`: without the rows that get none.
  Hits(
      const Frame& frame,
      const Op& op,
      const std::vector<Lookup>& all,
      bool gradient,
      c10::Device device)
      : lookups_(all.size()) {
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
    tokens_ = aten::indices(tokens, device);
    rows_ = aten::indices(rows, device);
  }

  // Calls body(tokens, rows) for stretches of what `lookup` finds in `tile`.
  template <typename Body>
  void for_each(std::size_t tile, std::size_t lookup, std::int64_t H, Body body) const {
    const HostScope library_memory;
    const std::size_t i = tile * lookups_ + lookup;
    aten::for_rows(begins_[i + 1] - begins_[i], H, [&](std::int64_t begin, std::int64_t n) {
      body(tokens_.narrow(0, begins_[i] + begin, n), rows_.narrow(0, begins_[i] + begin, n));
    });
  }

 private:
  std::size_t lookups_;
  std::vector<std::int64_t> begins_;  // [tile * lookups + lookup]
  at::Tensor tokens_;
  at::Tensor rows_;
};

}  // namespace

void embed(Frame& frame, const Op& op) {
  const at::Tensor x_TH = frame.make(op.out[0]);
  const std::vector<Lookup> all = lookups(frame);
  const std::int64_t H = x_TH.size(1);
  std::optional<Hits> hits;
  if (through_aten(x_TH)) {
    hits.emplace(frame, op, all, /*gradient=*/false, x_TH.device());
  }
  std::int64_t first = 0;
  for (std::size_t v = 0; v < op.copies.size(); ++v) {
    const Redistribution& tile = op.copies[v];
    const Extent extent = extent_of(frame, op, tile);
    const at::Tensor table = frame.empty(extent.rows, extent.cols, frame.activation);
    frame.rank->domain
        ->exchange(frame.parameters->stack, table, tile.table(), frame.call("embed", true))
        ->wait();
    if (hits) {
      for (std::size_t l = 0; l < all.size(); ++l) {
        hits->for_each(v, l, H, [&](const at::Tensor& tokens, const at::Tensor& rows) {
          const at::Tensor found = table.index_select(0, rows);
          // a token looks up a row once: sums are in a fixed order
          if (l == 0) {
            at::Tensor(x_TH).index_copy_(0, tokens, found);
          } else {
            at::Tensor(x_TH).index_add_(0, tokens, found);
          }
        });
      }
      continue;
    }
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, frame.activation, "embed", [&] {
      const auto* entries = table.const_data_ptr<scalar_t>();
      auto* x = x_TH.mutable_data_ptr<scalar_t>();
      for (const Lookup& lookup : all) {
        const bool sets = &lookup == all.data();  // ids are looked up first, in the first rows
        for (std::size_t t = 0; t < lookup.rows.size(); ++t) {
          const std::int64_t row = lookup.rows[t] - first;
          if (row < 0 || row >= extent.rows) {
            continue;
          }
          scalar_t* to = x + static_cast<std::int64_t>(t) * H;
          for (std::int64_t i = 0; i < H; ++i) {
            to[i] = sets ? entries[row * H + i] : to[i] + entries[row * H + i];
          }
        }
      }
    });
    first += extent.rows;
  }
}

void embed_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad_x_TH = frame.gradient(op.out[0]);
  const std::vector<Lookup> all = lookups(frame);
  const std::int64_t H = grad_x_TH.size(1);
  std::optional<Hits> hits;
  if (through_aten(grad_x_TH)) {
    hits.emplace(frame, op, all, /*gradient=*/true, grad_x_TH.device());
  }
  std::int64_t first = 0;
  for (std::size_t v = 0; v < op.copies.size(); ++v) {
    const Redistribution& tile = op.copies[v];
    const Extent extent = extent_of(frame, op, tile);
    at::Tensor grad_table = frame.empty(extent.rows, extent.cols, frame.statistic).zero_();
    const auto scatter = [&] {
      frame.rank->domain
          ->exchange_sum(
              grad_table,
              frame.parameters->stack_grad,
              tile.table(),
              true,
              frame.call("embed adjoint"))
          ->wait();
      first += extent.rows;
    };
    if (hits) {
      for (std::size_t l = 0; l < all.size(); ++l) {
        hits->for_each(v, l, H, [&](const at::Tensor& tokens, const at::Tensor& rows) {
          // sorts by row where that is needed to add in a fixed order, as index_add_ does not
          grad_table.index_put_(
              {rows}, grad_x_TH.index_select(0, tokens).to(frame.statistic), true);
        });
      }
      scatter();
      continue;
    }
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kBFloat16, at::kHalf, frame.activation, "embed_adjoint", [&] {
          using Sum = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
          const auto* grads = grad_x_TH.const_data_ptr<scalar_t>();
          auto* sums = grad_table.mutable_data_ptr<Sum>();
          for (const Lookup& lookup : all) {
            for (std::size_t t = 0; t < lookup.rows.size(); ++t) {
              const std::int64_t row = lookup.rows[t] - first;
              if (row < 0 || row >= extent.rows || lookup.rows[t] == lookup.no_gradient) {
                continue;
              }
              const scalar_t* from = grads + static_cast<std::int64_t>(t) * H;
              for (std::int64_t i = 0; i < H; ++i) {
                sums[row * H + i] += static_cast<Sum>(from[i]);
              }
            }
          }
        });
    scatter();
  }
}

}  // namespace paradyse::ops
