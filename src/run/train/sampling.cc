#include "src/run/train/sampling.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <png.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/accountant.h"
#include "src/run/data/stdit/made_clips.h"
#include "src/run/train/plan_or_throw.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {
namespace {

// A frame [C, h, w] as bytes, row after row.
void write_png(const at::Tensor& frame, const std::filesystem::path& file) {
  const std::int64_t shown = frame.size(0) < 3 ? 1 : 3;
  const at::Tensor bytes = ((frame.narrow(0, 0, shown).clamp(-1, 1) + 1) * 127.5)
                               .round()
                               .to(at::kByte)
                               .permute({1, 2, 0})
                               .contiguous();
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(frame.size(2));
  image.height = static_cast<png_uint_32>(frame.size(1));
  image.format = shown == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  if (png_image_write_to_file(
          &image, file.c_str(), 0, bytes.const_data_ptr<std::uint8_t>(), 0, nullptr) == 0) {
    throw std::runtime_error(file.string() + ": cannot be written: " + image.message);
  }
}

}  // namespace

std::vector<at::Tensor> sampled_clips(
    const std::vector<LikeClip>& like,
    std::int64_t steps,
    std::uint64_t seed,
    BatchPlanner* planner,
    const std::function<bool()>& stop,
    RankSession& session) {
  std::optional<Plan> plan;
  if (session.rank() == 0) {
    BatchSizes batch;
    for (const auto& [file, number] : like) {
      batch.lengths.push_back(file->sizes().lengths[idx(number)]);
      batch.dims.push_back(file->sizes().dims[idx(number)]);
    }
    plan = plan_or_throw(*planner, batch);
  }
  plan = session.broadcast(std::move(plan));
  std::vector<at::Tensor> x;
  for (std::int64_t step = 0; step < steps; ++step) {
    if (stop()) {
      return {};
    }
    std::vector<Sample> samples;
    std::vector<at::Tensor> velocities;
    const double dt = 1.0 / static_cast<double>(steps);
    {
      const HostScope host;
      for (std::size_t i = 0; i < like.size(); ++i) {
        if (step == 0) {
          x.push_back(noise_clip(like[i], seed, i));
        }
        samples.push_back(question_of(x[i], static_cast<double>(step) * dt, like[i]));
        velocities.push_back(at::empty_like(samples.back().inputs.at("velocity").tensor()));
      }
    }
    const std::vector<Item> items = items_of(samples);
    session.play(*plan, {.items = items, .predictions = velocities}, /*backward=*/false);
    const HostScope host;
    for (std::size_t i = 0; i < like.size(); ++i) {
      x[i] += dt * velocity_of(velocities[i], like[i]);
    }
  }
  return x;
}

void write_frames(const std::vector<at::Tensor>& clips, const std::filesystem::path& to) {
  std::filesystem::create_directories(to);
  for (std::size_t c = 0; c < clips.size(); ++c) {
    for (std::int64_t f = 0; f < clips[c].size(1); ++f) {
      write_png(clips[c].select(1, f), to / fmt::format("clip-{}-frame-{:03}.png", c, f));
    }
  }
}

}  // namespace paradyse
