#include "src/run/execute/breakdown.h"

#include "paradyse/plan/index.h"
#include "paradyse/plan/op_traits.h"
#include "src/run/execute/processor_seconds.h"

namespace paradyse {

Breakdown::Part Breakdown::part_of(OpKind kind) {
  const OpTraits& of_kind = traits(kind);
  return of_kind.core ? attention : of_kind.products ? products : other;
}

const char* Breakdown::name(Part part) {
  static const char* const names[] = {
      "products", "attention", "other ops", "communication", "optimizer", "between"};
  return names[part];
}

void Breakdown::restart() {
  seconds_ = {};
  since_ = processor_seconds();
}

Breakdown::Part Breakdown::enter(Part part) {
  const double now = processor_seconds();
  seconds_[idx(now_)] += now - since_;
  since_ = now;
  const Part before = now_;
  now_ = part;
  return before;
}

std::array<double, Breakdown::kParts> Breakdown::seconds() {
  enter(now_);
  return seconds_;
}

}  // namespace paradyse
