// The devices that ranks compute on: the CPU, or CUDA GPUs in a build with them.
#pragma once

#include <memory>
#include <string>

#include <ATen/ATen.h>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/model_shape.h"

namespace paradyse {

// This build has CUDA in it (preset `cuda`).
bool cuda_is_built();
// GPUs that this process sees; 0 in a build without CUDA.
int cuda_devices();

// "cpu" or "cuda": the GPU that is current, the first one unless a backend chose another.  Throws
// std::invalid_argument saying what to do for another name, in a build without CUDA and where no
// GPU is seen.
c10::Device device_named(const std::string& name);

// In which a model is computed there, in elements of this type.
Tiles tiles_for(c10::Device device, const ModelShape& model, Dtype dtype);

// Waits until `device` has done what this thread gave it.  The CPU always has.
void synchronize(c10::Device device);

// While it lives, what this thread computes on `device` runs in a stream of its own.  On the CPU
// nothing changes.
class DeviceScope {
 public:
  explicit DeviceScope(c10::Device device);
  ~DeviceScope();  // post: the device has done it all
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paradyse
