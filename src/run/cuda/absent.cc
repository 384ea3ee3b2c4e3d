// Stands for this folder in a build without CUDA.
#include "src/run/device/device.h"
#include "src/run/memory/device_blocks.h"

namespace paradyse {

bool cuda_is_built() { return false; }

std::string cuda_card_name(int) { return ""; }

int cuda_of_driver() { return 0; }

void install_cuda_accounting() {}

void make_cuda_handles() {}

}  // namespace paradyse
