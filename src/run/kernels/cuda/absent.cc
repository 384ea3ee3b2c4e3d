// Stands for this folder in a build without CUDA.
#include "src/run/kernels/kernels.h"

namespace paradyse {

const Kernels& cuda_kernels() { return aten_kernels(); }

}  // namespace paradyse
