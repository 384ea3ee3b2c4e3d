// The Evoformer: the MSA m [sequences, residues, 256] and pairs z [i, j, 128].
//
// Names of weights are those of OpenFold's first version (Ahdritz et al. 2024) below "blocks."; of
// an `openfold` shape those of today's, with the numbers that its modules begin with.
#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "paradyse/plan/parts.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/families.h"
#include "src/plan/model/matrices.h"

namespace paradyse {
namespace {

// How a weight begins, by OpenFold's names for it (Jumper et al. 2021, supplement 1.11.4); the
// biases that go with gating are one.
enum class Scheme { lecun, he, glorot, gating, normal, final };

Matrix begun(const EvoformerShape& shape, Matrix matrix, Scheme scheme) {
  if (!shape.openfold) {
    return matrix;
  }
  const auto rows = static_cast<double>(matrix.rows);
  const auto cols = static_cast<double>(matrix.cols);
  const double fan_in = matrix.transposed ? rows : cols;
  switch (scheme) {
    case Scheme::lecun:
      matrix.begin = Begin::truncated;
      matrix.deviation = std::sqrt(1 / fan_in);
      break;
    case Scheme::he:
      matrix.begin = Begin::truncated;
      matrix.deviation = std::sqrt(2 / fan_in);
      break;
    case Scheme::glorot:
      matrix.begin = Begin::uniform;
      matrix.deviation = std::sqrt(2 / (rows + cols));
      break;
    case Scheme::normal:
      matrix.deviation = std::sqrt(1 / fan_in);
      break;
    case Scheme::gating:
    case Scheme::final:
      matrix.begin = Begin::zero;
      break;
  }
  return matrix;
}

// Layers that are alike: the trunk's, or those of the extra sequences.
struct Blocks {
  EvoformerShape shape;            // sizes of these
  std::string stream = "m";        // they work on it and on z
  std::string rows = "sequences";  // and residues
  std::string parts = {};          // what the names of their parts begin with
  std::string weights = "blocks.";
  std::int64_t first_layer = 0;
  std::string mask = {};  // of the stream's rows; "": all count

  // What works on the MSA without attention; what works on pairs.
  [[nodiscard]] std::string msa_name(const std::string& name) const {
    return (shape.openfold ? "" : "core.") + name;
  }
  [[nodiscard]] std::string pair_name(const std::string& name) const {
    return (shape.openfold ? "pair_stack." : "core.") + name;
  }
  [[nodiscard]] PartWeights no_weights(const std::string& part) const {
    return {
        .part = parts + part,
        .prefix = weights,
        .first_layer = first_layer,
        .matrices = {},
        .vectors = {}};
  }
};

Blocks trunk(const EvoformerShape& shape) {
  return {
      .shape = shape,
      .weights = shape.openfold ? "evoformer.blocks." : "blocks.",
      .first_layer = shape.extra_blocks,
      .mask = shape.msa_mask ? "msa_mask" : ""};
}
Blocks extra(const EvoformerShape& shape) {
  return {
      .shape = extra_stack(shape),
      .stream = "e",
      .rows = "extra_sequences",
      .parts = kExtra,
      .weights = "extra_msa_stack.blocks.",
      .mask = shape.msa_mask ? "extra_msa_mask" : ""};
}

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

PartWeights attention_weights(const Blocks& of, const Attention& a, int domain) {
  const EvoformerShape& shape = of.shape;
  const Cuts heads = scaled(even_cuts(a.heads, domain), a.head_dim);
  const Cuts keys = a.key_heads == 0 ? heads : even_cuts(a.key_heads * a.head_dim, domain);
  PartWeights part = of.no_weights(a.part);
  for (const auto& [own, name, cuts, side, scheme] :
       {std::tuple{"q", "linear_q", heads, Side::input, Scheme::glorot},
        {"k", "linear_k", keys, Side::input, Scheme::glorot},
        {"v", "linear_v", keys, Side::input, Scheme::glorot},
        {"gate", "linear_g", heads, Side::input, Scheme::gating},
        {"o", "linear_o", heads, Side::output, Scheme::final}}) {
    part.matrices.push_back(begun(shape, matrix(own, a.core + name, cuts, a.width, side), scheme));
  }
  if (!a.bias.empty()) {
    part.matrices.push_back(begun(
        shape,
        matrix("bias", a.bias, even_cuts(a.heads, domain), shape.pair_hidden, Side::input),
        Scheme::normal));
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
    const Blocks& of,
    const std::string& part_name,
    const std::string& name,
    std::int64_t width,
    int domain) {
  const EvoformerShape& shape = of.shape;
  const std::int64_t factor = shape.transition;
  const Cuts wide = even_cuts(factor * width, domain);
  PartWeights part = of.no_weights(part_name);
  part.matrices = {
      begun(shape, matrix("up", name + ".linear_1", wide, width, Side::input), Scheme::he),
      begun(shape, matrix("down", name + ".linear_2", wide, width, Side::output), Scheme::final)};
  add_norm(part, Role::norm, name + ".layer_norm", width);
  part.vectors.push_back({Role::in_bias, name + ".linear_1.bias", factor * width});
  part.vectors.push_back({Role::out_bias, name + ".linear_2.bias", width});
  return part;
}

PartWeights outer_product_weights(const Blocks& of, int domain) {
  const EvoformerShape& shape = of.shape;
  const std::string name = of.msa_name("outer_product_mean");
  const std::int64_t C = shape.outer_channels;
  const Cuts channels = even_cuts(C, domain);
  PartWeights part = of.no_weights("outer_product_mean");
  const Cuts pairs = even_cuts(C * C, domain);
  part.matrices = {
      begun(
          shape,
          matrix("a", name + ".linear_1", channels, shape.msa_hidden, Side::input),
          Scheme::lecun),
      begun(
          shape,
          matrix("b", name + ".linear_2", channels, shape.msa_hidden, Side::input),
          Scheme::lecun),
      begun(
          shape,
          matrix("o", name + ".linear_out", pairs, shape.pair_hidden, Side::output),
          Scheme::final)};
  add_norm(part, Role::pair_norm, name + ".layer_norm", shape.msa_hidden);
  part.vectors.push_back({Role::in_bias, name + ".linear_1.bias", C});
  part.vectors.push_back({Role::in_bias, name + ".linear_2.bias", C});
  part.vectors.push_back({Role::out_bias, name + ".linear_out.bias", shape.pair_hidden});
  return part;
}

PartWeights triangle_weights(
    const Blocks& of, const std::string& part_name, const std::string& name, int domain) {
  const EvoformerShape& shape = of.shape;
  const std::int64_t C = shape.triangle_channels;
  const std::int64_t H = shape.pair_hidden;
  const Cuts channels = even_cuts(C, domain);
  PartWeights part = of.no_weights(part_name);
  add_norm(part, Role::norm, name + ".layer_norm_in", H);
  add_norm(part, Role::last_norm, name + ".layer_norm_out", C);
  for (const auto& [own, linear, gate] :
       {std::tuple{"a", "linear_a_p", false},
        {"a_gate", "linear_a_g", true},
        {"b", "linear_b_p", false},
        {"b_gate", "linear_b_g", true}}) {
    const std::string full = name + "." + linear;
    part.matrices.push_back(begun(
        shape, matrix(own, full, channels, H, Side::input), gate ? Scheme::gating : Scheme::lecun));
    part.vectors.push_back({Role::in_bias, full + ".bias", C, gate ? 1.0 : 0.0});
  }
  part.matrices.push_back(begun(
      shape,
      matrix("gate", name + ".linear_g", even_cuts(H, domain), H, Side::input),
      Scheme::gating));
  part.matrices.push_back(begun(
      shape, matrix("o", name + ".linear_z", even_cuts(H, domain), C, Side::input), Scheme::final));
  part.vectors.push_back({Role::in_bias, name + ".linear_z.bias", H});  // before the gate
  part.vectors.push_back({Role::gate, name + ".linear_g.bias", H, 1.0});
  return part;
}

// A product of an embedding: of so many columns of what a batch brings.
struct Product {
  const char* own;
  const char* stored_as;
  std::int64_t features;
};

// The sum of products of what a batch brings.
Part embedding(
    const EvoformerShape& shape,
    const std::string& stream,
    const std::string& input,
    std::int64_t width,
    const std::vector<Product>& products) {
  const std::string part_name = input + "_embedding";
  return {
      .name = part_name,
      .kind = kProjection,
      .reads = {},
      .writes = {stream},
      .input = input,
      .shape = {.hidden = width},
      .weights = [=](int domain) {
        PartWeights part{.part = part_name, .prefix = "", .matrices = {}, .vectors = {}};
        for (const Product& one : products) {
          const std::string name = one.stored_as;
          part.matrices.push_back(begun(
              shape,
              matrix(one.own, name, even_cuts(width, domain), one.features, Side::input),
              Scheme::lecun));
          part.vectors.push_back({Role::in_bias, name + ".bias", width});
        }
        return part;
      }};
}

// Logits of the letters that were masked.
Part masked_msa_head(const EvoformerShape& shape) {
  const std::int64_t width = shape.msa_hidden;
  const std::string name =
      shape.openfold ? "aux_heads.masked_msa.linear" : "masked_msa_head.linear";
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
            .matrices = {begun(
                shape,
                matrix("tokens", name, even_cuts(kMsaClasses, domain), width, Side::input),
                Scheme::final)},
            .vectors = {{Role::out_bias, name + ".bias", kMsaClasses}}};
      }};
}

// The parts of one of the blocks.
class Block {
 public:
  explicit Block(Blocks of) : of_(std::move(of)) {}

  [[nodiscard]] std::vector<Part> parts() const {
    const EvoformerShape& shape = of_.shape;
    std::vector<Part> parts = {
        row_attention(),
        shape.global_column ? global_column_attention() : column_attention(),
        transition("msa_transition", of_.stream, of_.msa_name("msa_transition"), shape.msa_hidden),
        outer_product(),
        triangle("triangle_outgoing", "j", of_.pair_name("tri_mul_out")),
        triangle("triangle_incoming", "i", of_.pair_name("tri_mul_in")),
        triangle_attention("triangle_starting", "j", of_.pair_name("tri_att_start.")),
        triangle_attention("triangle_ending", "i", of_.pair_name("tri_att_end.")),
        transition("pair_transition", "z", of_.pair_name("pair_transition"), shape.pair_hidden)};
    for (Part& part : parts) {
      if (part.name == "row_attention") {
        part.shape.dropout = shape.msa_dropout;
        part.shape.dropout_shared = of_.rows;
      } else if (part.name.starts_with("triangle_")) {
        part.shape.dropout = shape.pair_dropout;
        part.shape.dropout_shared = part.name == "triangle_ending" ? "j" : "i";
      }
      part.name = of_.parts + part.name;
    }
    if (shape.multimer) {
      std::rotate(parts.begin(), parts.begin() + 3, parts.begin() + 4);
    }
    return parts;
  }

 private:
  [[nodiscard]] PartShape common(std::int64_t width) const {
    return {
        .hidden = width,
        .ffn = of_.shape.transition * width,
        .activation = Activation::relu,
        .norm_eps = 1e-5};
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
        .weights = [of = of_, a](int domain) { return attention_weights(of, a, domain); }};
    part.shape.heads = part.shape.kv_heads = a.heads;
    part.shape.head_dim = a.head_dim;
    part.shape.gated_heads = true;
    part.shape.pair = a.bias.empty() ? "" : "z";
    part.shape.mask = stream == of_.stream ? of_.mask : "";
    return part;
  }

  [[nodiscard]] Part triangle_attention(
      const std::string& name, const std::string& along, const std::string& weights) const {
    const EvoformerShape& shape = of_.shape;
    return attention(
        "z",
        along,
        {.part = name,
         .core = weights + "mha.",
         .norm = weights + "layer_norm",
         .width = shape.pair_hidden,
         .heads = shape.pair_heads,
         .head_dim = shape.pair_head_dim > 0 ? shape.pair_head_dim : shape.head_dim,
         .bias = weights + "linear"});
  }

  // Of the MSA, along its rows or columns.
  [[nodiscard]] Attention msa_attention(
      const std::string& name, const std::string& core, const std::string& norm) const {
    return {
        .part = name,
        .core = core,
        .norm = norm,
        .width = of_.shape.msa_hidden,
        .heads = of_.shape.msa_heads,
        .head_dim = of_.shape.head_dim};
  }

  [[nodiscard]] Part column_attention() const {
    return attention(
        of_.stream,
        of_.rows,
        msa_attention(
            "column_attention", "msa_att_col._msa_att.mha.", "msa_att_col._msa_att.layer_norm_m"));
  }

  [[nodiscard]] Part global_column_attention() const {
    Attention columns = msa_attention(
        "global_column_attention", "msa_att_col.global_attention.", "msa_att_col.layer_norm_m");
    columns.key_heads = 1;
    Part part = attention(of_.stream, of_.rows, columns);
    part.kind = kGlobalAttention;
    part.shape.kv_heads = 1;
    return part;
  }

  [[nodiscard]] Part row_attention() const {
    Attention rows = msa_attention("row_attention", "msa_att_row.mha.", "msa_att_row.layer_norm_m");
    rows.bias = "msa_att_row.linear_z";
    rows.pair_norm = "msa_att_row.layer_norm_z";
    Part part = attention(of_.stream, "residues", rows);
    part.reads = {of_.stream, "z"};
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
        .weights = [=, of = of_](int domain) {
          return transition_weights(of, name, weights, width, domain);
        }};
  }

  [[nodiscard]] Part outer_product() const {
    Part part{
        .name = "outer_product_mean",
        .kind = "outer_product",
        .reads = {"z", of_.stream},
        .writes = {"z"},
        .shape = common(of_.shape.pair_hidden),
        .weights = [of = of_](int domain) { return outer_product_weights(of, domain); }};
    part.shape.pair = of_.stream;
    part.shape.mask = of_.mask;
    part.shape.channels = of_.shape.outer_channels;
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
        .shape = common(of_.shape.pair_hidden),
        .weights = [=, of = of_](int domain) {
          return triangle_weights(of, name, weights, domain);
        }};
    part.shape.channels = of_.shape.triangle_channels;
    return part;
  }

  Blocks of_;
};

// Files of AlphaFold's whole model by OpenFold, of its versions 2 and 1.
OtherNames openfold_names(bool with_extra) {
  OtherNames names{
      .older =
          {{".msa_transition.", ".core.msa_transition."},
           {".outer_product_mean.", ".core.outer_product_mean."},
           {".pair_stack.", ".core."}},
      .unused = {
          "structure_module.",
          "aux_heads.",
          "recycling_embedder.",
          "template_",
          "evoformer.linear."}};
  if (!with_extra) {
    names.unused.emplace_back("extra_msa_");
  }
  return names;
}

// So many layers in all, each stack its share of them and at least one; of none, none.
EvoformerShape with_blocks(EvoformerShape shape, std::int64_t layers) {
  const std::int64_t all = shape.extra_blocks + shape.blocks;
  if (shape.extra_blocks > 0 && layers > 0) {
    const std::int64_t share = (shape.extra_blocks * layers + all / 2) / all;
    shape.extra_blocks = std::clamp<std::int64_t>(share, 1, std::max<std::int64_t>(1, layers - 1));
    layers = std::max<std::int64_t>(1, layers - shape.extra_blocks);
  }
  shape.extra_blocks = layers == 0 ? 0 : shape.extra_blocks;
  shape.blocks = layers;
  return shape;
}

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
            .home = "sequences",
            .mask = trunk(shape).mask},
           {.name = "z", .rows = {"i", "j"}, .columns = shape.pair_hidden, .home = "i"}},
      .parts = {},
      .causal = false,
      .limits = {.gpus = false},
      .words = {.items = "alignments", .scored = "predicted letters"},
      .of_sizes = [shape](const OtherSizes& sizes) {
        expect_changed(sizes, architecture(shape), {&OtherSizes::layers});
        return evoformer_model(sizes.layers ? with_blocks(shape, *sizes.layers) : shape);
      }};
  std::vector<Product> of_msa = {{"proj", "input_embedder.linear_m", kMsaFeatures}};
  std::vector<Product> of_pair = {{"proj", "input_embedder.linear_z", kPairFeatures}};
  if (shape.openfold) {
    of_msa = {
        {"target", "input_embedder.linear_tf_m", kTargetFeatures},
        {"msa", "input_embedder.linear_msa_m", kLetterFeatures}};
    of_pair = {
        {"i", "input_embedder.linear_tf_z_i", kTargetFeatures},
        {"j", "input_embedder.linear_tf_z_j", kTargetFeatures},
        {"place", "input_embedder.linear_relpos", kPlaceBins}};
    model.other_names = openfold_names(shape.extra_blocks > 0);
  }
  add_end(model, embedding(shape, "m", "msa", shape.msa_hidden, of_msa));
  add_end(model, embedding(shape, "z", "pair", shape.pair_hidden, of_pair));
  if (shape.extra_blocks > 0) {
    const Blocks blocks = extra(shape);
    model.streams.push_back(
        {.name = blocks.stream,
         .rows = {blocks.rows, "residues"},
         .columns = blocks.shape.msa_hidden,
         .home = blocks.rows,
         .mask = blocks.mask});
    const Product product{"proj", "extra_msa_embedder.linear", kExtraFeatures};
    add_end(
        model, embedding(shape, blocks.stream, "extra_msa", blocks.shape.msa_hidden, {product}));
    add_layers(model, shape.extra_blocks, Block(blocks).parts());
  }
  add_layers(model, shape.blocks, Block(trunk(shape)).parts());
  add_end(model, masked_msa_head(shape));
  return model;
}

EvoformerShape extra_stack(const EvoformerShape& shape) {
  EvoformerShape stack = shape;
  stack.blocks = shape.extra_blocks;
  stack.msa_hidden = shape.extra_hidden;
  stack.msa_heads = shape.extra_heads;
  stack.head_dim = shape.extra_head_dim;
  stack.pair_head_dim = shape.pair_head_dim > 0 ? shape.pair_head_dim : shape.head_dim;
  stack.outer_channels = shape.extra_outer_channels;
  stack.global_column = true;
  stack.extra_blocks = 0;
  return stack;
}

EvoformerShape::operator Model() const { return evoformer_model(*this); }

}  // namespace paradyse
