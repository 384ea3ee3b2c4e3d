// Samples of clips of video: noise, which a rank draws frame by frame when it takes what it holds.
#include <cmath>
#include <limits>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/run/data/held.h"
#include "src/run/data/stdit/clips.h"

namespace paradyse {
namespace {

// cos and sin of x at `count` / 2 frequencies from 1 down to 1 / 10000.
void sinusoids(double x, std::int64_t count, double* to) {
  const std::int64_t half = count / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double angle = x * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
    to[i] = std::cos(angle);
    to[half + i] = std::sin(angle);
  }
}

// [frames, down x across, kPlaceFeatures], from frame `first` on
at::Tensor places(std::int64_t first, std::int64_t frames, std::int64_t down, std::int64_t across) {
  constexpr std::int64_t kEach = kPlaceFeatures / 3;
  const at::Tensor features = at::empty({frames, down * across, kPlaceFeatures}, at::kDouble);
  auto* to = features.mutable_data_ptr<double>();
  for (std::int64_t f = first; f < first + frames; ++f) {
    for (std::int64_t row = 0; row < down; ++row) {
      for (std::int64_t column = 0; column < across; ++column) {
        for (const std::int64_t place : {f, row, column}) {
          sinusoids(static_cast<double>(place), kEach, to);
          to += kEach;
        }
      }
    }
  }
  return features;
}

// [down x across, H] Of STDiT3: sines and cosines of a patch's column, then of its row, counted in
// so many frames of `input_sq_size` pixels as these patches cover.
at::Tensor stdit3_places(std::int64_t down, std::int64_t across, const StditShape& shape) {
  const std::int64_t H = shape.hidden;
  const std::int64_t each = H / 4;
  const auto pixels = static_cast<double>(shape.patch * kPixelsOfLatent);
  const auto rows = static_cast<double>(down);
  const auto columns = static_cast<double>(across);
  const double scale =
      std::sqrt(rows * pixels * columns * pixels) / static_cast<double>(shape.input_sq_size);
  const double base = std::nearbyint(std::sqrt(rows * columns));
  const at::Tensor features = at::empty({down * across, H}, at::kDouble);
  auto* to = features.mutable_data_ptr<double>();
  for (std::int64_t row = 0; row < down; ++row) {
    for (std::int64_t column = 0; column < across; ++column) {
      for (const double place :
           {static_cast<double>(column) / scale * base / columns,
            static_cast<double>(row) / scale * base / rows}) {
        for (std::int64_t i = 0; i < each; ++i) {
          const double angle =
              place * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(each));
          to[i] = std::sin(angle);
          to[each + i] = std::cos(angle);
        }
        to += 2 * each;
      }
    }
  }
  return features;
}

// [C, frames, h, w] as [frames, patches, C patch patch]
at::Tensor patches_of(const at::Tensor& frames, std::int64_t patch) {
  const std::int64_t down = frames.size(2) / patch;
  const std::int64_t across = frames.size(3) / patch;
  return frames.view({frames.size(0), frames.size(1), down, patch, across, patch})
      .permute({1, 2, 4, 0, 3, 5})
      .reshape({frames.size(1), down * across, frames.size(0) * patch * patch});
}

// What the model reads of noisy frames [C, frames, h, w], the clip's from `first` on.
at::Tensor model_input(const at::Tensor& frames, std::int64_t first, const Clips& clips) {
  const std::int64_t down = frames.size(2) / clips.patch;
  const std::int64_t across = frames.size(3) / clips.patch;
  const at::Tensor of_places =
      clips.shape.stdit3
          ? stdit3_places(down, across, clips.shape).unsqueeze(0).expand({frames.size(1), -1, -1})
          : places(first, frames.size(1), down, across);
  return at::cat({patches_of(frames, clips.patch), of_places}, 2);
}

// What it is to predict, of velocities [C, frames, h, w].
at::Tensor wanted(const at::Tensor& velocity, const Clips& clips) {
  const at::Tensor patches = patches_of(velocity, clips.patch);
  if (!clips.shape.stdit3) {
    return patches;
  }
  // channels last, and nothing to predict for variances
  const std::int64_t channels = velocity.size(0);
  const at::Tensor all = at::full(
      {patches.size(0),
       patches.size(1),
       clips.patch * clips.patch,
       clips.shape.pred_sigma ? 2 * channels : channels},
      std::numeric_limits<double>::quiet_NaN(),
      at::kDouble);
  all.narrow(3, 0, channels)
      .copy_(patches.unflatten(2, {channels, clips.patch * clips.patch}).transpose(2, 3));
  return all.flatten(2);
}

// What does not depend on the noise.
Sample without_frames(double t, const Clips& clips, std::int64_t like) {
  Sample sample;
  const auto sinusoids_of = [](double x) {
    at::Tensor features = at::empty({kTimeFeatures}, at::kDouble);
    sinusoids(x, kTimeFeatures, features.mutable_data_ptr<double>());
    return features;
  };
  if (clips.shape.stdit3) {
    sample.inputs["fps"] = sinusoids_of(
        clips.frames_a_second.defined() ? clips.frames_a_second[like].item<double>()
                                        : kFramesASecond);
  }
  sample.inputs["time"] = sinusoids_of(1000 * (clips.shape.stdit3 ? 1 - t : t));
  if (!clips.text.empty()) {
    sample.inputs["text"] = clips.text[idx(like)];
  }
  return sample;
}

// A clip [C, T, h, w], as it is stored, and how its noise is drawn, the whole of it in its order.
struct NoisyClip {
  at::Tensor clean;
  Draw noise;

  // Calls `use(k, f, clean, noise)` for each frame f, the k-th of these; both [C, 1, h, w].
  template <typename Use>
  void for_each_frame(const Piece& frames, const Use& use) const;
};

template <typename Use>
void NoisyClip::for_each_frame(const Piece& frames, const Use& use) const {
  const std::int64_t channels = clean.size(0);
  const std::int64_t plane = clean.size(2) * clean.size(3);
  std::vector<Draw> draws(idx(channels), noise);  // each at its channel's next frame
  for (std::int64_t c = 1; c < channels; ++c) {
    draws[idx(c)] = draws[idx(c - 1)];
    draws[idx(c)].skip_normal(clean.size(1) * plane);
  }
  std::int64_t next = 0;
  std::int64_t k = 0;
  for (const Interval run : frames) {
    for (std::int64_t f = run.begin; f < run.end; ++f, ++k) {
      const at::Tensor drawn = at::empty({channels, 1, clean.size(2), clean.size(3)}, at::kDouble);
      auto* to = drawn.mutable_data_ptr<double>();
      for (Draw& draw : draws) {
        draw.skip_normal((f - next) * plane);
        std::generate_n(to, plane, [&] { return draw.normal(); });
        to += plane;
      }
      next = f + 1;
      use(k, f, clean.narrow(1, f, 1).to(at::kDouble), drawn);
    }
  }
}

}  // namespace

Sample sample_of(const Clips& clips, std::int64_t number, Draw draw) {
  const at::Tensor latents = clips.latents[number];
  const double t =
      clips.timesteps.defined() ? clips.timesteps[number].item<double>() : draw.uniform();
  Sample sample = without_frames(t, clips, number);
  const NoisyClip clip{.clean = latents, .noise = draw};
  const Clips kind{
      .latents = {}, .timesteps = {}, .text = {}, .patch = clips.patch, .shape = clips.shape};
  const std::int64_t patch = clips.patch;
  const std::int64_t frames = latents.size(1);
  const std::int64_t patches = latents.size(2) / patch * (latents.size(3) / patch);
  const std::int64_t columns = latents.size(0) * patch * patch;
  const std::int64_t of_places = clips.shape.stdit3 ? clips.shape.hidden : kPlaceFeatures;
  const bool variances = clips.shape.stdit3 && clips.shape.pred_sigma;
  sample.inputs["patches"] = SampleInput(
      {frames, patches, columns + of_places},
      [=](std::span<const Piece> held, const at::Tensor& piece) {
        const auto put =
            [&](std::int64_t k, std::int64_t f, const at::Tensor& clean, const at::Tensor& noise) {
              const at::Tensor input = model_input(t * clean + (1 - t) * noise, f, kind);
              copy_held(input[0], piece[k], held.subspan(1));
            };
        if (!held[2].empty() && held[2].front().begin < columns) {
          clip.for_each_frame(held[0], put);
          return;
        }
        std::int64_t k = 0;  // places alone need no noise
        for_each_index(held[0], [&](std::int64_t f) {
          const at::Tensor clean = clip.clean.narrow(1, f, 1).to(at::kDouble);
          put(k++, f, clean, clean);
        });
      });
  sample.inputs["velocity"] = SampleInput(
      {frames, patches, variances ? 2 * columns : columns},
      [=](std::span<const Piece> held, const at::Tensor& piece) {
        clip.for_each_frame(
            held[0],
            [&](std::int64_t k,
                std::int64_t /*f*/,
                const at::Tensor& clean,
                const at::Tensor& noise) {
              copy_held(wanted(clean - noise, kind)[0], piece[k], held.subspan(1));
            });
      });
  return sample;
}

Sample clip_sample(
    const at::Tensor& clip,
    const at::Tensor& velocity,
    double t,
    const Clips& clips,
    std::int64_t like) {
  Sample sample = without_frames(t, clips, like);
  sample.inputs["patches"] = model_input(clip, 0, clips);
  sample.inputs["velocity"] = wanted(velocity, clips);
  return sample;
}

at::Tensor clip_of(const at::Tensor& patches, at::IntArrayRef sizes, std::int64_t patch) {
  const std::int64_t down = sizes[2] / patch;
  const std::int64_t across = sizes[3] / patch;
  return patches.view({sizes[1], down, across, sizes[0], patch, patch})
      .permute({3, 0, 1, 4, 2, 5})
      .reshape(sizes);
}

at::Tensor stdit3_clip_of(const at::Tensor& patches, at::IntArrayRef sizes, std::int64_t patch) {
  const std::int64_t down = sizes[2] / patch;
  const std::int64_t across = sizes[3] / patch;
  return patches.view({sizes[1], down, across, patch, patch, -1})
      .narrow(5, 0, sizes[0])
      .permute({5, 0, 1, 3, 2, 4})
      .reshape(sizes);
}

}  // namespace paradyse
