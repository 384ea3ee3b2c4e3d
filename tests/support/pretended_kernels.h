// What GPUs have in torch and CPUs have not, for the pretended device: products of narrow factors
// into a wide result, attention by flash and by cuDNN.  Plain sums in float32, as slow as they are
// short.
#pragma once

namespace paradyse::test {

// Linked in where this is called.
void register_pretended_kernels();

}  // namespace paradyse::test
