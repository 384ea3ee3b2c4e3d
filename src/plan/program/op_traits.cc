#include "paradyse/plan/detail/op_traits.h"

#include "paradyse/plan/detail/index.h"

namespace paradyse {

std::int64_t bytes(const Program& program, ValueId value, Seat seat, Precision precision) {
  const Value& v = program.values[idx(value)];
  return local_extent(program, value, seat).elements() *
         (v.element == Element::statistic ? precision.statistic : precision.activation);
}

Work& Work::operator+=(const Work& other) {
  matmul_flops += other.matmul_flops;
  attention_flops += other.attention_flops;
  touched_bytes += other.touched_bytes;
  operand_bytes += other.operand_bytes;
  calls += other.calls;
  launches += other.launches;
  return *this;
}

bool adds_to_none(const Op& /*op*/, std::size_t /*operand*/) { return false; }

std::vector<ValueId> needs_nothing(const Op& /*op*/) { return {}; }

std::vector<Exchange> sends_nothing(const OpView& /*view*/) { return {}; }

Work touches_operands(const OpView& view) {
  double touched = 0;
  for (const auto* values : {&view.op.in, &view.op.out}) {
    for (const ValueId value : *values) {
      touched += static_cast<double>(view.bytes(value));
    }
  }
  return {.touched_bytes = view.forward() ? touched : 2 * touched, .calls = 1, .launches = 1};
}

bool is_given(const Program& program, ValueId value) {
  const int maker = program.values[idx(value)].maker;
  if (maker < 0) {
    return false;
  }
  const Op& op = program.ops[idx(maker)];
  return traits(op.kind).given || (op.frozen && traits(op.kind).weights);
}

std::int64_t no_workspace(const OpView& /*view*/) { return 0; }

}  // namespace paradyse
