#include "src/plan/ops/masks.h"

namespace paradyse {

std::int64_t mask_bytes(const OpView& view, const Layout& rows) {
  return view.op.mask.empty()
             ? 0
             : rows.with_columns(1).elements(view.seat.group_rank) * view.precision.statistic;
}

std::int64_t summed_size(const Program& program, const Op& op) {
  const auto found = program.documents.dims.find(op.along);
  return found == program.documents.dims.end() ? 0 : found->second;
}

std::int64_t mask_bytes_of_lines(const OpView& view, const Layout& rows) {
  return view.op.mask.empty() ? 0 : mask_bytes(view, rows.cut(view.op.along, {}));
}

}  // namespace paradyse
