// Clips that a video model makes from noise, each like one of a file: of its sizes and with its
// text.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "paradyse/run/sample_file.h"

namespace paradyse {

bool has_clips(const SampleFile& file);

// Of a file that has clips: one, by its number.
struct LikeClip {
  const SampleFile* file = nullptr;
  std::int64_t number = 0;
};

// [C, T, h, w] float64, the same for (seed, draw) on every machine.
at::Tensor noise_clip(const LikeClip& like, std::uint64_t seed, std::uint64_t draw);
// What the model is asked of a clip at noise level t; nothing is known of its velocity.
Sample question_of(const at::Tensor& clip, double t, const LikeClip& like);
// What it answered ("velocity"), as a clip.
at::Tensor velocity_of(const at::Tensor& prediction, const LikeClip& like);

}  // namespace paradyse
