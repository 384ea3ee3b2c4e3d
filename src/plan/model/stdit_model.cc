// ST-DiT: x [batch, frames, patches, H] conditioned by c [batch, 6 H + ...].
#include <memory>
#include <utility>

#include "paradyse/plan/grid_models.h"
#include "src/plan/model/layers.h"
#include "src/plan/model/matrices.h"

namespace paradyse {
namespace {

// Shift, scale and gate of attention, then of the MLP: of every block the same six of c.
constexpr std::int64_t kOfAttention = 0;
constexpr std::int64_t kOfMlp = 3;

void add_condition(PartWeights& part, const std::string& block, const char* of, std::int64_t H) {
  const std::string table = block + ".scale_shift_table." + of;
  part.vectors.push_back({Role::modulate, table + ".modulate", 2 * H});
  part.vectors.push_back({Role::gate, table + ".gate", H});
}

PartWeights attention(const StditShape& shape, const std::string& block, int domain) {
  const std::int64_t H = shape.hidden;
  const std::int64_t D = H / shape.heads;
  const Cuts query = scaled(even_cuts(shape.heads, domain), D);
  const Cuts key = even_cuts(shape.kv_heads * D, domain);
  PartWeights part{
      .part = block + "_attention",
      .prefix = "blocks.",
      .matrices =
          {matrix("q", block + ".attn.q", query, H, Side::input),
           matrix("k", block + ".attn.k", key, H, Side::input),
           matrix("v", block + ".attn.v", key, H, Side::input),
           matrix("o", block + ".attn.proj", query, H, Side::output)},
      .vectors = {}};
  add_condition(part, block, "attn", H);
  for (const auto& [name, heads] :
       {std::pair{"q", shape.heads}, {"k", shape.kv_heads}, {"v", shape.kv_heads}}) {
    part.vectors.push_back({Role::in_bias, block + ".attn." + name + ".bias", heads * D});
  }
  part.vectors.push_back({Role::out_bias, block + ".attn.proj.bias", H});
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
      .streams =
          {{.name = "x",
            .rows = {"batch", "frames", "patches"},
            .columns = shape.hidden,
            .home = "frames"},
           {.name = "c", .rows = {"batch"}, .columns = 6 * shape.hidden, .home = ""}},
      .parts = {},
      .causal = false};
  std::vector<std::shared_ptr<const Part>> pair;
  for (const auto& [block, along] :
       {std::pair<std::string, std::string>{"spatial", "patches"}, {"temporal", "frames"}}) {
    pair.push_back(std::make_shared<const Part>(Part{
        .name = block + "_attention",
        .kind = kAxialAttention,
        .reads = {"x", "c"},
        .writes = {"x"},
        .along = along,
        .shape = part_shape(shape, kOfAttention),
        .weights = [shape, name = block](int domain) { return attention(shape, name, domain); }}));
    pair.push_back(std::make_shared<const Part>(Part{
        .name = block + "_mlp",
        .kind = "mlp",
        .reads = {"x", "c"},
        .writes = {"x"},
        .shape = part_shape(shape, kOfMlp),
        .weights = [shape, name = block](int domain) { return mlp(shape, name, domain); }}));
  }
  add_layers(model, shape.depth, pair);
  return model;
}

}  // namespace paradyse
