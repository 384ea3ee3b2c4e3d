// The table of GPUs: ATen's operations, and launches of our own kernels where ATen takes several
// passes over memory.  With PARADYSE_CUDA_KERNELS=0 in the environment all are ATen's.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "src/run/kernels/cuda/launches.h"
#include "src/run/kernels/switches.h"

namespace paradyse {

// A launch goes to the thread's device, which then is the tensor's.
cuda::Stream cuda::of_tensors::stream_of(const at::Tensor& tensor) {
  c10::cuda::set_device(tensor.device().index());
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}
void cuda::of_tensors::check_launches() { C10_CUDA_KERNEL_LAUNCH_CHECK(); }

const Kernels& cuda_kernels() {
  static const Kernels table = [] {
    Kernels all = aten_kernels();
    return switched("PARADYSE_CUDA_KERNELS", true) ? cuda::of_tensors::with_our_launches(all) : all;
  }();
  return table;
}

}  // namespace paradyse
