// AlphaFold 2's Evoformer (Jumper et al. 2021, algorithm 6), and its extra-MSA stack (algorithm
// 18).
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "paradyse/plan/model.h"

namespace paradyse {

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
  // Embeddings, names of weights and the numbers that they begin with are OpenFold's (Ahdritz et
  // al. 2024): model_type "openfold".
  bool openfold = false;
  // The stack of extra sequences that runs before the trunk, on a stream of its own (algorithm 18);
  // 0 blocks: there is none.  Of `openfold` alone.  Pairs have the trunk's sizes in it, too.
  std::int64_t extra_blocks = 0;
  std::int64_t extra_hidden = 64;
  std::int64_t extra_heads = 8;
  std::int64_t extra_head_dim = 8;
  std::int64_t extra_outer_channels = 32;
  // In training, of what row attention adds to the MSA: a mask that all sequences share; and of
  // what triangles add to pairs: one that all i share, behind the ending node all j (Jumper et al.
  // 2021, algorithm 6 and supplement 1.11.6: 0.15 and 0.25).
  double msa_dropout = 0;
  double pair_dropout = 0;
  // A batch says which letters count ("msa_mask", "extra_msa_mask"), as in AlphaFold and OpenFold.
  // The others are not attended to, nor summed over.
  bool msa_mask = false;

  // A shape reads as the model that it describes.
  operator Model() const;  // NOLINT(google-explicit-constructor)
  friend bool operator==(const EvoformerShape&, const EvoformerShape&) = default;
};

// Columns of what a batch brings (Model::inputs): of an alignment's letter and those of its first
// row; of a pair.
inline constexpr std::int64_t kMsaFeatures = 48;
inline constexpr std::int64_t kPairFeatures = 111;
// Those of OpenFold's embeddings (algorithms 3 and 4): of a residue of the first row, whether the
// chain breaks before it and its letter; of an alignment's letter, that, whether and how many
// letters were left out before it, and the means of both over its cluster; places between residues.
inline constexpr std::int64_t kTargetFeatures = 22;
inline constexpr std::int64_t kLetterFeatures = 49;
inline constexpr std::int64_t kPlaceBins = 65;
// Of an extra sequence: its letter, whether and how many letters were left out before it.
inline constexpr std::int64_t kExtraFeatures = 25;
// Letters of an alignment: 20 amino acids, unknown, gap, masked.
inline constexpr std::int64_t kMsaClasses = 23;

// Streams m (sequences, residues) and z (i, j), of every layer nine parts: row_attention,
// column_attention, msa_transition, outer_product_mean, triangle_outgoing, triangle_incoming,
// triangle_starting, triangle_ending, pair_transition; or, of the extra-MSA stack,
// global_column_attention in the second's place.  A batch brings "msa" and "pair" features, and
// labels of letters that were masked.
//
// With extra blocks these are the first layers, whose parts are called "extra_row_attention" and so
// on; they work on stream e (extra_sequences, residues) and on z, and a batch brings "extra_msa".
//
// With masks a batch brings "msa_mask" [sequences, residues, 1], too, and "extra_msa_mask": 1 for
// letters that count, else 0.  Pairs have none, since residues that do not count are left out.
Model evoformer_model(const EvoformerShape& shape);
// Of the extra blocks by themselves, as a trunk of such sizes has them.
EvoformerShape extra_stack(const EvoformerShape& shape);
// What extra parts' names begin with.
inline constexpr const char* kExtra = "extra_";
// The shape of a model that evoformer_model() made.
EvoformerShape evoformer_shape(const Model& model);

// Keys of the shape's names; those left out are as published (read_sizes() says what it throws).
EvoformerShape evoformer_shape_from_config(const nlohmann::json& config, const std::string& source);
nlohmann::ordered_json config_of(const EvoformerShape& shape);

// What plans call it: "evoformer", "-multimer", "-global", "-extra".
std::string architecture(const EvoformerShape& shape);
// SHA-256 of its sizes.
std::string fingerprint(const EvoformerShape& shape);

}  // namespace paradyse
