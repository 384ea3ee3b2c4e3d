#include "src/run/data/stdit/made_clips.h"

#include <algorithm>

#include "src/run/data/stdit/clips.h"

namespace paradyse {
namespace {

const Clips& clips_of(const LikeClip& like) {
  return dynamic_cast<const ClipFile&>(*like.file).clips();
}

at::IntArrayRef sizes_of(const LikeClip& like) { return clips_of(like).latents.sizes().slice(1); }

}  // namespace

bool has_clips(const SampleFile& file) { return dynamic_cast<const ClipFile*>(&file) != nullptr; }

at::Tensor noise_clip(const LikeClip& like, std::uint64_t seed, std::uint64_t draw) {
  Draw numbers(seed, draw);
  const at::Tensor noise = at::empty(sizes_of(like), at::kDouble);
  auto* to = noise.mutable_data_ptr<double>();
  std::generate_n(to, noise.numel(), [&] { return numbers.normal(); });
  return noise;
}

Sample question_of(const at::Tensor& clip, double t, const LikeClip& like) {
  return clip_sample(clip, at::zeros_like(clip), t, clips_of(like), like.number);
}

at::Tensor velocity_of(const at::Tensor& prediction, const LikeClip& like) {
  const Clips& clips = clips_of(like);
  return clips.shape.stdit3 ? stdit3_clip_of(prediction, sizes_of(like), clips.patch)
                            : clip_of(prediction, sizes_of(like), clips.patch);
}

}  // namespace paradyse
