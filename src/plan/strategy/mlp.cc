// The gated MLP (SwiGLU, Shazeer 2020) under either weight verb, and the two ends of the model.
#include "src/plan/strategy/writer.h"

namespace paradyse {

Program mlp_program(const Task& task, Verb verb) {
  const ModelShape& model = *task.model;
  const int p = task.tokens.ranks();
  Writer w(task, mlp_weights(model, task.domain), to_string(verb));
  const std::int64_t F = model.ffn;

  if (verb == Verb::gather) {
    const ValueId stack = w.gather();
    const ValueId h =
        w.linear(w.norm(w.input()), {stack}, same_terms(p, {0, 2 * F}), "h", w.by_tokens(), 2 * F);
    return w.residual(w.linear_transposed(
        w.swiglu(h, w.by_tokens()), stack, same_terms(p, {2 * F, 3 * F}), w.by_tokens()));
  }

  const Cuts width = even_cuts(F, p);
  Cuts gate_up(width.size());
  std::vector<std::vector<Term>> in_terms;
  std::vector<std::vector<Term>> out_terms;
  for (int r = 0; r < p; ++r) {
    for (const Interval rows : width[static_cast<std::size_t>(r)]) {
      append(gate_up[static_cast<std::size_t>(r)], rows);
      append(gate_up[static_cast<std::size_t>(r)], {F + rows.begin, F + rows.end});
    }
    in_terms.push_back(
        {{.rows = {w.weights().rows_of(0, r).begin, w.weights().rows_of(1, r).end}}});
    out_terms.push_back({{.rows = w.weights().rows_of(2, r)}});
  }
  const ValueId stack = w.hold();
  const ValueId xg = w.redistribute(w.norm(w.input()), replicate(), "xg", /*again=*/true);
  const ValueId h = w.linear(xg, {stack}, in_terms, "h", shard(1, gate_up), 2 * F);
  const ValueId y = w.linear_transposed(w.swiglu(h, shard(1, width)), stack, out_terms, partial());
  return w.residual(w.redistribute(y, w.by_tokens(), "y_T"));
}

Program embedding_program(const Task& task) {
  Writer w(task, embedding_weights(*task.model, task.domain), "gather", /*has_input=*/false);
  w.embed();
  return w.finish();
}

Program head_program(const Task& task, bool keep) {
  Writer w(task, head_weights(*task.model, task.domain), "gather");
  w.cross_entropy(w.norm(w.input()), keep);
  return w.finish();
}

}  // namespace paradyse
