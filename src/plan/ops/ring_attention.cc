// Ring attention (Liu et al. 2023): (q, kv) -> o, l, the same as attention.cc, where a rank has the
// queries of its own tokens and keys and values go round a ring of ranks.
//
// q [T, heads D], kv [T, 2 heads D], o like q, l one column a head; all placed by tokens.  What a
// rank's queries give with one block is merged with what they gave before, by l:
//
//   l = log(e^l1 + e^l2)    o = o1 e^(l1 - l) + o2 e^(l2 - l)
//
// A mask of keys does not go round: the batch brings all of it to every rank.
#include "src/plan/ops/attention.h"
#include "src/plan/ops/masks.h"
#include "src/plan/ops/needs.h"
#include "src/plan/ops/ring.h"

namespace paradyse {
namespace {

Work ring_attention_work(const OpView& view) {
  return attention_work(view, blocks_by_hop(view), 5);
}

std::int64_t ring_attention_workspace(const OpView& view) {
  const Layout& keys = view.value(keys_of(view.op)).layout;
  // beside the mask of whole lines that of the keys that are here
  const auto tile = [&](int hop) {
    OpView of_source = view;
    of_source.seat.group_rank = ring_source(view.program, view.op, view.seat.group_rank, hop);
    return mask_bytes(of_source, keys) +
           attention_bytes(
               view,
               ring_blocks(view.program, view.op, view.seat.group_rank, hop),
               /*rounds=*/false);
  };
  return ring_bytes(view, tile) + unrounded_bytes(view) + mask_bytes_of_lines(view, keys);
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
