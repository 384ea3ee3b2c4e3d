// METP (the memory-efficient tensor parallelism of ParaDySe): weights pass by, a head group at a
// time.
//
// For each group all ranks get its rows of q, k, v and o, make its queries, keys and values of
// their own tokens, run its ring attention together, and add its share of the output projection.
// Going back queries, keys and values are made again, so what is saved is the input, its norm, the
// attention output and its log-sum-exp, and what is transient is a group's.
#include <algorithm>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

std::string too_many_groups(std::int64_t groups, const Task& task) {
  if (task.part != nullptr && task.shape().qk_norm_wide && groups > 1) {
    return "the model's QK norm is over all heads of a token: only 1 is possible";
  }
  return task.part == nullptr || groups <= task.shape().kv_heads
             ? ""
             : "there are at most as many groups as the model's " +
                   std::to_string(task.shape().kv_heads) + " key/value heads";
}

std::int64_t most_groups(const Task& task) {
  return task.shape().qk_norm_wide ? 1 : task.shape().kv_heads;
}

std::int64_t default_groups(const Task& task) {
  return std::min<std::int64_t>(task.documents.ranks(), most_groups(task));
}

// From the fewest collectives to the least room.
std::vector<std::int64_t> other_groups(const Task& task) {
  std::vector<std::int64_t> others;
  for (const std::int64_t groups :
       {std::int64_t{1}, 2 * default_groups(task), task.shape().kv_heads}) {
    if (groups <= most_groups(task) && groups != default_groups(task) &&
        std::ranges::find(others, groups) == others.end()) {
      others.push_back(groups);
    }
  }
  return others;
}

Program build_metp(const Task& task) {
  const PartShape& shape = task.shape();
  const int p = task.documents.ranks();
  const std::int64_t D = shape.head_dim;
  const std::int64_t share = shape.heads / shape.kv_heads;
  const std::int64_t groups = task.option("head_groups", default_groups(task));
  Writer w(task);

  const ValueId xn = w.normed_input();
  w.recompute_from_here();
  ValueId y = -1;
  for (const Piece& keys : even_cuts(shape.kv_heads, static_cast<int>(groups))) {
    const std::int64_t k = size(keys);
    const std::int64_t head = keys.front().begin;
    const Heads mine{.query = {head * share, (head + k) * share}, .key = {head, head + k}};
    const auto rows = [&](const char* first, const char* last, Interval of) {
      return w.weights().between(first, last, {of.begin * D, of.end * D});
    };
    const WeightRows out = rows("o", "o", mine.query);
    const ValueId stack = w.gather({rows("q", "q", mine.query), rows("k", "v", mine.key), out});
    const auto [q, kv] = w.q_and_kv(xn, stack, mine);
    const ValueId o = w.ring_attention(q, kv, std::vector<Heads>(idx(p), mine));
    y = w.linear_transposed(o, stack, w.terms(stack, out), w.layout(w.input()), y);
  }
  return w.residual(y);
}

}  // namespace

Strategy metp() {
  return {
      .kind = "attention",
      .name = "METP",
      .verb = Verb::pass,
      .build = build_metp,
      .options =
          {{.name = "head_groups",
            .meaning = "METP: number of head groups that are streamed one after the other "
                       "(default: the lesser of ranks and key/value heads)",
            .why_not = too_many_groups,
            .candidates = other_groups}},
      .summary = "head groups one after the other, with a ring for each; weights are streamed"};
}

}  // namespace paradyse
