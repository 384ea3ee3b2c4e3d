// A video transformer in the manner of Open-Sora (Zheng et al. 2024): pairs of a spatial and a
// temporal block, each attention and an MLP, conditioned by the timestep through adaptive norms.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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
  // The model is Open-Sora 1.2's STDiT3 (Zheng et al. 2024; model_type "STDiT3"), in its names of
  // weights and beginning with its numbers: fused q | k | v, frames turned by their places (Su et
  // al. 2021), captions by an MLP, fixed sinusoids of places, frames a second beside the timestep,
  // and a last layer that is shifted and scaled by the timestep's own embedding (T2I).  It has text
  // and as many key heads as heads.  What follows is its alone.
  bool stdit3 = false;
  bool qk_norm = true;               // an RMSNorm of every head's queries and keys
  bool pred_sigma = true;            // it also predicts a variance, which no loss here depends on
  bool adaln_zero = false;           // gates, scales and shifts begin at 0 (Peebles & Xie 2023)
  std::int64_t input_sq_size = 512;  // pixels across of frames whose places are counted in ones

  // A shape reads as the model that it describes.
  operator Model() const;  // NOLINT(google-explicit-constructor)
  friend bool operator==(const StditShape&, const StditShape&) = default;
};

// Columns of what a batch brings (Model::inputs): sinusoids of the timestep; of a patch's frame,
// row and column, beside its latents.
inline constexpr std::int64_t kTimeFeatures = 256;
inline constexpr std::int64_t kPlaceFeatures = 48;
// Pixels of a frame across for one of its latents, and frames a second where files do not say (of
// STDiT3 models).
inline constexpr std::int64_t kPixelsOfLatent = 8;
inline constexpr double kFramesASecond = 24;

// Streams x (batch, frames, patches) and c (batch), of every layer spatial_attention, spatial_mlp,
// temporal_attention, temporal_mlp.  A batch brings "time", "patches" and the "velocity" that is to
// be predicted.  With text also a stream y (batch, text), made of the "text" that a batch brings,
// and spatial_text and temporal_text between attention and MLP.  STDiT3 has a stream t (batch)
// beside c, made of "time" and "fps".
Model stdit_model(const StditShape& shape);
// The shape of a model that stdit_model() made.
StditShape stdit_shape(const Model& model);

// Keys of the shape's names, or those of STDiT3Config; those left out are as published
// (read_sizes() says what it throws).  `notes` get a sentence for what is not done here.
StditShape stdit_shape_from_config(
    const nlohmann::json& config,
    const std::string& source,
    std::vector<std::string>* notes = nullptr);
nlohmann::ordered_json config_of(const StditShape& shape);

// What plans call it: "stdit", "stdit-text", "stdit3".
std::string architecture(const StditShape& shape);
// SHA-256 of its sizes.
std::string fingerprint(const StditShape& shape);

}  // namespace paradyse
