#include "src/run/execute/breakdown.h"

#include <ctime>

#include "paradyse/plan/index.h"
#include "paradyse/plan/op_traits.h"

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

double Breakdown::processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
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
