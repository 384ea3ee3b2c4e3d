// ST-DiT: x [batch, frames, patches, H] conditioned by c [batch, 8 H]: six of H for the blocks,
// shift and scale of the last layer; and, where it has text, attending to y [batch, text, H].
// STDiT3 has the first six of c alone: its last layer is conditioned by t [batch, H].
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/plan/parts.h"
#include "src/plan/model/families.h"
#include "src/plan/model/matrices.h"
#include "src/plan/model/stdit/stdit.h"

namespace paradyse {
namespace {

// Of a pixel of a patch.
std::int64_t predicted_channels(const StditShape& shape) {
  return (shape.stdit3 && shape.pred_sigma ? 2 : 1) * shape.channels;
}

// Shift, scale and gate of attention, then of the MLP: of every block the same six of c.
constexpr std::int64_t kOfAttention = 0;
constexpr std::int64_t kOfMlp = 3;
constexpr std::int64_t kOfHead = 6;  // shift and scale
constexpr std::int64_t kConditions = 8;

// Open-Sora's numbers to begin with, which are PyTorch's but for what it says itself: Glorot's
// uniform ones, or zeros.
Matrix begun(const StditShape& shape, Matrix matrix, bool zero = false) {
  if (shape.stdit3) {
    const std::int64_t rows = std::max(matrix.rows, matrix.stored_rows);
    matrix.begin = zero ? Begin::zero : Begin::uniform;
    matrix.deviation = std::sqrt(2 / static_cast<double>(rows + matrix.cols));
  }
  return matrix;
}

// Parts of a fused tensor begin at these rows of so many.
Matrix within(Matrix matrix, std::int64_t first, std::int64_t stored_rows) {
  matrix.first = first;
  matrix.stored_rows = stored_rows;
  return matrix;
}

std::string prefix_of(const StditShape& shape, const std::string& block) {
  return shape.stdit3 ? block + "_blocks." : "blocks.";
}
// In front of names below the prefix.
std::string name_of(const StditShape& shape, const std::string& block) {
  return shape.stdit3 ? "" : block + ".";
}

void add_condition(
    PartWeights& part, const StditShape& shape, const std::string& block, bool attends) {
  const std::int64_t H = shape.hidden;
  if (shape.stdit3) {  // six rows for attention and MLP: shift, scale, gate of each
    const std::int64_t first = attends ? 0 : 3;
    const double deviation = shape.adaln_zero ? 0 : 1 / std::sqrt(static_cast<double>(H));
    for (const auto& [role, row, rows] :
         {std::tuple{Role::modulate, first, 2}, {Role::gate, first + 2, 1}}) {
      part.vectors.push_back(
          {.role = role,
           .name = "scale_shift_table",
           .size = rows * H,
           .deviation = deviation,
           .first = row,
           .stored_rows = 6,
           .columns = H});
    }
    return;
  }
  const char* const of = attends ? "attn" : "mlp";
  const std::string table = block + ".scale_shift_table." + of;
  part.vectors.push_back({Role::modulate, table + ".modulate", 2 * H});
  part.vectors.push_back({Role::gate, table + ".gate", H});
}

// The same as STDiT3 has them: one tensor for all that reads x, another for what reads text.
void add_fused_attention(
    PartWeights& part,
    const StditShape& shape,
    const std::string& core,
    bool of_text,
    bool zero,
    int domain) {
  const std::int64_t H = shape.hidden;
  const Cuts heads = scaled(even_cuts(shape.heads, domain), H / shape.heads);
  const auto input = [&](const char* own, const char* stored_as) {
    return matrix(own, core + stored_as, heads, H, Side::input);
  };
  if (of_text) {
    part.matrices = {
        begun(shape, input("q", "q_linear")),
        begun(shape, within(input("k", "kv_linear"), 0, 2 * H)),
        begun(shape, within(input("v", "kv_linear"), H, 2 * H))};
    part.vectors.push_back({Role::in_bias, core + "q_linear.bias", H});
    part.vectors.push_back({Role::in_bias, core + "kv_linear.bias", 2 * H});
  } else {
    std::int64_t first = 0;
    for (const char* own : {"q", "k", "v"}) {
      part.matrices.push_back(begun(shape, within(input(own, "qkv"), first, 3 * H)));
      first += H;
    }
    part.vectors.push_back({Role::in_bias, core + "qkv.bias", 3 * H});
  }
  part.matrices.push_back(begun(shape, matrix("o", core + "proj", heads, H, Side::output), zero));
  part.vectors.push_back({Role::out_bias, core + "proj.bias", H});
  if (!of_text && shape.qk_norm) {
    part.vectors.push_back({Role::qk_norm, core + "q_norm.weight", H / shape.heads, 1.0});
    part.vectors.push_back({Role::qk_norm, core + "k_norm.weight", H / shape.heads, 1.0});
  }
}

// Queries, keys, values and the way back, with their biases, below `core`.
void add_attention(
    PartWeights& part,
    const StditShape& shape,
    const std::string& core,
    std::int64_t kv_heads,
    int domain) {
  const std::int64_t H = shape.hidden;
  const std::int64_t D = H / shape.heads;
  const Cuts query = scaled(even_cuts(shape.heads, domain), D);
  const Cuts key = even_cuts(kv_heads * D, domain);
  part.matrices = {
      matrix("q", core + "q", query, H, Side::input),
      matrix("k", core + "k", key, H, Side::input),
      matrix("v", core + "v", key, H, Side::input),
      matrix("o", core + "proj", query, H, Side::output)};
  for (const auto& [name, heads] :
       {std::pair{"q", shape.heads}, {"k", kv_heads}, {"v", kv_heads}}) {
    part.vectors.push_back({Role::in_bias, core + name + ".bias", heads * D});
  }
  part.vectors.push_back({Role::out_bias, core + "proj.bias", H});
}

PartWeights attention(const StditShape& shape, const std::string& block, int domain) {
  PartWeights part{
      .part = block + "_attention",
      .prefix = prefix_of(shape, block),
      .matrices = {},
      .vectors = {}};
  const std::string core = name_of(shape, block) + "attn.";
  add_condition(part, shape, block, true);
  if (shape.stdit3) {
    add_fused_attention(part, shape, core, /*of_text=*/false, block == "temporal", domain);
  } else {
    add_attention(part, shape, core, shape.kv_heads, domain);
  }
  return part;
}

PartWeights mlp(const StditShape& shape, const std::string& block, int domain) {
  const Cuts width = even_cuts(shape.mlp_hidden, domain);
  const std::string name = name_of(shape, block) + "mlp.";
  PartWeights part{
      .part = block + "_mlp",
      .prefix = prefix_of(shape, block),
      .matrices =
          {begun(shape, matrix("up", name + "fc1", width, shape.hidden, Side::input)),
           begun(
               shape,
               matrix("down", name + "fc2", width, shape.hidden, Side::output),
               block == "temporal")},
      .vectors = {}};
  add_condition(part, shape, block, false);
  part.vectors.push_back({Role::in_bias, name + "fc1.bias", shape.mlp_hidden});
  part.vectors.push_back({Role::out_bias, name + "fc2.bias", shape.hidden});
  return part;
}

// Of x to the text: the stream as it is, neither normed nor gated (Chen et al. 2024, PixArt).
PartWeights cross_attention(const StditShape& shape, const std::string& block, int domain) {
  PartWeights part{
      .part = block + "_text", .prefix = prefix_of(shape, block), .matrices = {}, .vectors = {}};
  const std::string core = name_of(shape, block) + "cross_attn.";
  if (shape.stdit3) {
    add_fused_attention(part, shape, core, /*of_text=*/true, block == "temporal", domain);
  } else {
    add_attention(part, shape, core, shape.heads, domain);
  }
  return part;
}

// Two products with a function between them, of so many columns.
PartWeights small_mlp(
    const StditShape& shape,
    const std::string& part_name,
    const std::string& first,
    const std::string& last,
    std::int64_t columns,
    int domain) {
  const Cuts rows = even_cuts(shape.hidden, domain);
  return {
      .part = part_name,
      .prefix = "",
      .matrices =
          {begun(shape, matrix("in", first, rows, columns, Side::input)),
           begun(shape, matrix("out", last, rows, shape.hidden, Side::input))},
      .vectors = {
          {Role::in_bias, first + ".bias", shape.hidden},
          {Role::in_bias, last + ".bias", shape.hidden}}};
}

// Frames a second add nothing at first (Open-Sora 1.2).
PartWeights frame_rate(const StditShape& shape, int domain) {
  PartWeights part = small_mlp(
      shape, "frame_rate", "fps_embedder.mlp.0", "fps_embedder.mlp.2", kTimeFeatures, domain);
  part.matrices.front().begin = Begin::normal;
  part.matrices.front().deviation = 0.02;
  part.matrices.back().begin = Begin::zero;
  return part;
}

// Shift, scale and gate of attention and of the MLP, for all blocks.
PartWeights modulation(const StditShape& shape, int domain) {
  const std::int64_t columns = 6 * shape.hidden;
  return {
      .part = "modulation",
      .prefix = "",
      .matrices = {begun(
          shape,
          matrix("modulation", "t_block.1", even_cuts(columns, domain), shape.hidden, Side::input),
          shape.adaln_zero)},
      .vectors = {{Role::in_bias, "t_block.1.bias", columns}}};
}

PartWeights caption_embedding(const StditShape& shape, int domain) {
  return {
      .part = "caption_embedding",
      .prefix = "",
      .matrices = {matrix(
          "proj",
          "y_embedder.proj",
          even_cuts(shape.hidden, domain),
          shape.caption_channels,
          Side::input)},
      .vectors = {{Role::in_bias, "y_embedder.proj.bias", shape.hidden}}};
}

PartWeights patch_embedding(const StditShape& shape, int domain) {
  if (shape.stdit3) {  // a convolution whose patches do not overlap, as PyTorch begins one
    const std::int64_t columns = shape.channels * shape.patch * shape.patch;
    const double deviation = std::sqrt(1 / (3 * static_cast<double>(columns)));
    PartWeights part{
        .part = "patch_embedding",
        .prefix = "",
        .matrices = {matrix(
            "proj", "x_embedder.proj", even_cuts(shape.hidden, domain), columns, Side::input)},
        .vectors = {
            {.role = Role::in_bias,
             .name = "x_embedder.proj.bias",
             .size = shape.hidden,
             .deviation = deviation,
             .begin = Begin::uniform}}};
    Matrix& proj = part.matrices.front();
    proj.stored_shape = {shape.hidden, shape.channels, 1, shape.patch, shape.patch};
    proj.begin = Begin::uniform;
    proj.deviation = deviation;
    return part;
  }
  const std::int64_t columns = shape.channels * shape.patch * shape.patch + kPlaceFeatures;
  return {
      .part = "patch_embedding",
      .prefix = "",
      .matrices = {matrix(
          "proj", "x_embedder.proj", even_cuts(shape.hidden, domain), columns, Side::input)},
      .vectors = {{Role::in_bias, "x_embedder.proj.bias", shape.hidden}}};
}

PartWeights conditioning(const StditShape& shape, int domain) {
  const std::int64_t H = shape.hidden;
  PartWeights part{.part = "conditioning", .prefix = "", .matrices = {}, .vectors = {}};
  for (const auto& [own, name, rows, columns] :
       {std::tuple{"time_in", "t_embedder.mlp.0", H, kTimeFeatures},
        {"time_out", "t_embedder.mlp.2", H, H},
        {"modulation", "t_block.1", kConditions * H, H}}) {
    part.matrices.push_back(matrix(own, name, even_cuts(rows, domain), columns, Side::input));
    part.vectors.push_back({Role::in_bias, std::string(name) + ".bias", rows});
  }
  return part;
}

PartWeights flow_head(const StditShape& shape, int domain) {
  const std::int64_t H = shape.hidden;
  const std::int64_t columns = predicted_channels(shape) * shape.patch * shape.patch;
  if (shape.stdit3) {
    return {
        .part = "flow_head",
        .prefix = "",
        .matrices = {begun(
            shape,
            matrix("proj", "final_layer.linear", even_cuts(columns, domain), H, Side::input))},
        .vectors = {
            {.role = Role::modulate,
             .name = "final_layer.scale_shift_table",
             .size = 2 * H,
             .deviation = shape.adaln_zero ? 0 : 1 / std::sqrt(static_cast<double>(H)),
             .stored_rows = 2,
             .columns = H},
            {Role::in_bias, "final_layer.linear.bias", columns}}};
  }
  return {
      .part = "flow_head",
      .prefix = "",
      .matrices = {matrix(
          "proj", "final_layer.linear", even_cuts(columns, domain), shape.hidden, Side::input)},
      .vectors = {
          {Role::modulate, "final_layer.scale_shift_table", 2 * shape.hidden},
          {Role::in_bias, "final_layer.linear.bias", columns}}};
}

PartShape part_shape(const StditShape& shape, std::int64_t condition) {
  return {
      .hidden = shape.hidden,
      .heads = shape.heads,
      .kv_heads = shape.kv_heads,
      .head_dim = shape.hidden / shape.heads,
      .ffn = shape.mlp_hidden,
      .activation = Activation::gelu_tanh,
      .norm_eps = 1e-6,
      .condition = "c",
      .condition_first = condition * shape.hidden};
}

std::vector<Part> pair_of_blocks(const StditShape& shape) {
  std::vector<Part> pair;
  const bool has_text = shape.caption_channels > 0;
  for (const auto& [block, along] :
       {std::pair<std::string, std::string>{"spatial", "patches"}, {"temporal", "frames"}}) {
    pair.push_back(
        {.name = block + "_attention",
         .kind = kAxialAttention,
         .reads = {"x", "c"},
         .writes = {"x"},
         .along = along,
         .shape = part_shape(shape, kOfAttention),
         .weights = [shape, name = block](int domain) { return attention(shape, name, domain); }});
    if (has_text) {
      pair.push_back(
          {.name = block + "_text",
           .kind = kCrossAttention,
           .reads = {"x", "y"},
           .writes = {"x"},
           .shape =
               {.hidden = shape.hidden,
                .heads = shape.heads,
                .kv_heads = shape.heads,
                .head_dim = shape.hidden / shape.heads},
           .weights = [shape, name = block](int domain) {
             return cross_attention(shape, name, domain);
           }});
    }
    pair.push_back(
        {.name = block + "_mlp",
         .kind = "mlp",
         .reads = {"x", "c"},
         .writes = {"x"},
         .shape = part_shape(shape, kOfMlp),
         .weights = [shape, name = block](int domain) { return mlp(shape, name, domain); }});
  }
  if (shape.stdit3) {
    for (Part& part : pair) {
      if (part.kind == kAxialAttention) {
        part.shape.qk_norm = shape.qk_norm;
        if (part.along == "frames") {
          part.shape.rope = Rope{.interleaved = true, .along = part.along};
        }
      }
    }
  }
  return pair;
}

// A part that makes, or adds to, a stream from what a batch brings.
Part small_mlp_part(
    const StditShape& shape,
    const std::string& name,
    const std::string& stream,
    const std::string& input,
    Activation activation,
    bool adds,
    std::function<PartWeights(int domain)> weights) {
  return {
      .name = name,
      .kind = "small_mlp",
      .reads = adds ? std::vector<std::string>{stream} : std::vector<std::string>{},
      .writes = {stream},
      .input = input,
      .shape = {.hidden = shape.hidden, .activation = activation},
      .weights = std::move(weights)};
}

// Streams, parts and other names of STDiT3, after the stream x.
void make_stdit3(Model& model, const StditShape& shape) {
  model.streams.pop_back();
  model.streams.push_back({.name = "t", .rows = {"batch"}, .columns = shape.hidden, .home = ""});
  model.streams.push_back(
      {.name = "c", .rows = {"batch"}, .columns = 6 * shape.hidden, .home = ""});
  model.streams.push_back(
      {.name = "y", .rows = {"batch", "text"}, .columns = shape.hidden, .home = ""});
  model.other_names.unused = {"rope.freqs", "pos_embed.", "y_embedder.y_embedding"};
  add_end(
      model,
      small_mlp_part(shape, "timestep", "t", "time", Activation::silu, false, [shape](int domain) {
        return small_mlp(
            shape, "timestep", "t_embedder.mlp.0", "t_embedder.mlp.2", kTimeFeatures, domain);
      }));
  add_end(
      model,
      small_mlp_part(shape, "frame_rate", "t", "fps", Activation::silu, true, [shape](int domain) {
        return frame_rate(shape, domain);
      }));
  add_end(
      model,
      {.name = "modulation",
       .kind = "modulation",
       .reads = {"t"},
       .writes = {"c"},
       .shape = {.hidden = shape.hidden, .activation = Activation::silu},
       .weights = [shape](int domain) { return modulation(shape, domain); }});
  add_end(
      model,
      {.name = "patch_embedding",
       .kind = kProjection,
       .reads = {},
       .writes = {"x"},
       .input = "patches",
       .shape = {.hidden = shape.hidden, .added = shape.hidden},
       .weights = [shape](int domain) { return patch_embedding(shape, domain); }});
  add_end(
      model,
      small_mlp_part(
          shape,
          "caption_embedding",
          "y",
          "text",
          Activation::gelu_tanh,
          false,
          [shape](int domain) {
            return small_mlp(
                shape,
                "caption_embedding",
                "y_embedder.y_proj.fc1",
                "y_embedder.y_proj.fc2",
                shape.caption_channels,
                domain);
          }));
  add_layers(model, shape.depth, pair_of_blocks(shape));
  Part head{
      .name = "flow_head",
      .kind = "flow_head",
      .reads = {"x", "t"},
      .writes = {},
      .input = "velocity",
      .shape = part_shape(shape, 0),
      .weights = [shape](int domain) { return flow_head(shape, domain); }};
  head.shape.condition = "t";
  head.shape.condition_once = true;
  if (shape.pred_sigma) {
    head.shape.predicted = predicted_channels(shape);
    head.shape.scored = shape.channels;
  }
  add_end(model, std::move(head));
}

// As its configuration would say the sizes, which is judged by the same rules.
StditShape resized(StditShape shape, const OtherSizes& sizes) {
  expect_changed(
      sizes,
      architecture(shape),
      {&OtherSizes::layers, &OtherSizes::hidden, &OtherSizes::kv_heads});
  if (sizes.hidden || sizes.kv_heads) {
    nlohmann::ordered_json config = config_of(shape);
    if (sizes.hidden) {
      config["hidden_size"] = *sizes.hidden;
      if (!shape.stdit3) {  // whose configuration has a ratio
        config["mlp_hidden_size"] = static_cast<std::int64_t>(
            static_cast<double>(shape.mlp_hidden) * static_cast<double>(*sizes.hidden) /
            static_cast<double>(shape.hidden));
      }
    }
    if (sizes.kv_heads) {
      config["num_key_value_heads"] = *sizes.kv_heads;
    }
    shape = stdit_shape_from_config(config, architecture(shape));
  }
  shape.depth = sizes.layers.value_or(shape.depth);
  return shape;
}

}  // namespace

Model stdit_model(const StditShape& shape) {
  Model model{
      .name = architecture(shape),
      .family = "stdit",
      .sha256 = fingerprint(shape),
      .config = config_of(shape).dump(),
      .shape = shape,
      .streams =
          {{.name = "x",
            .rows = {"batch", "frames", "patches"},
            .columns = shape.hidden,
            .home = "frames"},
           {.name = "c", .rows = {"batch"}, .columns = kConditions * shape.hidden, .home = ""}},
      .parts = {},
      .causal = false,
      .limits = {.gpus = false},
      .words = {.items = "clips", .scored = "predicted elements", .perplexity = false},
      .of_sizes = [shape](const OtherSizes& sizes) { return stdit_model(resized(shape, sizes)); }};
  if (shape.stdit3) {
    make_stdit3(model, shape);
    return model;
  }
  Part conditions{
      .name = "conditioning",
      .kind = "conditioning",
      .reads = {},
      .writes = {"c"},
      .input = "time",
      .shape = part_shape(shape, 0),
      .weights = [shape](int domain) { return conditioning(shape, domain); }};
  conditions.shape.condition = "";
  conditions.shape.activation = Activation::silu;
  add_end(model, std::move(conditions));
  add_end(
      model,
      {.name = "patch_embedding",
       .kind = kProjection,
       .reads = {},
       .writes = {"x"},
       .input = "patches",
       .shape = {.hidden = shape.hidden},
       .weights = [shape](int domain) { return patch_embedding(shape, domain); }});
  const bool has_text = shape.caption_channels > 0;
  if (has_text) {
    model.streams.push_back(
        {.name = "y", .rows = {"batch", "text"}, .columns = shape.hidden, .home = ""});
    add_end(
        model,
        {.name = "caption_embedding",
         .kind = kProjection,
         .reads = {},
         .writes = {"y"},
         .input = "text",
         .shape = {.hidden = shape.hidden},
         .weights = [shape](int domain) { return caption_embedding(shape, domain); }});
  }
  add_layers(model, shape.depth, pair_of_blocks(shape));
  add_end(
      model,
      {.name = "flow_head",
       .kind = "flow_head",
       .reads = {"x", "c"},
       .writes = {},
       .input = "velocity",
       .shape = part_shape(shape, kOfHead),
       .weights = [shape](int domain) { return flow_head(shape, domain); }});
  return model;
}

StditShape::operator Model() const { return stdit_model(*this); }

}  // namespace paradyse
