// The devices that ranks compute on: the CPU, or CUDA GPUs in a build with them.
#pragma once

#include <memory>
#include <string>

#include <ATen/ATen.h>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/model.h"

namespace paradyse {

// This build has CUDA in it (preset `cuda`).
bool cuda_is_built();
// What the driver calls a GPU.
std::string cuda_card_name(int index);
// GPUs that this process sees; 0 in a build without CUDA.
int cuda_devices();
// The newest CUDA that the driver takes, 12040 for 12.4; 0 without a driver or in a build without
// CUDA.
int cuda_of_driver();
// Says that a driver of this CUDA is too old for the program, and what to do; "" where it is not.
std::string driver_too_old(int cuda);

// Handles and workspaces of cuBLAS and cuDNN for this thread and its current stream: in a full GPU
// they could not be made.  No accountant counts them.  Throws OutOfMemory.  Without CUDA nothing.
void make_cuda_handles();

// "cpu" or "cuda": the GPU that is current, the first one unless a backend chose another.  Throws
// std::invalid_argument saying what to do for another name, in a build without CUDA and where no
// GPU is seen.
c10::Device device_named(const std::string& name);

// In which a model is computed there, in elements of this type.
Tiles tiles_for(c10::Device device, const Model& model, Dtype dtype);

// `device` with a number: that of the one that is current on this thread, where it has none.
c10::Device numbered(c10::Device device);
// Makes a numbered device the current one of this thread; a new thread begins with the first.
void make_current(c10::Device device);
// What its driver calls the GPU; "" of the CPU.
std::string card_name(c10::Device device);

// What its allocator keeps for later goes back to the device, for whoever asks it next.
void release_cached(c10::Device device);

// Waits until `device` has done what this thread gave it.  The CPU always has.
void synchronize(c10::Device device);

// While it lives, `device` is this thread's current one, and what the thread computes there runs in
// a stream of its own, for which libraries are ready (make_cuda_handles()).  On the CPU nothing
// changes.
class DeviceScope {
 public:
  explicit DeviceScope(c10::Device device);
  ~DeviceScope();  // post: the device has done it all
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  void leave();

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paradyse
