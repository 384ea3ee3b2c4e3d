#include "src/run/kernels/kernels.h"

#include <atomic>
#include <cstdlib>

namespace paradyse {
namespace {

std::atomic<bool>& through_aten() {
  static std::atomic<bool> on{std::getenv("PARADYSE_ATEN_KERNELS") != nullptr};
  return on;
}

}  // namespace

bool cpu_through_aten() { return through_aten().load(std::memory_order_relaxed); }
void send_cpu_through_aten(bool on) { through_aten().store(on); }

const Kernels& kernels_for(c10::Device device) {
  if (device.is_cuda()) {
    return cuda_kernels();
  }
  return device.is_cpu() && !cpu_through_aten() ? cpu_kernels() : aten_kernels();
}

}  // namespace paradyse
