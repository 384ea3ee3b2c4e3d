// ST-DiT: x [batch, frames, patches, H] conditioned by c [batch, 8 H]: six of H for the blocks,
// shift and scale of the last layer; and, where it has text, attending to y [batch, text, H].
#include <string>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "paradyse/plan/parts.h"
#include "src/plan/model/matrices.h"
#include "src/plan/model/stdit/stdit.h"

namespace paradyse {
namespace {

// Shift, scale and gate of attention, then of the MLP: of every block the same six of c.
constexpr std::int64_t kOfAttention = 0;
constexpr std::int64_t kOfMlp = 3;
constexpr std::int64_t kOfHead = 6;  // shift and scale
constexpr std::int64_t kConditions = 8;

void add_condition(PartWeights& part, const std::string& block, const char* of, std::int64_t H) {
  const std::string table = block + ".scale_shift_table." + of;
  part.vectors.push_back({Role::modulate, table + ".modulate", 2 * H});
  part.vectors.push_back({Role::gate, table + ".gate", H});
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
      .part = block + "_attention", .prefix = "blocks.", .matrices = {}, .vectors = {}};
  add_condition(part, block, "attn", shape.hidden);
  add_attention(part, shape, block + ".attn.", shape.kv_heads, domain);
  return part;
}

PartWeights mlp(const StditShape& shape, const std::string& block, int domain) {
  const Cuts width = even_cuts(shape.mlp_hidden, domain);
  PartWeights part{
      .part = block + "_mlp",
      .prefix = "blocks.",
      .matrices =
          {matrix("up", block + ".mlp.fc1", width, shape.hidden, Side::input),
           matrix("down", block + ".mlp.fc2", width, shape.hidden, Side::output)},
      .vectors = {}};
  add_condition(part, block, "mlp", shape.hidden);
  part.vectors.push_back({Role::in_bias, block + ".mlp.fc1.bias", shape.mlp_hidden});
  part.vectors.push_back({Role::out_bias, block + ".mlp.fc2.bias", shape.hidden});
  return part;
}

// Of x to the text: the stream as it is, neither normed nor gated (Chen et al. 2024, PixArt).
PartWeights cross_attention(const StditShape& shape, const std::string& block, int domain) {
  PartWeights part{.part = block + "_text", .prefix = "blocks.", .matrices = {}, .vectors = {}};
  add_attention(part, shape, block + ".cross_attn.", shape.heads, domain);
  return part;
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
  const std::int64_t columns = shape.channels * shape.patch * shape.patch;
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
      .of_layers = [shape](std::int64_t layers) {
        StditShape other = shape;
        other.depth = layers;
        return stdit_model(other);
      }};
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
       .kind = "projection",
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
         .kind = "projection",
         .reads = {},
         .writes = {"y"},
         .input = "text",
         .shape = {.hidden = shape.hidden},
         .weights = [shape](int domain) { return caption_embedding(shape, domain); }});
  }
  std::vector<Part> pair;
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
  add_layers(model, shape.depth, std::move(pair));
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
