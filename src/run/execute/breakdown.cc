#include "src/run/execute/breakdown.h"

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"
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
  borders_.clear();
  if (has_streams()) {
    mark_ = TimedMark::here();
  } else {
    since_ = processor_seconds();
  }
}

Breakdown::Part Breakdown::enter(Part part) {
  if (has_streams()) {
    if (mark_.in_stream()) {  // else nothing is counted yet
      borders_.push_back({.before = now_, .mark = TimedMark::here()});
    }
  } else {
    const double now = processor_seconds();
    seconds_[idx(now_)] += now - since_;
    since_ = now;
  }
  const Part before = now_;
  now_ = part;
  return before;
}

void Breakdown::settle() {
  enter(now_);
  if (!borders_.empty()) {
    borders_.back().mark.wait();
  }
  for (const Border& border : borders_) {
    seconds_[idx(border.before)] += seconds_between(mark_, border.mark);
    mark_ = border.mark;
  }
  borders_.clear();
}

std::array<double, Breakdown::kParts> Breakdown::seconds() {
  settle();
  return seconds_;
}

}  // namespace paradyse
