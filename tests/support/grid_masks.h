// Masks for samples of several dims, with all that is rare: lines of which nothing counts.
#pragma once

#include <random>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/run/detail/item.h"

namespace paradyse::test {

// [.., 1] About two of three rows count; none of the last of the first dim, none of the first of
// the second, where these have several.
inline at::Tensor random_mask(at::IntArrayRef sizes, std::mt19937& random) {
  const at::Tensor mask = at::empty(sizes, at::kDouble);
  auto* const numbers = mask.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < mask.numel(); ++i) {
    numbers[i] = random() % 3 != 0 ? 1 : 0;
  }
  if (mask.size(0) > 1) {
    mask[-1].zero_();
  }
  if (mask.size(1) > 1) {
    mask.select(1, 0).zero_();
  }
  return mask;
}

// In place of those that the samples have.
inline void set_random_masks(const Model& model, std::vector<Sample>& samples, unsigned seed) {
  std::mt19937 random(seed);
  for (Sample& sample : samples) {
    for (auto& [name, input] : sample.inputs) {
      if (model.is_mask(name)) {
        input = random_mask(input.sizes(), random);
      }
    }
  }
}

}  // namespace paradyse::test
