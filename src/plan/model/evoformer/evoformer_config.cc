#include <nlohmann/json.hpp>

#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/families.h"
#include "src/plan/model/size_keys.h"

namespace paradyse {
namespace {

constexpr SizeKey<EvoformerShape> kSizes[] = {
    {"no_blocks", &EvoformerShape::blocks},
    {"c_m", &EvoformerShape::msa_hidden},
    {"c_z", &EvoformerShape::pair_hidden},
    {"no_heads_msa", &EvoformerShape::msa_heads},
    {"no_heads_pair", &EvoformerShape::pair_heads},
    {"c_hidden", &EvoformerShape::head_dim},
    {"c_hidden_pair_att", &EvoformerShape::pair_head_dim, true},
    {"c_hidden_opm", &EvoformerShape::outer_channels},
    {"c_hidden_mul", &EvoformerShape::triangle_channels},
    {"transition_n", &EvoformerShape::transition}};
constexpr FlagKey<EvoformerShape> kFlags[] = {
    {"is_multimer", &EvoformerShape::multimer},
    {"global_column_attention", &EvoformerShape::global_column}};
constexpr ShareKey<EvoformerShape> kShares[] = {
    {"msa_dropout", &EvoformerShape::msa_dropout}, {"pair_dropout", &EvoformerShape::pair_dropout}};
constexpr SizeKeys<EvoformerShape> kKeys = {.sizes = kSizes, .flags = kFlags, .shares = kShares};
constexpr const char* kOpenfold = "openfold";  // a model_type

}  // namespace

EvoformerShape evoformer_shape_from_config(
    const nlohmann::json& config, const std::string& source) {
  EvoformerShape shape = read_sizes(config, source, kKeys);
  shape.openfold = config.value("model_type", "") == kOpenfold;
  return shape;
}

nlohmann::ordered_json config_of(const EvoformerShape& shape) {
  return write_sizes(shape.openfold ? kOpenfold : "evoformer", shape, kKeys);
}

EvoformerShape evoformer_shape(const Model& model) {
  return std::any_cast<EvoformerShape>(model.shape);
}

std::string architecture(const EvoformerShape& shape) {
  return std::string("evoformer") + (shape.multimer ? "-multimer" : "") +
         (shape.global_column ? "-global" : "");
}

std::string fingerprint(const EvoformerShape& shape) {
  return fingerprint(architecture(shape) + (shape.openfold ? "-openfold" : ""), shape, kKeys);
}

ModelFamily evoformer_family() {
  const EvoformerShape extra = {
      .blocks = 4, .msa_hidden = 64, .head_dim = 8, .pair_head_dim = 32, .global_column = true};
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
           evoformer_model({.blocks = 1, .multimer = true, .global_column = true})},
      .presets = {
          {"evoformer", config_of(EvoformerShape{})},
          {"extra-msa", config_of(extra)},
          {"openfold", config_of(EvoformerShape{.openfold = true})}}};
}

}  // namespace paradyse
