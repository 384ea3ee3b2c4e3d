// The libraries on top of CUDA, made ready before tensors fill the GPU.
#include <ATen/cuda/ATenCUDAGeneral.h>
#include <ATen/cuda/CUDAContextLight.h>

#include "paradyse/run/accountant.h"
#include "src/run/device/device.h"
#include "src/run/memory/device_blocks.h"
#include "src/run/memory/device_memory.h"

// As ATen declares it beside an include of cuDNN's header, which toolkits have not got.
struct cudnnContext;
namespace at::native {
TORCH_CUDA_CPP_API cudnnContext* getCudnnHandle();
}  // namespace at::native

namespace paradyse {

void make_cuda_handles() {
  const HostScope uncounted;  // workspaces stay with their stream, whoever computes there later
  naming_lack([] {
    at::cuda::getCurrentCUDABlasHandle();  // and its workspace for the stream
    at::cuda::getCurrentCUDABlasLtHandle();
    at::cuda::getCUDABlasLtWorkspace();
    try {
      at::native::getCudnnHandle();
    } catch (const c10::Error& error) {  // of another kind: whoever needs cuDNN is told
      if (tells_lack(error.what_without_backtrace())) {
        throw;
      }
    }
  });
}

}  // namespace paradyse
