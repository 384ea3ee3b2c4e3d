// Clips in safetensors files: what is read, and what is refused.
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/refuse.h"
#include "src/run/data/sample_memory.h"
#include "src/run/data/sample_readers.h"
#include "src/run/data/stdit/clips.h"
#include "src/run/device/host_memory.h"
#include "src/run/weights/foreign_tensors.h"
#include "src/run/weights/safetensors.h"

namespace paradyse {

double clip_sample_bytes(at::IntArrayRef sizes, const StditShape& shape) {
  const std::int64_t patch = shape.patch;
  const std::int64_t of_place = shape.stdit3 ? shape.hidden : kPlaceFeatures;
  // The noisy clip and the velocity, which is as wide as what is predicted; features of places.
  const double copies = shape.stdit3 && shape.pred_sigma ? 3 : 2;
  double elements = 1;
  for (const std::int64_t size : sizes) {
    elements *= static_cast<double>(size);
  }
  const double patches =
      elements / static_cast<double>(sizes.front()) / static_cast<double>(patch * patch);
  return kCutInputBytes * (copies * elements + static_cast<double>(of_place) * patches);
}

void expect_room(
    const std::string& where,
    at::IntArrayRef clip,
    const StditShape& shape,
    std::int64_t available) {
  const double needed = clip_sample_bytes(clip, shape);
  if (needed <= static_cast<double>(available)) {
    return;
  }
  const double of_frame = needed / static_cast<double>(clip[1]);
  const double frames = whole_of(static_cast<double>(available) / of_frame);
  refuse_sample(
      fmt::format("{}: the sample of a clip of [{}]", where, fmt::join(clip, ", ")),
      needed,
      available,
      frames >= 1
          ? fmt::format(
                "cut clips to at most {:.0f} frames, or train on a machine with more", frames)
          : "give smaller frames, or train on a machine with more");
}

namespace {

// A tensor of the file, of which nothing is copied yet.
at::Tensor floats(
    const SafetensorsReader& reader, const std::filesystem::path& file, const std::string& name) {
  at::Tensor stored = reader.view(name);
  const at::ScalarType type = stored.scalar_type();
  if (type != at::kHalf && type != at::kBFloat16 && type != at::kFloat && type != at::kDouble) {
    refuse(
        file,
        fmt::format(
            "'{}' is of type {}; needed are floating-point numbers (F16, BF16, F32 or F64), as an "
            "encoder gives them",
            name,
            c10::toString(type)));
  }
  return stored;
}

// Else says which of the tensor's `items`, along this dim, is the first with NaN or infinity.
void expect_finite(
    const at::Tensor& tensor,
    const std::string& what,
    const std::string& items,
    std::int64_t dim,
    const std::filesystem::path& file) {
  const at::Tensor wrong = at::isfinite(tensor).logical_not();
  const auto count = wrong.sum().item<std::int64_t>();
  if (count == 0) {
    return;
  }
  const at::Tensor first = wrong.movedim(dim, 0).flatten(1).any(1).nonzero()[0];
  refuse(
      file,
      fmt::format(
          "{} has {} number{} that {} not finite (NaN or infinity), the first in {} {}; leave the "
          "clip out, or encode it again (F16 overflows above 65504)",
          what,
          count,
          count == 1 ? "" : "s",
          count == 1 ? "is" : "are",
          items,
          first.item<std::int64_t>()));
}

// [B, C, T, h, w]
void expect_clips(
    const at::Tensor& latents, const std::filesystem::path& file, const StditShape& shape) {
  const auto wrong = [&](const std::string& what) {
    refuse(
        file,
        fmt::format(
            "'latents' is [{}]; needed is [clips, {}, frames, height, width], height and width "
            "multiples of the model's patch_size {}: {}",
            fmt::join(latents.sizes(), ", "),
            shape.channels,
            shape.patch,
            what));
  };
  constexpr const char* kDims[] = {"clips", "channels", "frames", "height", "width"};
  if (latents.dim() != std::ssize(kDims)) {
    wrong(fmt::format(
        "it has {} dims{}",
        latents.dim(),
        latents.dim() == std::ssize(kDims) - 1 ? "; a single clip is the first of one" : ""));
  }
  for (std::int64_t dim = 0; dim < latents.dim(); ++dim) {
    if (latents.size(dim) == 0) {
      wrong(fmt::format("there are no {}", kDims[dim]));
    }
  }
  if (latents.size(1) != shape.channels) {
    wrong(fmt::format(
        "it has {} channels{}",
        latents.size(1),
        latents.size(2) == shape.channels
            ? "; if frames come first, transpose these two"
            : ", and the model in_channels " + std::to_string(shape.channels)));
  }
  for (const std::int64_t dim : {3, 4}) {
    const std::int64_t size = latents.size(dim);
    const std::int64_t left = size % shape.patch;
    if (left != 0) {
      wrong(fmt::format(
          "{} {} is no multiple; {}pad to {}",
          kDims[dim],
          size,
          size > left ? fmt::format("crop to {} or ", size - left) : "",
          size - left + shape.patch));
    }
  }
}

// Clips stay in memory, and a sample is made of one of them.
void expect_room_for(
    const at::Tensor& latents,
    const std::filesystem::path& file,
    const StditShape& shape,
    std::int64_t available) {
  const auto stored = static_cast<std::int64_t>(latents.nbytes());
  if (stored > available) {
    refuse(
        file,
        fmt::format(
            "'latents' takes {} of memory, and {} are available on this machine; keep fewer or "
            "shorter clips in the file",
            bytes_text(stored),
            bytes_text(available)));
  }
  expect_room(file.string() + ": clip 0", latents.sizes().slice(1), shape, available - stored);
}

// Of each clip the tokens that are not masked.
std::vector<at::Tensor> text_of(
    const SafetensorsReader& reader,
    const std::filesystem::path& file,
    std::int64_t clips,
    const StditShape& shape) {
  const std::string needed = fmt::format(
      "the model attends to text: needed is 'text' [{}, tokens, {}]",
      clips,
      shape.caption_channels);
  if (!reader.contains("text")) {
    refuse(file, needed);
  }
  const at::Tensor text = floats(reader, file, "text").clone();
  if (text.dim() != 3 || text.size(0) != clips || text.size(1) == 0 ||
      text.size(2) != shape.caption_channels) {
    refuse(file, fmt::format("{}, and it is [{}]", needed, fmt::join(text.sizes(), ", ")));
  }
  at::Tensor mask = at::ones({clips, text.size(1)}, at::kLong);
  if (reader.contains("text_mask")) {
    mask = reader.view("text_mask").to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    if (mask.sizes() != at::IntArrayRef({clips, text.size(1)})) {
      refuse(
          file,
          fmt::format(
              "'text_mask' is [{}]; needed is one number for each token of 'text', [{}, {}]",
              fmt::join(mask.sizes(), ", "),
              clips,
              text.size(1)));
    }
  }
  if (const at::Tensor odd = mask.ne(0).logical_and_(mask.ne(1)); odd.any().item<bool>()) {
    refuse(
        file,
        fmt::format(
            "'text_mask' has {}; it has 1 for a token that is attended to and 0 for one that is "
            "not",
            mask.masked_select(odd)[0].item<double>()));
  }
  std::vector<at::Tensor> all;
  for (std::int64_t b = 0; b < clips; ++b) {
    all.push_back(text[b].index_select(0, mask[b].ne(0).nonzero().view({-1})));
    if (all.back().size(0) == 0) {
      refuse(file, fmt::format("'text_mask' leaves clip {} no token to attend to", b));
    }
    expect_finite(all.back(), fmt::format("clip {} of 'text'", b), "token", 0, file);
  }
  return all;
}

void add_tensor(const SampleFile::AddBytes& add, const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  add({static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()});
}

}  // namespace

ClipFile::ClipFile(std::string file, BatchSizes sizes, Clips clips)
    : SampleFile(std::move(file), std::move(sizes)), clips_(std::move(clips)) {}

Sample ClipFile::sample(std::int64_t i, std::uint64_t seed, std::uint64_t draw) const {
  expect_room(
      fmt::format("{}: clip {}", file(), i),
      clips_.latents.sizes().slice(1),
      clips_.shape,
      available_memory());
  return sample_of(clips_, i, Draw(seed, draw));
}

void ClipFile::add_content(const AddBytes& add) const {
  add(fmt::format("{} ", clips_.patch));
  add_tensor(add, clips_.latents);
  for (const at::Tensor& numbers : {clips_.timesteps, clips_.frames_a_second}) {
    if (numbers.defined()) {
      add_tensor(add, numbers);
    }
  }
  for (const at::Tensor& text : clips_.text) {
    add_tensor(add, text);
  }
}

ClipFile read_frames(const std::filesystem::path& file, const StditShape& shape) {
  const SafetensorsReader reader(file);
  for (const auto& [name, stored] : reader.tensors()) {
    const bool of_all =
        name == "latents" || name == "timesteps" || name == "text" || name == "text_mask";
    if (!of_all && !(shape.stdit3 && name == "fps")) {
      refuse(
          file,
          fmt::format(
              "tensor '{}' is not known; there are latents, timesteps, text, text_mask{}",
              name,
              shape.stdit3 ? ", fps" : ""));
    }
  }
  if (!reader.contains("latents")) {
    refuse(
        file,
        fmt::format(
            "has no 'latents', the clips: needed is a tensor [clips, {}, frames, height, width]",
            shape.channels));
  }
  const at::Tensor stored = floats(reader, file, "latents");
  expect_clips(stored, file, shape);
  expect_room_for(stored, file, shape, available_memory());
  Clips clips{
      .latents = stored.clone(), .timesteps = {}, .text = {}, .patch = shape.patch, .shape = shape};
  const at::Tensor& latents = clips.latents;
  if (reader.contains("fps")) {
    clips.frames_a_second =
        floats(reader, file, "fps").to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    const at::Tensor& fps = clips.frames_a_second;
    const bool fits = fps.dim() == 1 && fps.size(0) == latents.size(0) &&
                      fps.gt(0).logical_and(fps.isfinite()).all().item<bool>();
    if (!fits) {
      refuse(
          file,
          fmt::format(
              "'fps' is [{}]; needed is one positive number for each of the {} clips",
              fmt::join(fps.sizes(), ", "),
              latents.size(0)));
    }
  }
  if (reader.contains("timesteps")) {
    clips.timesteps =
        reader.view("timesteps").to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    if (clips.timesteps.dim() != 1 || clips.timesteps.size(0) != latents.size(0)) {
      refuse(
          file,
          fmt::format(
              "'timesteps' is [{}]; needed is one for each of the {} clips",
              fmt::join(clips.timesteps.sizes(), ", "),
              latents.size(0)));
    }
  }
  for (std::int64_t b = 0; b < latents.size(0); ++b) {
    expect_finite(latents[b], fmt::format("clip {} of 'latents'", b), "frame", 1, file);
    const double t = clips.timesteps.defined() ? clips.timesteps[b].item<double>() : 0;
    if (!(t >= 0 && t <= 1)) {
      refuse(
          file,
          fmt::format("'timesteps' has {} for clip {}; they are from 0, all noise, to 1", t, b));
    }
  }
  const std::int64_t patches = latents.size(3) / shape.patch * (latents.size(4) / shape.patch);
  if (shape.caption_channels > 0) {
    clips.text = text_of(reader, file, latents.size(0), shape);
  } else if (reader.contains("text") || reader.contains("text_mask")) {
    refuse(
        file,
        "has a 'text' or 'text_mask', and the model has no caption_channels: it attends to none");
  }
  BatchSizes sizes;
  for (std::int64_t b = 0; b < latents.size(0); ++b) {
    sizes.lengths.push_back(latents.size(2) * patches);
    DimSizes& dims =
        sizes.dims.emplace_back(DimSizes{{"frames", latents.size(2)}, {"patches", patches}});
    if (!clips.text.empty()) {
      dims["text"] = clips.text[idx(b)].size(0);
    }
  }
  return ClipFile(file.string(), std::move(sizes), std::move(clips));
}

SampleReader clip_reader() {
  return {
      .family = "stdit",
      .data = "clips (safetensors)",
      .read =
          [](const std::filesystem::path& file,
             const Model& model,
             const RunConfig::Data& /*settings*/) {
            return std::make_shared<const ClipFile>(read_frames(file, stdit_shape(model)));
          },
      .why_left_out =
          [](const std::filesystem::path& file) {
            return file.extension() == ".safetensors" || foreign_tensor_file(file).empty()
                       ? ""
                       : "no safetensors";
          }};
}

}  // namespace paradyse
