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

// Numbers of other distributions, each a function of one of those: of variance 1, and no further
// from zero than 2 deviations of the normal that they are cut from (as scipy's truncnorm and
// OpenFold have it); or uniform, from -sqrt(3) to sqrt(3).
double truncated_from(double normal);
double uniform_from(double normal);

}  // namespace paradyse
