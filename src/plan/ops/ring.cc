#include "src/plan/ops/ring.h"

#include <algorithm>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

// Of the block that is here at a hop; after the last one a rank's own is back.
struct RingBlock {
  std::int64_t here = 0;     // elements
  std::int64_t goes_on = 0;  // of those
  std::int64_t sums = 0;     // of its gradient, as they come round
  std::int64_t packed = 0;   // a copy of what goes on, where it is not one run of rows
};

// [hop] Up to the one at which a rank's own is back.
std::vector<RingBlock> ring_blocks_of(const OpView& view) {
  const Program& program = view.program;
  const int p = ring_size(program, view.op);
  std::vector<RingBlock> blocks;
  blocks.reserve(idx(p) + 1);
  for (int hop = 0; hop <= p; ++hop) {
    const int owner = ring_source(program, view.op, view.seat.group_rank, hop);
    const Extent own = local_extent(program, view.op.in[1], {.group_rank = owner});
    const RingPass pass = ring_pass(program, view.op, owner);
    const std::int64_t round = size(pass.rows) * own.cols;
    RingBlock& block = blocks.emplace_back();
    block.here = hop == 0 || hop == p ? own.elements() : hop <= pass.hops ? round : 0;
    block.goes_on = hop < pass.hops ? round : 0;
    block.sums = round;
    block.packed = hop == 0 && pass.hops > 0 && pass.rows.size() > 1 ? round : 0;
  }
  return blocks;
}

}  // namespace

int rings(const OpView& view) { return view.forward() ? traits(view.op.kind).rings : 1; }

std::vector<std::vector<AttentionBlock>> blocks_by_hop(const OpView& view) {
  const int size = ring_size(view.program, view.op);
  std::vector<std::vector<AttentionBlock>> hops;
  hops.reserve(idx(size));
  for (int hop = 0; hop < size; ++hop) {
    hops.push_back(ring_blocks(view.program, view.op, view.seat.group_rank, hop));
  }
  return hops;
}

std::vector<Exchange> ring_exchanges(const OpView& view) {
  const int p = ring_size(view.program, view.op);
  const std::vector<RingBlock> blocks = ring_blocks_of(view);
  std::vector<Exchange> hops;
  for (int hop = 0; hop < p; ++hop) {
    const RingBlock& block = blocks[idx(hop)];
    const auto hand_on = [&](std::int64_t elements, std::int64_t element_bytes) {
      hops.push_back(
          {.element_bytes = element_bytes,
           .sent = {.elements = elements, .messages = elements > 0 ? 1 : 0}});
    };
    for (int ring = 0; hop + 1 < p && ring < rings(view); ++ring) {
      hand_on(block.goes_on / rings(view), view.precision.activation);
    }
    if (!view.forward() && hop > 0) {  // the sums of their gradients
      hand_on(block.sums, view.precision.statistic);
    }
  }
  return hops;
}

std::int64_t ring_bytes(const OpView& view, const std::function<std::int64_t(int hop)>& tile) {
  const int p = ring_size(view.program, view.op);
  const std::vector<RingBlock> blocks = ring_blocks_of(view);
  const auto block = [&](int hop) { return blocks[idx(hop)].here / rings(view); };
  const auto sums_of = [&](int hop) { return blocks[idx(hop)].sums; };
  const std::int64_t activation = view.precision.activation;
  const std::int64_t statistic = view.precision.statistic;
  const std::int64_t first = rings(view) > 1 ? block(0) : 0;  // half of a rank's own is a copy
  std::int64_t most = 0;
  for (int hop = 0; hop < p; ++hop) {
    const std::int64_t keys = ((hop > 0 ? block(hop) : first) + (hop + 1 < p ? block(hop + 1) : 0) +
                               blocks[idx(hop)].packed / rings(view)) *
                              activation;
    if (view.forward()) {
      most = std::max(most, keys + tile(hop));
      continue;
    }
    const std::int64_t sums = (hop > 0 ? sums_of(hop) : 0) * statistic;
    const std::int64_t before = (hop > 1 ? sums_of(hop - 1) : 0) * statistic;
    most = std::max(most, keys + sums + std::max(tile(hop), before));
  }
  if (!view.forward() && p > 1) {
    most = std::max(most, (sums_of(p - 1) + sums_of(p)) * statistic);
  }
  return most;
}

std::int64_t unrounded_bytes(const OpView& view) {
  if (!view.precision.narrow()) {
    return 0;
  }
  const std::int64_t q = view.extent(view.op.in[0]).elements();
  const std::int64_t kv = view.extent(view.op.in[1]).elements();
  return (view.forward() ? q : q + kv) * view.precision.statistic;
}

}  // namespace paradyse
