// Models of several dims: what configures them (TOML files, docs/internals/layouts.md), and the
// model that planning sees.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include <nlohmann/json_fwd.hpp>

#include "paradyse/plan/model.h"

namespace paradyse {

// A video transformer in the manner of Open-Sora (Zheng et al. 2024): pairs of a spatial and a
// temporal block, each attention and an MLP, conditioned by the timestep through adaptive norms.
struct StditShape {
  std::int64_t depth = 28;  // pairs
  std::int64_t hidden = 1152;
  std::int64_t heads = 16;
  std::int64_t kv_heads = 16;  // divides heads
  std::int64_t mlp_hidden = 4608;
  std::int64_t channels = 4;          // of latents
  std::int64_t patch = 2;             // height and width of a patch
  std::int64_t caption_channels = 0;  // of text states, which every block attends to; 0: no text

  friend bool operator==(const StditShape&, const StditShape&) = default;
};

// AlphaFold 2's Evoformer (Jumper et al. 2021, algorithm 6).
struct EvoformerShape {
  std::int64_t blocks = 48;
  std::int64_t msa_hidden = 256;
  std::int64_t pair_hidden = 128;
  std::int64_t msa_heads = 8;
  std::int64_t pair_heads = 4;
  std::int64_t head_dim = 32;
  std::int64_t pair_head_dim = 0;  // of triangle attention; 0: as the others
  std::int64_t outer_channels = 32;
  std::int64_t triangle_channels = 128;
  std::int64_t transition = 4;  // times as wide
  bool multimer = false;        // the outer product mean comes first
  bool global_column = false;   // columns attend globally, as in the extra-MSA stack

  friend bool operator==(const EvoformerShape&, const EvoformerShape&) = default;
};

using GridShape = std::variant<StditShape, EvoformerShape>;

// Columns of what a batch brings (Model::inputs): sinusoids of the timestep; of a patch's frame,
// row and column, beside its latents; of an alignment's letter and those of its first row; of a
// pair.
inline constexpr std::int64_t kTimeFeatures = 256;
inline constexpr std::int64_t kPlaceFeatures = 48;
inline constexpr std::int64_t kMsaFeatures = 48;
inline constexpr std::int64_t kPairFeatures = 111;
// Letters of an alignment: 20 amino acids, unknown, gap, masked.
inline constexpr std::int64_t kMsaClasses = 23;

// Streams x (batch, frames, patches) and c (batch), of every layer spatial_attention, spatial_mlp,
// temporal_attention, temporal_mlp.  A batch brings "time", "patches" and the "velocity" that is to
// be predicted.  With text also a stream y (batch, text), made of the "text" that a batch brings,
// and spatial_text and temporal_text between attention and MLP.
Model stdit_model(const StditShape& shape);
// Streams m (sequences, residues) and z (i, j), of every layer nine parts: row_attention,
// column_attention, msa_transition, outer_product_mean, triangle_outgoing, triangle_incoming,
// triangle_starting, triangle_ending, pair_transition; or, of the extra-MSA stack (algorithm 18),
// global_column_attention in the second's place.  A batch brings "msa" and "pair" features, and
// labels of letters that were masked.
Model evoformer_model(const EvoformerShape& shape);
Model grid_model(const GridShape& shape);

// Pairs of blocks, or blocks.
std::int64_t layers_of(const GridShape& shape);
GridShape with_layers(GridShape shape, std::int64_t layers);
// Rows of a sample with such dims, which plans call its length: frames times patches, or letters.
// Throws std::out_of_range where one is missing.
std::int64_t rows_of(const GridShape& shape, const DimSizes& dims);

// "stdit", "evoformer".
std::string model_type(const GridShape& shape);
// What plans call it (layer_parts() in strategy.h): its type, and "-text", "-multimer", "-global".
std::string architecture(const GridShape& shape);
// SHA-256 of its sizes.
std::string fingerprint(const GridShape& shape);

// What a file has to say to be read as this shape: model_type, and all sizes.
nlohmann::ordered_json config_of(const GridShape& shape);

// Whether it is a preset's name, or a TOML file or folder that says one of their types.
bool is_grid_model(const std::string& preset_or_path);

// A preset ("stdit", "evoformer", "extra-msa": published sizes), or a TOML file or the config.json
// of a folder with `model_type` and keys of the shape's names; those left out are as published.
// Throws std::invalid_argument that names the file, the key and what would be accepted.
GridShape read_grid_shape(const std::string& preset_or_path);

}  // namespace paradyse
