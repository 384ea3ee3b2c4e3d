#include "src/plan/ops/ring.h"

#include <algorithm>

#include "paradyse/plan/index.h"

namespace paradyse {
namespace {

// Elements of the block that is here at a hop; after the last one a rank's own is back.
std::int64_t block_elements(const OpView& view, int hop) {
  const int source = ring_source(view.program, view.op, view.seat.group_rank, hop);
  return local_extent(view.program, view.op.in[1], {.group_rank = source}).elements();
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
  std::vector<Exchange> hops;
  for (int hop = 0; hop < p; ++hop) {
    const std::int64_t block = block_elements(view, hop);
    const auto hand_on = [&](std::int64_t elements, std::int64_t element_bytes) {
      hops.push_back(
          {.element_bytes = element_bytes,
           .sent = {.elements = elements, .messages = block > 0 ? 1 : 0}});
    };
    for (int ring = 0; hop + 1 < p && ring < rings(view); ++ring) {
      hand_on(block / rings(view), view.precision.activation);
    }
    if (!view.forward() && hop > 0) {  // the sums of their gradients
      hand_on(block, view.precision.statistic);
    }
  }
  return hops;
}

std::int64_t ring_bytes(const OpView& view, const std::function<std::int64_t(int hop)>& tile) {
  const int p = ring_size(view.program, view.op);
  const auto block = [&](int hop) { return block_elements(view, hop) / rings(view); };
  const std::int64_t activation = view.precision.activation;
  const std::int64_t statistic = view.precision.statistic;
  const std::int64_t first = rings(view) > 1 ? block(0) : 0;  // half of a rank's own is a copy
  std::int64_t most = 0;
  for (int hop = 0; hop < p; ++hop) {
    const std::int64_t keys =
        ((hop > 0 ? block(hop) : first) + (hop + 1 < p ? block(hop + 1) : 0)) * activation;
    if (view.forward()) {
      most = std::max(most, keys + tile(hop));
      continue;
    }
    const std::int64_t sums = (hop > 0 ? block(hop) : 0) * statistic;
    const std::int64_t before = (hop > 1 ? block(hop - 1) : 0) * statistic;
    most = std::max(most, keys + sums + std::max(tile(hop), before));
  }
  if (!view.forward() && p > 1) {
    most = std::max(most, (block(p - 1) + block(0)) * statistic);
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
