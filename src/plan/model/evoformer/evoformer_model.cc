// The Evoformer: the MSA m [sequences, residues, 256] and pairs z [i, j, 128].  Names of weights
// are OpenFold's (Ahdritz et al. 2024).
#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "paradyse/plan/parts.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/matrices.h"

namespace paradyse {
namespace {

void add_norm(PartWeights& part, Role role, const std::string& name, std::int64_t width) {
  part.vectors.push_back({role, name + ".weight", width, 1.0});
  part.vectors.push_back({role, name + ".bias", width});
}

// How a gated attention is called, and what it works on.
struct Attention {
  std::string part;
  std::string core;  // of its products
  std::string norm;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t key_heads = 0;  // 0: as many
  std::string bias = {};       // the linear that makes one; "": none
  std::string pair_norm = {};  // where it is made from another stream
};

PartWeights attention_weights(const EvoformerShape& shape, const Attention& a, int domain) {
  const Cuts heads = scaled(even_cuts(a.heads, domain), a.head_dim);
  const Cuts keys = a.key_heads == 0 ? heads : even_cuts(a.key_heads * a.head_dim, domain);
  PartWeights part{
      .part = a.part,
      .prefix = "blocks.",
      .matrices =
          {matrix("q", a.core + "linear_q", heads, a.width, Side::input),
           matrix("k", a.core + "linear_k", keys, a.width, Side::input),
           matrix("v", a.core + "linear_v", keys, a.width, Side::input),
           matrix("gate", a.core + "linear_g", heads, a.width, Side::input),
           matrix("o", a.core + "linear_o", heads, a.width, Side::output)},
      .vectors = {}};
  if (!a.bias.empty()) {
    part.matrices.push_back(
        matrix("bias", a.bias, even_cuts(a.heads, domain), shape.pair_hidden, Side::input));
  }
  add_norm(part, Role::norm, a.norm, a.width);
  if (!a.pair_norm.empty()) {
    add_norm(part, Role::pair_norm, a.pair_norm, shape.pair_hidden);
  }
  part.vectors.push_back({Role::gate, a.core + "linear_g.bias", a.heads * a.head_dim, 1.0});
  part.vectors.push_back({Role::out_bias, a.core + "linear_o.bias", a.width});
  return part;
}

PartWeights transition_weights(
    const std::string& part_name,
    const std::string& name,
    std::int64_t width,
    std::int64_t factor,
    int domain) {
  const Cuts wide = even_cuts(factor * width, domain);
  PartWeights part{
      .part = part_name,
      .prefix = "blocks.",
      .matrices =
          {matrix("up", name + ".linear_1", wide, width, Side::input),
           matrix("down", name + ".linear_2", wide, width, Side::output)},
      .vectors = {}};
  add_norm(part, Role::norm, name + ".layer_norm", width);
  part.vectors.push_back({Role::in_bias, name + ".linear_1.bias", factor * width});
  part.vectors.push_back({Role::out_bias, name + ".linear_2.bias", width});
  return part;
}

PartWeights outer_product_weights(const EvoformerShape& shape, int domain) {
  const std::string name = "core.outer_product_mean";
  const std::int64_t C = shape.outer_channels;
  const Cuts channels = even_cuts(C, domain);
  PartWeights part{
      .part = "outer_product_mean",
      .prefix = "blocks.",
      .matrices =
          {matrix("a", name + ".linear_1", channels, shape.msa_hidden, Side::input),
           matrix("b", name + ".linear_2", channels, shape.msa_hidden, Side::input),
           matrix(
               "o",
               name + ".linear_out",
               even_cuts(C * C, domain),
               shape.pair_hidden,
               Side::output)},
      .vectors = {}};
  add_norm(part, Role::pair_norm, name + ".layer_norm", shape.msa_hidden);
  part.vectors.push_back({Role::in_bias, name + ".linear_1.bias", C});
  part.vectors.push_back({Role::in_bias, name + ".linear_2.bias", C});
  part.vectors.push_back({Role::out_bias, name + ".linear_out.bias", shape.pair_hidden});
  return part;
}

PartWeights triangle_weights(
    const EvoformerShape& shape,
    const std::string& part_name,
    const std::string& name,
    int domain) {
  const std::int64_t C = shape.triangle_channels;
  const std::int64_t H = shape.pair_hidden;
  const Cuts channels = even_cuts(C, domain);
  PartWeights part{.part = part_name, .prefix = "blocks.", .matrices = {}, .vectors = {}};
  add_norm(part, Role::norm, name + ".layer_norm_in", H);
  add_norm(part, Role::last_norm, name + ".layer_norm_out", C);
  for (const auto& [own, linear, gate] :
       {std::tuple{"a", "linear_a_p", false},
        {"a_gate", "linear_a_g", true},
        {"b", "linear_b_p", false},
        {"b_gate", "linear_b_g", true}}) {
    const std::string full = name + "." + linear;
    part.matrices.push_back(matrix(own, full, channels, H, Side::input));
    part.vectors.push_back({Role::in_bias, full + ".bias", C, gate ? 1.0 : 0.0});
  }
  part.matrices.push_back(matrix("gate", name + ".linear_g", even_cuts(H, domain), H, Side::input));
  part.matrices.push_back(matrix("o", name + ".linear_z", even_cuts(H, domain), C, Side::input));
  part.vectors.push_back({Role::in_bias, name + ".linear_z.bias", H});  // before the gate
  part.vectors.push_back({Role::gate, name + ".linear_g.bias", H, 1.0});
  return part;
}

// What a batch brings, times a matrix.
Part embedding(
    const std::string& stream,
    const std::string& input,
    const std::string& name,
    std::int64_t width,
    std::int64_t features) {
  const std::string part_name = input + "_embedding";
  return {
      .name = part_name,
      .kind = "projection",
      .reads = {},
      .writes = {stream},
      .input = input,
      .shape = {.hidden = width},
      .weights = [=](int domain) {
        return PartWeights{
            .part = part_name,
            .prefix = "",
            .matrices = {matrix("proj", name, even_cuts(width, domain), features, Side::input)},
            .vectors = {{Role::in_bias, name + ".bias", width}}};
      }};
}

// Logits of the letters that were masked.
Part masked_msa_head(std::int64_t width) {
  const std::string name = "masked_msa_head.linear";
  return {
      .name = "masked_msa_head",
      .kind = "head",
      .reads = {"m"},
      .writes = {},
      .shape = {.hidden = width},
      .weights = [=](int domain) {
        return PartWeights{
            .part = "masked_msa_head",
            .prefix = "",
            .matrices = {matrix(
                "tokens", name, even_cuts(kMsaClasses, domain), width, Side::input)},
            .vectors = {{Role::out_bias, name + ".bias", kMsaClasses}}};
      }};
}

class Block {
 public:
  explicit Block(const EvoformerShape& shape) : shape_(shape) {}

  [[nodiscard]] std::vector<Part> parts() const {
    std::vector<Part> parts = {
        row_attention(),
        shape_.global_column ? global_column_attention() : column_attention(),
        transition("msa_transition", "m", "core.msa_transition", shape_.msa_hidden),
        outer_product(),
        triangle("triangle_outgoing", "j", "core.tri_mul_out"),
        triangle("triangle_incoming", "i", "core.tri_mul_in"),
        attention("z", "j", triangle_attention("triangle_starting", "core.tri_att_start.")),
        attention("z", "i", triangle_attention("triangle_ending", "core.tri_att_end.")),
        transition("pair_transition", "z", "core.pair_transition", shape_.pair_hidden)};
    if (shape_.multimer) {
      std::rotate(parts.begin(), parts.begin() + 3, parts.begin() + 4);
    }
    return parts;
  }

 private:
  [[nodiscard]] PartShape common(std::int64_t width) const {
    return {
        .hidden = width,
        .ffn = shape_.transition * width,
        .activation = Activation::relu,
        .norm_eps = 1e-5};
  }

  [[nodiscard]] Attention triangle_attention(
      const std::string& part, const std::string& prefix) const {
    return {
        .part = part,
        .core = prefix + "mha.",
        .norm = prefix + "layer_norm",
        .width = shape_.pair_hidden,
        .heads = shape_.pair_heads,
        .head_dim = shape_.pair_head_dim > 0 ? shape_.pair_head_dim : shape_.head_dim,
        .bias = prefix + "linear"};
  }

  [[nodiscard]] Part attention(
      const std::string& stream, const std::string& along, const Attention& a) const {
    Part part{
        .name = a.part,
        .kind = kAxialAttention,
        .reads = {stream},
        .writes = {stream},
        .along = along,
        .shape = common(a.width),
        .weights = [shape = shape_, a](int domain) { return attention_weights(shape, a, domain); }};
    part.shape.heads = part.shape.kv_heads = a.heads;
    part.shape.head_dim = a.head_dim;
    part.shape.gated_heads = true;
    part.shape.pair = a.bias.empty() ? "" : "z";
    return part;
  }

  [[nodiscard]] Part column_attention() const {
    return attention(
        "m",
        "sequences",
        {.part = "column_attention",
         .core = "msa_att_col._msa_att.mha.",
         .norm = "msa_att_col._msa_att.layer_norm_m",
         .width = shape_.msa_hidden,
         .heads = shape_.msa_heads,
         .head_dim = shape_.head_dim});
  }

  [[nodiscard]] Part global_column_attention() const {
    Part part = attention(
        "m",
        "sequences",
        {.part = "global_column_attention",
         .core = "msa_att_col.global_attention.",
         .norm = "msa_att_col.layer_norm_m",
         .width = shape_.msa_hidden,
         .heads = shape_.msa_heads,
         .head_dim = shape_.head_dim,
         .key_heads = 1});
    part.kind = kGlobalAttention;
    part.shape.kv_heads = 1;
    return part;
  }

  [[nodiscard]] Part row_attention() const {
    Part part = attention(
        "m",
        "residues",
        {.part = "row_attention",
         .core = "msa_att_row.mha.",
         .norm = "msa_att_row.layer_norm_m",
         .width = shape_.msa_hidden,
         .heads = shape_.msa_heads,
         .head_dim = shape_.head_dim,
         .bias = "msa_att_row.linear_z",
         .pair_norm = "msa_att_row.layer_norm_z"});
    part.reads = {"m", "z"};
    return part;
  }

  [[nodiscard]] Part transition(
      const std::string& name,
      const std::string& stream,
      const std::string& weights,
      std::int64_t width) const {
    return {
        .name = name,
        .kind = "mlp",
        .reads = {stream},
        .writes = {stream},
        .shape = common(width),
        .weights = [=, factor = shape_.transition](int domain) {
          return transition_weights(name, weights, width, factor, domain);
        }};
  }

  [[nodiscard]] Part outer_product() const {
    Part part{
        .name = "outer_product_mean",
        .kind = "outer_product",
        .reads = {"z", "m"},
        .writes = {"z"},
        .shape = common(shape_.pair_hidden),
        .weights = [shape = shape_](int domain) { return outer_product_weights(shape, domain); }};
    part.shape.pair = "m";
    part.shape.channels = shape_.outer_channels;
    return part;
  }

  [[nodiscard]] Part triangle(
      const std::string& name, const std::string& along, const std::string& weights) const {
    Part part{
        .name = name,
        .kind = "triangle",
        .reads = {"z"},
        .writes = {"z"},
        .along = along,
        .shape = common(shape_.pair_hidden),
        .weights = [=, shape = shape_](int domain) {
          return triangle_weights(shape, name, weights, domain);
        }};
    part.shape.channels = shape_.triangle_channels;
    return part;
  }

  EvoformerShape shape_;
};

}  // namespace

Model evoformer_model(const EvoformerShape& shape) {
  Model model{
      .name = architecture(shape),
      .family = "evoformer",
      .sha256 = fingerprint(shape),
      .config = config_of(shape).dump(),
      .shape = shape,
      .streams =
          {{.name = "m",
            .rows = {"sequences", "residues"},
            .columns = shape.msa_hidden,
            .home = "sequences"},
           {.name = "z", .rows = {"i", "j"}, .columns = shape.pair_hidden, .home = "i"}},
      .parts = {},
      .causal = false,
      .limits = {.gpus = false},
      .words = {.items = "alignments", .scored = "predicted letters"},
      .of_layers = [shape](std::int64_t layers) {
        EvoformerShape other = shape;
        other.blocks = layers;
        return evoformer_model(other);
      }};
  add_end(model, embedding("m", "msa", "input_embedder.linear_m", shape.msa_hidden, kMsaFeatures));
  add_end(
      model, embedding("z", "pair", "input_embedder.linear_z", shape.pair_hidden, kPairFeatures));
  add_layers(model, shape.blocks, Block(shape).parts());
  add_end(model, masked_msa_head(shape.msa_hidden));
  return model;
}

EvoformerShape::operator Model() const { return evoformer_model(*this); }

}  // namespace paradyse
