#include "src/plan/strategy/attention/places.h"

#include <utility>

#include "src/plan/strategy/table.h"

namespace paradyse {

Program attention_at(Writer& w, const PartShape& shape, const AttentionPlaces& places) {
  const auto& [own, at, heads] = places;
  const ValueId stack = w.gather();
  const ValueId xn = w.redistribute(w.normed_input(), own.with_columns(shape.hidden), "xn_in");
  const ValueId qkv_own = w.qkv(
      xn,
      {stack},
      w.terms(stack, w.weights().between("q", "v")),
      all_heads(shape, w.ranks()),
      "qkv_T",
      own.with_columns(qkv_width(shape)));
  const ValueId qkv = w.redistribute(
      qkv_own, at.with_columns(qkv_width(shape), qkv_columns(shape, heads)), "qkv_N");
  const std::int64_t width = shape.heads * shape.head_dim;
  const Layout of_heads = at.with_columns(width, output_columns(shape, heads));
  const ValueId bias = w.pair_bias(xn, stack, of_heads, heads);
  const ValueId o_N = w.attention({qkv}, heads, of_heads, bias);
  const ValueId o = w.gated_heads(w.redistribute(o_N, own.with_columns(width), "o_T"), xn, stack);
  const ValueId y = w.linear_transposed(
      o, stack, w.terms(stack, w.weights().rows("o")), own.with_columns(shape.hidden));
  return w.residual(w.redistribute(y, w.layout(w.input()), "y_T"));
}

Strategy along_a_dim(Strategy strategy) {
  strategy.kind = kAxialAttention;
  return strategy;
}

}  // namespace paradyse
