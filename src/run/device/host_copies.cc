#include "src/run/device/host_copies.h"

#include "paradyse/run/accountant.h"
#include "src/run/device/device.h"

namespace paradyse {

// The pinned copy lives until the device has read it: torch's allocator sees to that.
at::Tensor to_device(const at::Tensor& host, c10::Device device) {
  if (device.is_cpu()) {
    return host;
  }
  const HostScope library_memory;
  const at::Tensor pinned = at::empty(host.sizes(), host.options().pinned_memory(true));
  return pinned.copy_(host).to(device, host.scalar_type(), /*non_blocking=*/true);
}

HostRead::HostRead(const at::Tensor& from) {
  if (!from.defined() || from.is_cpu()) {
    host_ = from;
    return;
  }
  const HostScope library_memory;
  host_ = at::empty(from.sizes(), from.options().device(c10::kCPU).pinned_memory(true));
  host_.copy_(from, /*non_blocking=*/true);
  here_ = Mark::here();
  if (here_ == nullptr) {  // a thread without streams of its own
    synchronize(from.device());
  }
}

const at::Tensor& HostRead::get() {
  if (here_ != nullptr) {
    Mark::reached(here_);
    here_.reset();
  }
  return host_;
}

}  // namespace paradyse
