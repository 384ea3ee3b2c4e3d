// What is in no layer: embedding, the masked-LM head's transform, and head.  One strategy each:
// tables come in vocabulary tiles.
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

Program build_embedding(const Task& task) {
  Writer w(task);
  ValueId x = w.embed();
  if (!w.weights().vectors.empty()) {
    x = w.norm(x);
  }
  return w.finish(w.dropout(x, task.shape().dropout));
}

Program build_transform(const Task& task) {
  Writer w(task);
  const ValueId stack = w.gather();
  const ValueId h = w.linear(
      w.normed_input(),
      {stack},
      w.terms(stack, w.weights().rows("dense")),
      "h",
      w.layout(w.input()));
  const Role after = task.shape().post_norm ? Role::norm : Role::added_norm;
  return w.finish(w.norm(w.activation(w.bias(h, Role::in_bias)), after));
}

Program build_head(const Task& task) {
  Writer w(task);
  const bool normed = !w.weights().vectors_of(Role::norm).empty();
  return w.cross_entropy(normed ? w.norm(w.input()) : w.input());
}

}  // namespace

Strategy embedding() { return end_strategy("embedding", build_embedding); }
Strategy transform() { return end_strategy("transform", build_transform); }
Strategy head() { return end_strategy("head", build_head); }

}  // namespace paradyse
