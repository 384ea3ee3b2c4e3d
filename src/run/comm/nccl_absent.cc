// Stands for comm/nccl/ in a build without CUDA.
#include <stdexcept>

#include "paradyse/run/backend.h"

namespace paradyse {

std::shared_ptr<Backend> nccl_backend(const GlooOptions&) {
  throw std::invalid_argument(
      "--backend nccl: this program was built without CUDA; build it with `make build-cuda` (it "
      "takes a CUDA 13 toolkit) and run build/cuda/paradyse, or take --backend local or gloo");
}

}  // namespace paradyse
