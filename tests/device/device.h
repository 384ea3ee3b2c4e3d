// What the tests of a device share: the device itself, and how far off a tensor of it is.
//
// `device_tests` runs on any device: `make test` runs it on the CPU, through the forms that tensors
// of other devices take; build/gpu-bundle/ takes it to a machine with a GPU
// (docs/reference/gpu.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace paradyse::test {

// As --device says.
c10::Device device();

// Whether sizes are those that a GPU's kernels are made for, which take the CPU, or a tool that
// runs each instruction itself, too long.  As --sizes says; by default on a GPU.
bool large_sizes();

// Normal, the same for the same seed; float64 on the host.
at::Tensor random_numbers(const std::vector<std::int64_t>& sizes, std::uint64_t seed);

// What sums are made in.
inline at::ScalarType sums_of(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

// Half a unit of the type's last place.
double rounding(at::ScalarType type);

// ||is - expected|| / ||expected||, in float64; infinite where `is` holds a NaN that `expected`
// does not, or has another shape.
double off(const at::Tensor& is, const at::Tensor& expected);

}  // namespace paradyse::test
