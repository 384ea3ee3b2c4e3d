// MegatronTS: tensor parallelism with sequence parallelism (Korthikanti et al. 2022); weights held.
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

Program build_megatron_ts(const Task& task) {
  const PartShape& shape = task.shape();
  const int p = task.documents.ranks();
  const std::int64_t D = shape.head_dim;
  Writer w(task);
  const std::vector<Heads> heads = own_heads(shape, p);
  if (!shape.pair.empty()) {
    throw std::invalid_argument(
        task.part->name +
        ": 'MegatronTS' holds only the weights of its own heads, but a bias of attention from '" +
        shape.pair + "' needs them on the rank that has its rows: take a strategy that gathers");
  }

  // A rank's own rows of k and v are what its queries read only where p divides K; else all ranks
  // gather k and v and take the heads they need.
  const bool own_keys = shape.kv_heads % p == 0;
  const ValueId stack = w.hold();
  std::vector<ValueId> stacks = {stack};
  if (!own_keys) {
    stacks.push_back(w.gather({w.weights().between("k", "v")}));
  }
  std::vector<std::vector<Term>> in_terms;
  std::vector<std::vector<Term>> gate_terms;
  std::vector<std::vector<Term>> out_terms;
  for (int r = 0; r < p; ++r) {
    const Heads& h = heads[idx(r)];
    const auto held = [&](const char* first, const char* last) {
      return w.runs(stack, w.held(first, last, r), r);
    };
    if (own_keys) {
      in_terms.push_back(held("q", "v"));
    } else {
      const auto shared = [&](const char* matrix) {
        const Interval rows{h.key.begin * D, h.key.end * D};
        return w.term(stacks[1], w.weights().rows(matrix, rows), r, 2);
      };
      in_terms.push_back({held("q", "q").front(), shared("k"), shared("v")});
    }
    if (shape.gated_heads) {
      gate_terms.push_back(held("gate", "gate"));
    }
    out_terms.push_back(held("o", "o"));
  }

  const ValueId xn = w.normed_input();
  const Layout all = w.lined_up(w.layout(xn).whole());
  const ValueId xg = w.redistribute(xn, all, "xg", task.option(kKeepOption, 0) == 0);
  const ValueId qkv = w.qkv(
      xg,
      stacks,
      in_terms,
      heads,
      "qkv",
      all.with_columns(qkv_width(shape), qkv_columns(shape, heads)));
  const Layout of_heads = all.with_columns(shape.heads * D, output_columns(shape, heads));
  ValueId o = w.attention({qkv}, heads, of_heads);
  if (shape.gated_heads) {
    o = w.gate(o, w.bias(w.linear(xg, {stack}, gate_terms, "g", of_heads), Role::gate));
  }
  const ValueId y = w.linear_transposed(o, stack, out_terms, all.sum());
  return w.residual(w.added_up(y, w.layout(w.input()), "y_T"));
}

}  // namespace

Strategy megatron_ts() {
  return {
      .kind = "attention",
      .name = "MegatronTS",
      .verb = Verb::hold,
      .build = build_megatron_ts,
      .options = {keep_gathered_option()},
      .summary =
          "each rank has its own heads over the whole sequence; weights are tensor parallel"};
}

}  // namespace paradyse
