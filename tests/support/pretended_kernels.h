// Kernels for the pretended device, as slow as what they get is short.
#pragma once

#include "src/run/kernels/kernels.h"

namespace paradyse::test {

// What GPUs have in torch and CPUs have not: products of narrow factors into a wide result,
// attention by flash and by cuDNN.  Linked in where this is called.
void register_pretended_kernels();

// aten_kernels(), but one call, by the loops of the CPU, of what a GPU has a kernel of ours for.
const Kernels& pretended_kernels();

}  // namespace paradyse::test
