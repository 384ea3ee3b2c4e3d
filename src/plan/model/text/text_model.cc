// Text models: attention and MLP in turn on one stream, x [tokens, H].
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>

#include "src/plan/model/families.h"
#include "src/plan/model/matrices.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/model/text/weight_names.h"

namespace paradyse {
namespace {

// Some start what is added to the residual stream smaller, the more there is of it.
double output_scale(const TextShape& model) {
  return model.scaled_outputs ? 1.0 / std::sqrt(2.0 * static_cast<double>(model.layers)) : 1.0;
}

void add_norm(
    PartWeights& part, const TextShape& model, const std::string& name, Role role = Role::norm) {
  part.vectors.push_back({role, name + ".weight", model.hidden, 1.0 - model.norm_offset});
  if (model.layer_norm && model.norm_bias) {
    part.vectors.push_back({role, name + ".bias", model.hidden});
  }
}

// Of a part of a layer.
void add_layer_norms(
    PartWeights& part, const TextShape& model, const std::string& name, const std::string& added) {
  add_norm(part, model, name, model.added_norm ? Role::added_norm : Role::norm);
  if (model.sandwich_norm) {
    add_norm(part, model, added, Role::added_norm);
  }
}

// Where the rows of heads stand in a tensor, one every `stride` rows from `first` on.  A model that
// turns the first R columns of a head pairs i with i + R/2, and the others with none; pairs here
// are i and i + D/2 (rope.h), so each half of a head gets a half of both.
Piece rows_of_heads(
    const TextShape& model,
    std::int64_t heads,
    std::int64_t first,
    std::int64_t stride,
    bool turn) {
  const std::int64_t D = model.head_dim;
  const std::int64_t R = turn && model.turned > 0 ? model.turned : D;
  Piece rows;
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::int64_t head = first + h * stride;
    const std::int64_t rest = head + R;
    const std::int64_t half = (D - R) / 2;
    append(rows, {head, head + R / 2});
    append(rows, {rest, rest + half});
    append(rows, {head + R / 2, rest});
    append(rows, {rest + half, head + D});
  }
  return rows;
}

// Where the tensors that store q, k and v have their rows.
void place_heads(PartWeights& part, const TextShape& model) {
  const WeightNames& names = weight_names(model);
  const std::int64_t D = model.head_dim;
  std::int64_t first = 0;
  for (std::size_t m = 0; m < 3; ++m) {
    Matrix& matrix = part.matrices[m];
    const std::int64_t heads = m == 0 ? model.heads : model.kv_heads;
    if (names.fused) {
      matrix.stored_rows = (model.heads + 2 * model.kv_heads) * D;
    }
    Piece rows = rows_of_heads(model, heads, first, names.fused_by_head ? 3 * D : D, m < 2);
    if (rows.size() == 1) {
      matrix.first = first;
    } else {
      matrix.stored_at = std::move(rows);
    }
    first += names.fused_by_head ? D : names.fused ? matrix.rows : 0;
  }
}

void add_qkv_bias(PartWeights& part, const TextShape& model) {
  const WeightNames& names = weight_names(model);
  if (!names.fused) {
    for (std::size_t m = 0; m < 3; ++m) {
      const Matrix& matrix = part.matrices[m];
      const std::string& name = m == 0 ? names.q : m == 1 ? names.k : names.v;
      part.vectors.push_back({Role::in_bias, name + ".bias", matrix.rows});
      part.vectors.back().stored_at = matrix.stored_at;
    }
    return;
  }
  Piece entries;
  for (std::size_t m = 0; m < 3; ++m) {
    for (const Interval run : part.matrices[m].stored({0, part.matrices[m].rows})) {
      append(entries, run);
    }
  }
  part.vectors.push_back({Role::in_bias, names.q + ".bias", part.matrices[0].stored_rows});
  if (entries.size() > 1) {
    part.vectors.back().stored_at = std::move(entries);
  }
}

PartWeights attention_weights(const TextShape& model, int domain) {
  const WeightNames& names = weight_names(model);
  const std::int64_t D = model.head_dim;
  const Cuts query = scaled(even_cuts(model.heads, domain), D);
  const Cuts key = even_cuts(model.kv_heads * D, domain);
  const bool swap = names.input_first;
  const std::int64_t H = model.hidden;
  PartWeights part{
      .part = "attention",
      .prefix = names.layers,
      .matrices =
          {matrix("q", names.q, query, H, Side::input, swap),
           matrix("k", names.k, key, H, Side::input, swap),
           matrix("v", names.v, key, H, Side::input, swap),
           matrix("o", names.o, query, H, Side::output, swap)},
      .vectors = {}};
  place_heads(part, model);
  part.matrices[3].scale = output_scale(model);
  add_layer_norms(part, model, names.attention_norm, names.attention_added_norm);
  if (model.qkv_bias) {
    add_qkv_bias(part, model);
  }
  if (model.out_bias) {
    part.vectors.push_back({Role::out_bias, names.o + ".bias", model.hidden});
  }
  if (model.qk_norm) {
    const auto width = [&](std::int64_t heads) { return model.qk_norm_wide ? heads * D : D; };
    const double first = 1.0 - model.norm_offset;
    part.vectors.push_back({Role::qk_norm, names.q_norm + ".weight", width(model.heads), first});
    part.vectors.push_back({Role::qk_norm, names.k_norm + ".weight", width(model.kv_heads), first});
  }
  return part;
}

PartWeights mlp_weights(const TextShape& model, int domain) {
  const WeightNames& names = weight_names(model);
  const Cuts width = even_cuts(model.ffn, domain);
  PartWeights part{.part = "mlp", .prefix = names.layers, .matrices = {}, .vectors = {}};
  add_layer_norms(part, model, names.mlp_norm, names.mlp_added_norm);
  using Named = std::pair<const char*, std::string>;
  const Named gate{"gate", names.gate};
  const Named up{"up", names.up};
  for (const auto& [own, name] : model.gated() ? std::vector{gate, up} : std::vector{up}) {
    part.matrices.push_back(matrix(own, name, width, model.hidden, Side::input, names.input_first));
    if (names.gate == names.up) {  // one tensor has both
      part.matrices.back().stored_rows = 2 * model.ffn;
      part.matrices.back().first = part.matrices.size() > 1 ? model.ffn : 0;
    }
    if (model.mlp_bias && names.gate != names.up) {
      part.vectors.push_back({Role::in_bias, name + ".bias", model.ffn});
    }
  }
  if (model.mlp_bias && names.gate == names.up) {
    part.vectors.push_back({Role::in_bias, names.up + ".bias", 2 * model.ffn});
  }
  part.matrices.push_back(
      matrix("down", names.down, width, model.hidden, Side::output, names.input_first));
  part.matrices.back().scale = output_scale(model);
  if (model.mlp_bias) {
    part.vectors.push_back({Role::out_bias, names.down + ".bias", model.hidden});
  }
  return part;
}

PartWeights embedding_weights(const TextShape& model, int domain) {
  const WeightNames& names = weight_names(model);
  PartWeights part{.part = "embedding", .prefix = "", .matrices = {}, .vectors = {}};
  const auto add = [&](const char* own, const std::string& name, std::int64_t rows) {
    if (rows > 0) {
      part.matrices.push_back(
          matrix(own, name, even_cuts(rows, domain), model.hidden, Side::input));
    }
  };
  add("tokens", names.tokens, model.vocab);
  add("positions", names.positions, model.position_rows());
  add("segments", names.segments, model.segments);
  if (!names.embedding_norm.empty()) {
    add_norm(part, model, names.embedding_norm);
  }
  return part;
}

PartWeights transform_weights(const TextShape& model, int domain) {
  const WeightNames& names = weight_names(model);
  PartWeights part{
      .part = "transform",
      .prefix = "",
      .matrices = {matrix(
          "dense", names.transform, even_cuts(model.hidden, domain), model.hidden, Side::input)},
      .vectors = {}};
  part.matrices.front().scale = output_scale(model);
  if (!names.last_norm.empty()) {
    add_norm(part, model, names.last_norm);
  }
  add_norm(part, model, names.transform_norm, model.post_norm ? Role::norm : Role::added_norm);
  if (model.transform_bias) {
    part.vectors.push_back({Role::in_bias, names.transform + ".bias", model.hidden});
  }
  return part;
}

PartWeights head_weights(const TextShape& model, int domain) {
  const WeightNames& names = weight_names(model);
  PartWeights part{
      .part = "head",
      .prefix = "",
      .matrices = {matrix(
          "tokens", names.head, even_cuts(model.vocab, domain), model.hidden, Side::input)},
      .vectors = {}};
  if (model.masked_lm) {
    part.matrices.front().scale = output_scale(model);
  }
  if (model.tied) {  // the embedding's stack whole; the head reads its first matrix
    const std::string own = part.matrices.front().stored_as;
    part.matrices = embedding_weights(model, domain).matrices;
    part.matrices.front().stored_as = own;
    for (Matrix& shared : part.matrices) {
      shared.tied = true;
    }
  }
  if (!names.last_norm.empty() && !model.masked_lm) {
    add_norm(part, model, names.last_norm);
  }
  if (!names.head_bias.empty() && model.head_bias) {
    // Of the untied head transformers uses the bias under its own name.
    part.vectors.push_back(
        {Role::out_bias, model.tied ? names.head_bias : names.head + ".bias", model.vocab});
  }
  return part;
}

PartShape shape_of(const TextShape& model) {
  return {
      .hidden = model.hidden,
      .heads = model.heads,
      .kv_heads = model.kv_heads,
      .head_dim = model.head_dim,
      .ffn = model.ffn,
      .vocab = model.vocab,
      .activation = model.activation,
      .norm_eps = model.norm_eps,
      .norm_offset = model.norm_offset,
      .layer_norm = model.layer_norm,
      .post_norm = model.post_norm,
      .qk_norm = model.qk_norm,
      .qk_norm_wide = model.qk_norm_wide,
      .padding_in_documents = model.padding_in_documents,
      .rope = rope_of(model, 0),
      .score_scale = model.score_root > 0 ? 1 / std::sqrt(model.score_root) : 0,
      .score_cap = model.score_cap,
      .logit_cap = model.logit_cap,
      .embedding_scale = model.scaled_embedding ? std::sqrt(static_cast<double>(model.hidden)) : 1,
      .dropout = model.residual_dropout,
      .positions = model.learned_positions ? model.max_positions : 0,
      .position_rows = model.position_rows(),
      .position_offset = model.position_offset,
      .segments = model.segments,
      .padding_id = model.padding_id};
}

TextShape of_other_sizes(TextShape shape, const OtherSizes& sizes) {
  expect_changed(
      sizes,
      shape.architecture,
      {&OtherSizes::layers, &OtherSizes::vocab, &OtherSizes::positions, &OtherSizes::window});
  shape.layers = sizes.layers.value_or(shape.layers);
  shape.vocab = sizes.vocab.value_or(shape.vocab);
  if (shape.padding_id >= shape.vocab) {
    shape.padding_id = -1;
  }
  if (shape.learned_positions) {
    shape.max_positions = sizes.positions.value_or(shape.max_positions);
  }
  shape.window = sizes.window.value_or(shape.window);
  return shape;
}

}  // namespace

Model text_model(const TextShape& shape) {
  Model model{
      .name = shape.architecture,
      .family = "text",
      .sha256 = fingerprint(shape),
      .config = config_of(shape).dump(),
      .shape = shape,
      .streams = {{.name = "x", .rows = {"tokens"}, .columns = shape.hidden, .home = "tokens"}},
      .parts = {},
      .layers = shape.layers,
      .causal = shape.causal,
      .masked_lm = shape.masked_lm,
      .initializer_range = shape.initializer_range,
      .limits = {.longest = length_limit(shape), .trained_positions = shape.max_positions},
      .of_sizes = [shape](const OtherSizes& sizes) {
        return text_model(of_other_sizes(shape, sizes));
      }};
  using WeightsOf = PartWeights (*)(const TextShape&, int);
  const auto part = [&](const char* name, WeightsOf weights) {
    Part made{
        .name = name,
        .kind = name,
        .reads = {"x"},
        .writes = {"x"},
        .shape = shape_of(shape),
        .weights = [shape, weights](int domain) {
          PartWeights all = weights(shape, domain);
          for (Matrix& one : all.matrices) {
            one.begin = shape.truncated_start ? Begin::truncated : one.begin;
          }
          return all;
        }};
    return made;
  };
  const auto shared = [](Part made) { return std::make_shared<const Part>(std::move(made)); };
  Part embedding = part("embedding", embedding_weights);
  embedding.reads = {};
  embedding.shape.dropout = shape.embedding_dropout;
  Part attention = part("attention", attention_weights);
  attention.along = "tokens";
  attention.shape.dropout = shape.attention_output_dropout.value_or(shape.residual_dropout);
  attention.shape.attention_dropout = shape.attention_dropout;
  Part mlp = part("mlp", mlp_weights);
  if (shape.parallel) {  // both read x; what attention adds has a stream of its own until then
    model.streams.push_back(model.streams.front());
    model.streams.back().name = "branch";
    attention.writes = {"branch"};
    attention.shape.branch = true;
    mlp.reads = {"x", "branch"};
    mlp.shape.with = "branch";
  }
  Part head = part("head", head_weights);
  head.writes = {};

  if (shape.architecture == "gpt_neox") {
    model.other_names.older = {{"embed_out.", "lm_head."}};
  }
  model.parts.push_back({.site = 0, .part = shared(std::move(embedding))});
  // By their window, and whether their input is normed.
  std::map<std::pair<std::int64_t, bool>, std::shared_ptr<const Part>> attentions;
  const auto layer_mlp = shared(std::move(mlp));
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const auto site = 2 * static_cast<std::uint32_t>(layer + 1);
    const bool normed = layer > 0 || weight_names(shape).first_norm;
    std::shared_ptr<const Part>& layer_attention = attentions[{shape.window_of(layer), normed}];
    if (layer_attention == nullptr) {
      Part own = attention;
      own.shape.window = shape.window_of(layer);
      own.shape.rope = rope_of(shape, layer);
      if (!normed) {
        own.weights = [all = attention.weights](int domain) {
          PartWeights some = all(domain);
          std::erase_if(some.vectors, [](const Vector& one) { return one.role == Role::norm; });
          return some;
        };
      }
      layer_attention = shared(std::move(own));
    }
    model.parts.push_back({.layer = layer, .site = site, .part = layer_attention});
    model.parts.push_back({.layer = layer, .site = site + 1, .part = layer_mlp});
  }
  if (shape.masked_lm) {
    Part transform = part("transform", transform_weights);
    transform.shape.activation = shape.transform_activation.value_or(shape.activation);
    model.parts.push_back({.part = shared(std::move(transform))});
  }
  model.parts.push_back({.part = shared(std::move(head))});
  return model;
}

TextShape::operator Model() const { return text_model(*this); }

}  // namespace paradyse
