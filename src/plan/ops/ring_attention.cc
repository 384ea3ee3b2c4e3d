// Ring attention (Liu et al. 2023): (q, kv) -> o, l, the same as attention.cc, where a rank has the
// queries of its own tokens and keys and values go round a ring of ranks.
//
// q [T, heads D], kv [T, 2 heads D], o like q, l one column a head; all placed by tokens.  What a
// rank's queries give with one block is merged with what they gave before, by l:
//
//   l = log(e^l1 + e^l2)    o = o1 e^(l1 - l) + o2 e^(l2 - l)
#include "src/plan/ops/attention.h"
#include "src/plan/ops/needs.h"
#include "src/plan/ops/ring.h"

namespace paradyse {
namespace {

Work ring_attention_work(const OpView& view) {
  return attention_work(view, blocks_by_hop(view), 5);
}

std::int64_t ring_attention_workspace(const OpView& view) {
  const auto tile = [&](int hop) {
    return attention_bytes(
        view,
        ring_blocks(view.program, view.op, view.seat.group_rank, hop),
        /*rounds=*/false);
  };
  return ring_bytes(view, tile) + unrounded_bytes(view);
}

}  // namespace

extern const OpTraits kRingAttention = {
    .name = "ring_attention",
    .meets = OpTraits::Meets::group,
    .rings = 1,
    .core = true,
    .needs = needs_operands_and_results,
    .exchanges = ring_exchanges,
    .work = ring_attention_work,
    .workspace = ring_attention_workspace};

}  // namespace paradyse
