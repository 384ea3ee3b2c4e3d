// Stands for this folder and for comm/nccl/ in a build without CUDA.
#include <stdexcept>

#include "paradyse/run/backend.h"
#include "src/run/device/device.h"
#include "src/run/kernels/kernels.h"
#include "src/run/memory/device_blocks.h"

namespace paradyse {

bool cuda_is_built() { return false; }

std::string cuda_card_name(int) { return ""; }

void install_cuda_accounting() {}

const Kernels& cuda_kernels() { return aten_kernels(); }

void make_cuda_handles() {}

std::shared_ptr<Backend> nccl_backend(const GlooOptions&) {
  throw std::invalid_argument(
      "--backend nccl: this program was built without CUDA; build it with `make build-cuda` (it "
      "takes a CUDA 13 toolkit) and run build/cuda/paradyse, or take --backend local or gloo");
}

}  // namespace paradyse
