#include "src/run/device/through_aten.h"

#include <atomic>
#include <cstdlib>

namespace paradyse {
namespace {

std::atomic<bool>& chosen() {
  static std::atomic<bool> on{std::getenv("PARADYSE_ATEN_KERNELS") != nullptr};
  return on;
}

}  // namespace

bool aten_kernels() { return chosen().load(std::memory_order_relaxed); }
void use_aten_kernels(bool on) { chosen().store(on); }

}  // namespace paradyse
