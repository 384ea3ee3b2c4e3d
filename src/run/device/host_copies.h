// Copies between host and device for which the host does not wait.
#pragma once

#include <ATen/ATen.h>

#include "src/run/device/streams.h"

namespace paradyse {

// A tensor of the host, where `device` has it; on the CPU itself.
at::Tensor to_device(const at::Tensor& host, c10::Device device);

// Numbers of a device that the host will want.
class HostRead {
 public:
  HostRead() = default;
  // Begins, after what this thread's current stream has to do; on the CPU there is nothing to do.
  explicit HostRead(const at::Tensor& from);

  // Waits until they are here.  Undefined where there was nothing to read.
  const at::Tensor& get();

 private:
  at::Tensor host_;
  MarkPtr here_;
};

}  // namespace paradyse
