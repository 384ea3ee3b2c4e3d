#include "src/run/data/grid_data.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/index.h"
#include "paradyse/run/safetensors.h"

namespace paradyse {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& what) {
  throw std::runtime_error(file.string() + ": " + what);
}

// The same numbers on every machine, which std's distributions do not promise.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  // In [0, 1).
  double uniform() { return static_cast<double>(random_() >> 11U) * 0x1p-53; }
  std::int64_t below(std::int64_t count) {
    return std::min(count - 1, static_cast<std::int64_t>(uniform() * static_cast<double>(count)));
  }
  double normal() {  // Box and Muller 1958
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  std::mt19937_64 random_;
};

// cos and sin of x at `count` / 2 frequencies from 1 down to 1 / 10000.
void sinusoids(double x, std::int64_t count, double* to) {
  const std::int64_t half = count / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double angle = x * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
    to[i] = std::cos(angle);
    to[half + i] = std::sin(angle);
  }
}

struct Clip {
  std::int64_t channels = 0;
  std::int64_t frames = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
};

Sample sample_of(
    const at::Tensor& latents, const Clip& clip, std::int64_t patch, double t, Draw& draw) {
  const std::int64_t down = clip.height / patch;
  const std::int64_t across = clip.width / patch;
  const std::int64_t own = clip.channels * patch * patch;
  Sample sample;
  at::Tensor& patches = sample.inputs["patches"];
  at::Tensor& velocity = sample.inputs["velocity"];
  at::Tensor& time = sample.inputs["time"];
  patches = at::empty({clip.frames, down * across, own + kPlaceFeatures}, at::kDouble);
  velocity = at::empty({clip.frames, down * across, own}, at::kDouble);
  time = at::empty({kTimeFeatures}, at::kDouble);
  sinusoids(1000 * t, kTimeFeatures, time.mutable_data_ptr<double>());
  const at::Tensor wide = latents.to(at::kDouble).contiguous();
  const auto* x = wide.const_data_ptr<double>();
  auto* in = patches.mutable_data_ptr<double>();
  auto* out = velocity.mutable_data_ptr<double>();
  constexpr std::int64_t kEach = kPlaceFeatures / 3;
  for (std::int64_t f = 0; f < clip.frames; ++f) {
    for (std::int64_t row = 0; row < down; ++row) {
      for (std::int64_t column = 0; column < across; ++column) {
        for (std::int64_t c = 0; c < clip.channels; ++c) {
          for (std::int64_t i = 0; i < patch * patch; ++i) {
            const std::int64_t h = row * patch + i / patch;
            const std::int64_t w = column * patch + i % patch;
            const double clean = x[((c * clip.frames + f) * clip.height + h) * clip.width + w];
            const double noise = draw.normal();
            *in++ = t * clean + (1 - t) * noise;
            *out++ = clean - noise;
          }
        }
        for (const std::int64_t place : {f, row, column}) {
          sinusoids(static_cast<double>(place), kEach, in);
          in += kEach;
        }
      }
    }
  }
  return sample;
}

}  // namespace

std::int64_t GridData::rows() const {
  return dims.contains("frames") ? dims.at("frames") * dims.at("patches")
                                 : dims.at("sequences") * dims.at("residues");
}

GridData read_frames(
    const std::filesystem::path& file, const StditShape& shape, std::uint64_t seed) {
  const SafetensorsReader reader(file);
  for (const auto& [name, stored] : reader.tensors()) {
    if (name != "latents" && name != "timesteps") {
      refuse(file, fmt::format("tensor '{}' is not known; there are latents and timesteps", name));
    }
  }
  const at::Tensor latents = reader.view("latents");
  if (latents.dim() != 5 || latents.size(1) != shape.channels || latents.numel() == 0 ||
      latents.size(3) % shape.patch != 0 || latents.size(4) % shape.patch != 0) {
    refuse(
        file,
        fmt::format(
            "'latents' is [{}]; needed is [clips, {}, frames, height, width], height and width "
            "multiples of the model's patch_size {}",
            fmt::join(latents.sizes(), ", "),
            shape.channels,
            shape.patch));
  }
  const std::int64_t clips = latents.size(0);
  at::Tensor timesteps;
  if (reader.contains("timesteps")) {
    timesteps = reader.view("timesteps").to(at::kDouble);
    if (timesteps.dim() != 1 || timesteps.size(0) != clips) {
      refuse(
          file,
          fmt::format(
              "'timesteps' is [{}]; needed is one for each of the {} clips",
              fmt::join(timesteps.sizes(), ", "),
              clips));
    }
  }
  const Clip clip{
      .channels = latents.size(1),
      .frames = latents.size(2),
      .height = latents.size(3),
      .width = latents.size(4)};
  GridData data{
      .samples = {},
      .dims = {
          {"frames", clip.frames},
          {"patches", clip.height / shape.patch * (clip.width / shape.patch)}}};
  Draw draw(seed);
  for (std::int64_t b = 0; b < clips; ++b) {
    if (!at::isfinite(latents[b]).all().item<bool>()) {
      refuse(file, fmt::format("clip {} of 'latents' has numbers that are not finite", b));
    }
    const double t = timesteps.defined() ? timesteps[b].item<double>() : draw.uniform();
    if (!(t >= 0 && t <= 1)) {
      refuse(
          file,
          fmt::format("'timesteps' has {} for clip {}; they are from 0, all noise, to 1", t, b));
    }
    data.samples.push_back(sample_of(latents[b], clip, shape.patch, t, draw));
  }
  return data;
}

GridData read_alignments(const std::filesystem::path& file, std::uint64_t seed) {
  constexpr std::int32_t kMasked = 22;
  constexpr std::int64_t kAminoAcids = 20;
  constexpr double kPredicted = 0.15;
  constexpr std::int64_t kFarthest = 32;  // residues apart that the pair features tell
  const std::vector<Alignment> alignments = read_alignment_file(file);
  GridData data;
  Draw draw(seed);
  for (const Alignment& alignment : alignments) {
    const auto s = static_cast<std::int64_t>(alignment.letters.size());
    const auto r = static_cast<std::int64_t>(alignment.letters.front().size());
    const std::map<std::string, std::int64_t> dims = {
        {"sequences", s}, {"residues", r}, {"i", r}, {"j", r}};
    if (data.dims.empty()) {
      data.dims = dims;
    } else if (data.dims != dims) {
      refuse(
          file,
          fmt::format(
              "alignment {} has {} sequences of {} residues, the first {} of {}; a batch has one "
              "size",
              data.samples.size(),
              s,
              r,
              data.dims.at("sequences"),
              data.dims.at("residues")));
    }
    Sample& sample = data.samples.emplace_back();
    at::Tensor& msa = sample.inputs["msa"];
    at::Tensor& pair = sample.inputs["pair"];
    msa = at::zeros({s, r, kMsaFeatures}, at::kDouble);
    pair = at::zeros({r, r, kPairFeatures}, at::kDouble);
    auto* features = msa.mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < s; ++i) {
      for (std::int64_t j = 0; j < r; ++j, features += kMsaFeatures) {
        const std::int32_t truth = alignment.letters[idx(i)][idx(j)];
        std::int32_t seen = truth;
        const bool predicted = draw.uniform() < kPredicted;
        if (predicted) {
          const double how = draw.uniform();
          seen = how < 0.7   ? kMasked
                 : how < 0.8 ? static_cast<std::int32_t>(draw.below(kAminoAcids))
                 : how < 0.9 ? alignment.letters[idx(draw.below(s))][idx(j)]
                             : truth;
        }
        sample.labels.push_back(predicted ? truth : -1);
        const double deleted = alignment.deletions[idx(i)][idx(j)];
        features[seen] = 1;
        features[kMsaClasses] = deleted > 0 ? 1 : 0;
        features[kMsaClasses + 1] = 2 / std::numbers::pi * std::atan(deleted / 3);
        features[kMsaClasses + 2 + alignment.letters.front()[idx(j)]] = 1;
      }
    }
    auto* of_pair = pair.mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < r; ++i) {
      for (std::int64_t j = 0; j < r; ++j, of_pair += kPairFeatures) {
        of_pair[alignment.letters.front()[idx(i)]] = 1;
        of_pair[kMsaClasses + alignment.letters.front()[idx(j)]] = 1;
        of_pair[2 * kMsaClasses + std::clamp(i - j, -kFarthest, kFarthest) + kFarthest] = 1;
      }
    }
  }
  return data;
}

GridData read_grid_data(
    const std::filesystem::path& file, const GridShape& shape, std::uint64_t seed) {
  const auto* const video = std::get_if<StditShape>(&shape);
  return video != nullptr ? read_frames(file, *video, seed) : read_alignments(file, seed);
}

}  // namespace paradyse
