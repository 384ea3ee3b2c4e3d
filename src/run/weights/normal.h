// Random numbers that weights begin with.
#pragma once

#include <cstdint>
#include <span>

namespace paradyse {

// out[i] = at::Philox4_32(seed, stream, first + i).randn(10), bit by bit and several times as fast:
// normally distributed numbers, each a function of seed, stream and its own place there.
// Salmon et al. 2011 (Philox4x32-10), Box and Muller 1958.
void draw_normal(
    std::uint64_t seed, std::uint64_t stream, std::uint64_t first, std::span<float> out);

}  // namespace paradyse
