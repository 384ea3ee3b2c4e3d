#include "src/plan/cost/memory_signature.h"

#include <cstddef>
#include <set>

namespace paradyse {

std::vector<std::int64_t> memory_signature(
    const Timeline& timeline, Seat seat, Precision precision) {
  std::vector<std::int64_t> numbers;
  std::set<const ScheduledPart::Body*> seen;
  for (const ScheduledPart& part : timeline) {
    if (!seen.insert(part.body.get()).second) {
      continue;
    }
    const Program& program = part.program();
    for (std::size_t v = 0; v < program.values.size(); ++v) {
      numbers.push_back(bytes(program, static_cast<ValueId>(v), seat, precision));
    }
    for (const Op& op : program.ops) {
      for (const Phase phase : {Phase::forward, Phase::adjoint}) {
        numbers.push_back(workspace_bytes({program, op, seat, phase, precision}));
      }
      for (const Half half : {Half::operands, Half::weights}) {
        numbers.push_back(workspace_bytes({program, op, seat, Phase::adjoint, precision, half}));
      }
    }
  }
  return numbers;
}

}  // namespace paradyse
