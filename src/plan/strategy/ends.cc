// What is in no layer: embedding, the masked-LM head's transform, and head.
#include "paradyse/plan/writer.h"

namespace paradyse {

Program embedding_program(const Task& task) {
  Writer w(task, embedding_weights(*task.model, task.domain), "gather", /*has_input=*/false);
  ValueId x = w.embed();
  if (!w.weights().vectors.empty()) {
    x = w.norm(x);
  }
  return w.finish(w.dropout(x, task.model->embedding_dropout));
}

Program transform_program(const Task& task) {
  Writer w(task, transform_weights(*task.model, task.domain), "gather");
  const ValueId stack = w.gather();
  const ValueId h = w.linear(
      w.input(), {stack}, w.terms(stack, w.weights().rows("dense")), "h", w.layout(w.input()));
  return w.finish(w.norm(w.activation(w.bias(h, Role::in_bias))));
}

Program head_program(const Task& task, bool keep) {
  Writer w(task, head_weights(*task.model, task.domain), "gather");
  const bool normed = !w.weights().vectors_of(Role::norm).empty();
  return w.cross_entropy(normed ? w.norm(w.input()) : w.input(), keep);
}

}  // namespace paradyse
