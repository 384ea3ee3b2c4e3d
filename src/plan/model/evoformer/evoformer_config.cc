#include <span>

#include <nlohmann/json.hpp>

#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/families.h"
#include "src/plan/model/size_keys.h"

namespace paradyse {
namespace {

constexpr SizeKey<EvoformerShape> kSizes[] = {
    {"no_blocks", &EvoformerShape::blocks, false, kMostBlocks},
    {"c_m", &EvoformerShape::msa_hidden},
    {"c_z", &EvoformerShape::pair_hidden},
    {"no_heads_msa", &EvoformerShape::msa_heads},
    {"no_heads_pair", &EvoformerShape::pair_heads},
    {"c_hidden", &EvoformerShape::head_dim},
    {"c_hidden_pair_att", &EvoformerShape::pair_head_dim, true},
    {"c_hidden_opm", &EvoformerShape::outer_channels},
    {"c_hidden_mul", &EvoformerShape::triangle_channels},
    {"transition_n", &EvoformerShape::transition},
    {"no_extra_blocks", &EvoformerShape::extra_blocks, true, kMostBlocks},
    {"c_e", &EvoformerShape::extra_hidden},
    {"no_heads_extra", &EvoformerShape::extra_heads},
    {"c_hidden_extra", &EvoformerShape::extra_head_dim},
    {"c_hidden_opm_extra", &EvoformerShape::extra_outer_channels}};
constexpr FlagKey<EvoformerShape> kFlags[] = {
    {"is_multimer", &EvoformerShape::multimer},
    {"global_column_attention", &EvoformerShape::global_column},
    {"msa_mask", &EvoformerShape::msa_mask}};
constexpr ShareKey<EvoformerShape> kShares[] = {
    {"msa_dropout", &EvoformerShape::msa_dropout}, {"pair_dropout", &EvoformerShape::pair_dropout}};
constexpr const char* kOpenfold = "openfold";  // a model_type
constexpr std::size_t kOfExtra = 5;            // the last of the sizes
constexpr std::size_t kOfMask = 1;             // the last of the flags

// Of a model with extra blocks, or without; with masks, or without.
SizeKeys<EvoformerShape> keys(bool extra, bool mask) {
  const std::span<const SizeKey<EvoformerShape>> sizes(kSizes);
  const std::span<const FlagKey<EvoformerShape>> flags(kFlags);
  return {
      .sizes = sizes.first(sizes.size() - (extra ? 0 : kOfExtra)),
      .flags = flags.first(flags.size() - (mask ? 0 : kOfMask)),
      .shares = kShares};
}
SizeKeys<EvoformerShape> keys(const EvoformerShape& shape) {
  return keys(shape.extra_blocks > 0, shape.msa_mask);
}

}  // namespace

EvoformerShape evoformer_shape_from_config(
    const nlohmann::json& config, const std::string& source) {
  const bool openfold = config.value("model_type", "") == kOpenfold;
  EvoformerShape shape = read_sizes(config, source, keys(openfold, /*mask=*/true));
  shape.openfold = openfold;
  if (shape.extra_blocks > 0 && shape.global_column) {
    refuse_key(
        source,
        "no_extra_blocks",
        "the extra-MSA stack comes before a trunk, and global_column_attention makes the trunk "
        "such "
        "a stack itself: leave one of them out");
  }
  for (const SizeKey<EvoformerShape>& size : std::span(kSizes).last(kOfExtra)) {
    if (shape.extra_blocks == 0 && !size.optional && config.contains(size.key)) {
      refuse_key(
          source,
          size.key,
          "is of the extra-MSA stack, which this model does not have: set no_extra_blocks "
          "(AlphaFold 2 has 4), or leave it out");
    }
  }
  return shape;
}

nlohmann::ordered_json config_of(const EvoformerShape& shape) {
  return write_sizes(shape.openfold ? kOpenfold : "evoformer", shape, keys(shape));
}

EvoformerShape evoformer_shape(const Model& model) {
  return std::any_cast<EvoformerShape>(model.shape);
}

std::string architecture(const EvoformerShape& shape) {
  return std::string("evoformer") + (shape.multimer ? "-multimer" : "") +
         (shape.global_column ? "-global" : "") + (shape.extra_blocks > 0 ? "-extra" : "");
}

std::string fingerprint(const EvoformerShape& shape) {
  return fingerprint(
      architecture(shape) + (shape.openfold ? "-openfold" : "") +
          (shape.msa_mask ? "-msa_mask" : ""),
      shape,
      keys(shape));
}

ModelFamily evoformer_family() {
  const EvoformerShape published{.openfold = true, .extra_blocks = 4};
  EvoformerShape extra = extra_stack(published);
  extra.openfold = false;
  return {
      .name = "evoformer",
      .types = {"evoformer", kOpenfold},
      .read =
          [](const nlohmann::json& config, const std::string& source, std::vector<std::string>*) {
            return evoformer_model(evoformer_shape_from_config(config, source));
          },
      .variants =
          {evoformer_model({.blocks = 1}),
           evoformer_model({.blocks = 1, .multimer = true}),
           evoformer_model({.blocks = 1, .global_column = true}),
           evoformer_model({.blocks = 1, .multimer = true, .global_column = true}),
           evoformer_model({.blocks = 1, .openfold = true, .extra_blocks = 1}),
           evoformer_model({.blocks = 1, .multimer = true, .openfold = true, .extra_blocks = 1})},
      .presets = {
          {"evoformer", config_of(EvoformerShape{})},
          {"extra-msa", config_of(extra)},
          {"openfold", config_of(published)}}};
}

}  // namespace paradyse
