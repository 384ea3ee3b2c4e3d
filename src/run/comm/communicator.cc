#include "paradyse/run/communicator.h"

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/transfer.h"
#include "paradyse/run/accountant.h"
#include "src/run/comm/boxes.h"

namespace paradyse {

std::string Communicators::recover() {
  throw CommunicatorError("this backend cannot continue after a failure");
}

std::string to_string(const Call& call) {
  std::string text = call.layer >= 0 ? "layer " + std::to_string(call.layer) + " " : "";
  if (!call.part.empty()) {
    text += std::string(call.part) + " ";
  }
  return text + std::string(call.op);
}

void Communicator::all_reduce(const at::Tensor& tensor, const Call& call) {
  check_contiguous(tensor, call);
  const std::int64_t n = tensor.numel();
  const Layout pieces = matrix("rows", {n, 1}, even_cuts(n, size()));
  const Transfer table = transfer(pieces, pieces.whole(), size());
  const at::Tensor flat = tensor.view({n, 1});
  const MemoryScope scope(Category::communication, "all_reduce");
  const at::Tensor mine = at::empty({table.source[idx(rank())], 1}, tensor.options());
  exchange_sum(flat, mine, table, false, call)->wait();
  exchange(mine, flat, table, call)->wait();
}

}  // namespace paradyse
