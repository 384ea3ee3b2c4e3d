#include "src/run/kernels/kernels.h"

#include <atomic>

#include "src/run/kernels/switches.h"

namespace paradyse {
namespace {

std::atomic<bool>& through_aten() {
  static std::atomic<bool> on{switched("PARADYSE_ATEN_KERNELS", false)};
  return on;
}

std::atomic<const Kernels*>& of_other_devices() {
  static std::atomic<const Kernels*> table{&aten_kernels()};
  return table;
}

}  // namespace

bool cpu_through_aten() { return through_aten().load(std::memory_order_relaxed); }
void send_cpu_through_aten(bool on) { through_aten().store(on); }

void use_kernels_of_other_devices(const Kernels& table) { of_other_devices().store(&table); }

const Kernels& kernels_for(c10::Device device) {
  if (device.is_cuda()) {
    return cuda_kernels();
  }
  if (device.is_cpu()) {
    return cpu_through_aten() ? aten_kernels() : cpu_kernels();
  }
  return *of_other_devices().load(std::memory_order_relaxed);
}

}  // namespace paradyse
