#include "paradyse/plan/part_weights.h"

#include <cmath>
#include <numeric>
#include <stdexcept>

#include "src/plan/model/weight_names.h"

namespace paradyse {
namespace {

enum class Kind { input, output };  // of a product: its rows are the outputs, or the inputs

Matrix matrix(const std::string& name, Cuts cuts, Kind kind, bool input_first = false) {
  std::int64_t rows = 0;
  for (const Piece& piece : cuts) {
    rows += size(piece);
  }
  return {
      .name = name + ".weight",
      .rows = rows,
      .cuts = std::move(cuts),
      .transposed = (kind == Kind::output) != input_first};
}

// GPT-2 starts what is added to the residual stream smaller, the more there is of it.
double output_scale(const ModelShape& model) {
  return model.architecture == "gpt2" ? 1.0 / std::sqrt(2.0 * static_cast<double>(model.layers))
                                      : 1.0;
}

void add_norm(PartWeights& part, const ModelShape& model, const std::string& name) {
  part.vectors.push_back({Role::norm, name + ".weight", model.hidden, 1.0});
  if (model.layer_norm) {
    part.vectors.push_back({Role::norm, name + ".bias", model.hidden});
  }
}

}  // namespace

std::int64_t PartWeights::rows() const {
  return matrices.empty() ? 0 : rows_of(matrices.size() - 1).end;
}

Cuts PartWeights::cuts() const {
  Cuts cuts(matrices.empty() ? 0 : matrices.front().cuts.size());
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    const std::int64_t start = rows_of(m).begin;
    for (std::size_t r = 0; r < cuts.size(); ++r) {
      for (const Interval rows : matrices[m].cuts[r]) {
        append(cuts[r], {start + rows.begin, start + rows.end});
      }
    }
  }
  return cuts;
}

Interval PartWeights::rows_of(std::size_t m) const {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < m; ++i) {
    begin += matrices[i].rows;
  }
  return {begin, begin + matrices.at(m).rows};
}

Interval PartWeights::rows_of(std::size_t m, int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < m; ++i) {
    begin += size(matrices[i].cuts[r]);
  }
  return {begin, begin + size(matrices.at(m).cuts[r])};
}

Interval PartWeights::vectors_of(Role role) const {
  Interval found;
  for (std::size_t v = 0; v < vectors.size(); ++v) {
    if (vectors[v].role == role) {
      const auto i = static_cast<std::int64_t>(v);
      found = found.empty() ? Interval{i, i + 1} : Interval{found.begin, i + 1};
    }
  }
  return found;
}

std::int64_t PartWeights::elements(int rank) const {
  std::int64_t elements = 0;
  for (const Matrix& m : matrices) {
    elements += m.tied ? 0 : size(m.cuts.at(static_cast<std::size_t>(rank))) * cols;
  }
  for (const Vector& v : vectors) {
    elements += v.size;
  }
  return elements;
}

std::vector<Heads> own_heads(const ModelShape& model, int ranks, std::span<const double> shares) {
  const std::int64_t group = model.heads / model.kv_heads;  // query heads of one key/value head
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  double before = 0;
  std::vector<Heads> heads;
  for (std::int64_t r = 0; r < ranks; ++r) {
    Interval query{r * model.heads / ranks, (r + 1) * model.heads / ranks};
    if (!shares.empty()) {
      const auto edge = [&] {
        return std::llround(before / sum * static_cast<double>(model.heads));
      };
      query.begin = edge();
      before += shares[static_cast<std::size_t>(r)];
      query.end = edge();
    }
    const Interval key =
        query.empty() ? Interval{} : Interval{query.begin / group, (query.end - 1) / group + 1};
    heads.push_back({query, key});
  }
  return heads;
}

std::vector<Heads> all_heads(const ModelShape& model, int ranks) {
  return std::vector<Heads>(
      static_cast<std::size_t>(ranks), Heads{{0, model.heads}, {0, model.kv_heads}});
}

PartWeights attention_weights(const ModelShape& model, int domain) {
  const WeightNames& names = weight_names(model.architecture);
  const std::int64_t D = model.head_dim;
  const Cuts query = scaled(even_cuts(model.heads, domain), D);
  const Cuts key = even_cuts(model.kv_heads * D, domain);
  const bool swap = names.input_first;
  PartWeights part{
      .part = "attention",
      .prefix = names.layers,
      .cols = model.hidden,
      .matrices =
          {matrix(names.q, query, Kind::input, swap),
           matrix(names.k, key, Kind::input, swap),
           matrix(names.v, key, Kind::input, swap),
           matrix(names.o, query, Kind::output, swap)},
      .vectors = {}};
  if (names.fused) {
    std::int64_t first = 0;
    for (std::size_t m = 0; m < 3; ++m) {
      part.matrices[m].first = first;
      part.matrices[m].stored_rows = (model.heads + 2 * model.kv_heads) * D;
      first += part.matrices[m].rows;
    }
  }
  part.matrices[3].scale = output_scale(model);
  add_norm(part, model, names.attention_norm);
  if (model.qkv_bias && names.fused) {
    part.vectors.push_back({Role::in_bias, names.q + ".bias", part.matrices[0].stored_rows});
  } else if (model.qkv_bias) {
    for (const auto& [name, heads] :
         {std::pair{names.q, model.heads},
          std::pair{names.k, model.kv_heads},
          std::pair{names.v, model.kv_heads}}) {
      part.vectors.push_back({Role::in_bias, name + ".bias", heads * D});
    }
  }
  if (model.out_bias) {
    part.vectors.push_back({Role::out_bias, names.o + ".bias", model.hidden});
  }
  if (model.qk_norm) {
    part.vectors.push_back({Role::qk_norm, names.q_norm + ".weight", D, 1.0});
    part.vectors.push_back({Role::qk_norm, names.k_norm + ".weight", D, 1.0});
  }
  return part;
}

PartWeights mlp_weights(const ModelShape& model, int domain) {
  const WeightNames& names = weight_names(model.architecture);
  const Cuts width = even_cuts(model.ffn, domain);
  PartWeights part{
      .part = "mlp", .prefix = names.layers, .cols = model.hidden, .matrices = {}, .vectors = {}};
  add_norm(part, model, names.mlp_norm);
  for (const std::string& name :
       model.gated() ? std::vector{names.gate, names.up} : std::vector{names.up}) {
    part.matrices.push_back(matrix(name, width, Kind::input, names.input_first));
    if (model.mlp_bias) {
      part.vectors.push_back({Role::in_bias, name + ".bias", model.ffn});
    }
  }
  part.matrices.push_back(matrix(names.down, width, Kind::output, names.input_first));
  part.matrices.back().scale = output_scale(model);
  if (model.mlp_bias) {
    part.vectors.push_back({Role::out_bias, names.down + ".bias", model.hidden});
  }
  return part;
}

PartWeights embedding_weights(const ModelShape& model, int domain) {
  const WeightNames& names = weight_names(model.architecture);
  PartWeights part{
      .part = "embedding", .prefix = "", .cols = model.hidden, .matrices = {}, .vectors = {}};
  for (const auto& [name, rows] :
       {std::pair{names.tokens, model.vocab},
        std::pair{names.positions, model.position_rows()},
        std::pair{names.segments, model.segments}}) {
    if (rows > 0) {
      part.matrices.push_back(matrix(name, even_cuts(rows, domain), Kind::input));
    }
  }
  if (!names.embedding_norm.empty()) {
    add_norm(part, model, names.embedding_norm);
  }
  return part;
}

PartWeights transform_weights(const ModelShape& model, int domain) {
  const WeightNames& names = weight_names(model.architecture);
  PartWeights part{
      .part = "transform",
      .prefix = "",
      .cols = model.hidden,
      .matrices = {matrix(names.transform, even_cuts(model.hidden, domain), Kind::input)},
      .vectors = {}};
  add_norm(part, model, names.transform_norm);
  part.vectors.push_back({Role::in_bias, names.transform + ".bias", model.hidden});
  return part;
}

PartWeights head_weights(const ModelShape& model, int domain) {
  const WeightNames& names = weight_names(model.architecture);
  PartWeights part{
      .part = "head",
      .prefix = "",
      .cols = model.hidden,
      .matrices = {matrix(names.head, even_cuts(model.vocab, domain), Kind::input)},
      .vectors = {}};
  if (model.tied) {  // the embedding's stack whole; the head reads its first matrix
    const std::string own = part.matrices.front().name;
    part.matrices = embedding_weights(model, domain).matrices;
    part.matrices.front().name = own;
    for (Matrix& shared : part.matrices) {
      shared.tied = true;
    }
  }
  if (!names.last_norm.empty()) {
    add_norm(part, model, names.last_norm);
  }
  if (!names.head_bias.empty()) {
    part.vectors.push_back({Role::out_bias, names.head_bias, model.vocab});
  }
  return part;
}

std::string layer_prefix(const PartWeights& part, std::int64_t layer) {
  return part.prefix.empty() ? "" : part.prefix + std::to_string(layer) + ".";
}

std::vector<ModelPart> model_parts(const ModelShape& model, int domain) {
  std::vector<ModelPart> parts = {{-1, embedding_weights(model, domain)}};
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    parts.push_back({layer, attention_weights(model, domain)});
    parts.push_back({layer, mlp_weights(model, domain)});
  }
  if (model.masked_lm) {
    parts.push_back({-1, transform_weights(model, domain)});
  }
  parts.push_back({-1, head_weights(model, domain)});
  return parts;
}

std::int64_t stored_elements(const ModelShape& model, int domain, int rank) {
  ModelShape ends = model;  // layers are alike
  ends.layers = 0;
  std::int64_t elements = model.layers * (attention_weights(model, domain).elements(rank) +
                                          mlp_weights(model, domain).elements(rank));
  for (const ModelPart& part : model_parts(ends, domain)) {
    elements += part.weights.elements(rank);
  }
  return elements;
}

}  // namespace paradyse
