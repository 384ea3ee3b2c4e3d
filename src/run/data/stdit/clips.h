// Clips of video, as files hold them and as samples.  Next: clip_files.cc, clip_samples.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/run/sample_file.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/run/data/draw.h"

namespace paradyse {

// Clips of video as they are read.
struct Clips {
  at::Tensor latents;            // [B, C, T, h, w], as stored
  at::Tensor timesteps;          // [B] float64; undefined: drawn
  std::vector<at::Tensor> text;  // [B] of [tokens, caption_channels], as stored; empty: the model
                                 // has none
  std::int64_t patch = 1;
  at::Tensor frames_a_second = {};  // [B] float64, of an STDiT3 model; undefined: kFramesASecond
  StditShape shape = {};            // of the model: what a sample has
};

// Of clip `number`, with what is drawn for it.  It keeps what it needs of the clips.
Sample sample_of(const Clips& clips, std::int64_t number, Draw draw);
// A clip at noise level t and the velocity at which it gets clean, both [C, T, h, w] in float64, as
// the model takes them; with the text of clip `like`, of whose kind it is.
Sample clip_sample(
    const at::Tensor& clip,
    const at::Tensor& velocity,
    double t,
    const Clips& clips,
    std::int64_t like);
// The way back: `patches`, [frames, patches, C patch patch], as a clip of these sizes; or, as an
// STDiT3 model predicts them, [frames, patches, patch patch C] with or without variances.
at::Tensor clip_of(const at::Tensor& patches, at::IntArrayRef sizes, std::int64_t patch);
at::Tensor stdit3_clip_of(const at::Tensor& patches, at::IntArrayRef sizes, std::int64_t patch);

// Bytes that all ranks of a machine hold of a sample of a clip [C, T, h, w] (sample_memory.h).
double clip_sample_bytes(at::IntArrayRef sizes, const StditShape& shape);
// Throws std::runtime_error where that is more than `available` bytes: how much it takes, how much
// there is, and the largest clip that fits.
void expect_room(
    const std::string& where,
    at::IntArrayRef clip,
    const StditShape& shape,
    std::int64_t available);

class ClipFile : public SampleFile {
 public:
  ClipFile(std::string file, BatchSizes sizes, Clips clips);

  [[nodiscard]] const Clips& clips() const { return clips_; }
  [[nodiscard]] Sample sample(
      std::int64_t i, std::uint64_t seed, std::uint64_t draw) const override;

 private:
  void add_content(const AddBytes& add) const override;

  Clips clips_;
};

// A safetensors file with `latents` [B, C, T, h, w] and, if the clips' noise levels are to be
// these, `timesteps` [B] from 0 (all noise) to 1 (none), else they are drawn; of a model with text
// also `text` [B, tokens, caption_channels], and where clips have other numbers of tokens
// `text_mask` [B, tokens]: those that are 0 are no part of the sample.  A patch is `patch` x
// `patch` of a frame.  Of a sample x_t = t x + (1 - t) noise, and the velocity that is to be
// predicted is x - noise (rectified flow, Liu et al. 2022).  For an STDiT3 model there may be `fps`
// [B]; it counts noise levels from 0 (none) to 1000 (all), and places of patches as Open-Sora 1.2
// does for frames of kPixelsOfLatent pixels a latent.
// Throws std::runtime_error naming the file, what is found and what is needed, also where a sample
// takes more memory than the machine has.
ClipFile read_frames(const std::filesystem::path& file, const StditShape& shape);

}  // namespace paradyse
