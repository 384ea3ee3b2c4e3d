// A video transformer in the manner of Open-Sora (Zheng et al. 2024): pairs of a spatial and a
// temporal block, each attention and an MLP, conditioned by the timestep through adaptive norms.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "paradyse/plan/model.h"

namespace paradyse {

struct StditShape {
  std::int64_t depth = 28;  // pairs
  std::int64_t hidden = 1152;
  std::int64_t heads = 16;
  std::int64_t kv_heads = 16;  // divides heads
  std::int64_t mlp_hidden = 4608;
  std::int64_t channels = 4;          // of latents
  std::int64_t patch = 2;             // height and width of a patch
  std::int64_t caption_channels = 0;  // of text states, which every block attends to; 0: no text

  // A shape reads as the model that it describes.
  operator Model() const;  // NOLINT(google-explicit-constructor)
  friend bool operator==(const StditShape&, const StditShape&) = default;
};

// Columns of what a batch brings (Model::inputs): sinusoids of the timestep; of a patch's frame,
// row and column, beside its latents.
inline constexpr std::int64_t kTimeFeatures = 256;
inline constexpr std::int64_t kPlaceFeatures = 48;

// Streams x (batch, frames, patches) and c (batch), of every layer spatial_attention, spatial_mlp,
// temporal_attention, temporal_mlp.  A batch brings "time", "patches" and the "velocity" that is to
// be predicted.  With text also a stream y (batch, text), made of the "text" that a batch brings,
// and spatial_text and temporal_text between attention and MLP.
Model stdit_model(const StditShape& shape);
// The shape of a model that stdit_model() made.
StditShape stdit_shape(const Model& model);

// Keys of the shape's names; those left out are as published (read_sizes() says what it throws).
StditShape stdit_shape_from_config(const nlohmann::json& config, const std::string& source);
nlohmann::ordered_json config_of(const StditShape& shape);

// What plans call it: "stdit", "stdit-text".
std::string architecture(const StditShape& shape);
// SHA-256 of its sizes.
std::string fingerprint(const StditShape& shape);

}  // namespace paradyse
