#include "paradyse/plan/part_weights.h"

#include <cmath>
#include <numeric>
#include <stdexcept>

#include "src/plan/model/weight_names.h"

namespace paradyse {
namespace {

enum class Kind { input, output };  // of a product: its rows are the outputs, or the inputs

Matrix matrix(
    const char* name,
    const std::string& stored_as,
    Cuts cuts,
    std::int64_t cols,
    Kind kind,
    bool input_first = false) {
  std::int64_t rows = 0;
  for (const Piece& piece : cuts) {
    rows += size(piece);
  }
  return {
      .name = name,
      .stored_as = stored_as + ".weight",
      .rows = rows,
      .cols = cols,
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

Layout PartWeights::stack() const {
  Cuts cuts(matrices.empty() ? 0 : matrices.front().cuts.size());
  std::int64_t start = 0;
  for (const Matrix& matrix : matrices) {
    for (std::size_t r = 0; r < cuts.size(); ++r) {
      for (const Interval rows : matrix.cuts[r]) {
        append(cuts[r], {start + rows.begin * matrix.cols, start + rows.end * matrix.cols});
      }
    }
    start += matrix.elements();
  }
  return {.dims = {{.name = "elements", .size = start, .cuts = std::move(cuts)}}};
}

std::size_t PartWeights::place(const std::string& name) const {
  std::string names;
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    if (matrices[m].name == name) {
      return m;
    }
    names.append(m == 0 ? "" : ", ").append(matrices[m].name);
  }
  throw std::invalid_argument(part + ": no matrix '" + name + "'; there are " + names);
}

std::int64_t PartWeights::first_element(std::size_t m) const {
  return std::accumulate(
      matrices.begin(),
      matrices.begin() + static_cast<std::ptrdiff_t>(m),
      std::int64_t{0},
      [](std::int64_t sum, const Matrix& before) { return sum + before.elements(); });
}

const Matrix& PartWeights::matrix(const std::string& name) const { return matrices[place(name)]; }

template <typename RowsOf>
WeightRows PartWeights::each(
    const std::string& first, const std::string& last, RowsOf rows_of) const {
  WeightRows found{.elements = {}, .cols = matrix(first).cols};
  for (std::size_t m = place(first); m <= place(last); ++m) {
    const Matrix& matrix = matrices[m];
    const std::int64_t start = first_element(m);
    for (const Interval rows : rows_of(matrix)) {
      append(found.elements, {start + rows.begin * matrix.cols, start + rows.end * matrix.cols});
    }
  }
  return found;
}

WeightRows PartWeights::rows(const std::string& name) const { return between(name, name); }

WeightRows PartWeights::rows(const std::string& name, Interval some) const {
  return between(name, name, some);
}

WeightRows PartWeights::between(const std::string& first, const std::string& last) const {
  return each(first, last, [](const Matrix& matrix) { return Piece{{0, matrix.rows}}; });
}

WeightRows PartWeights::between(
    const std::string& first, const std::string& last, Interval some) const {
  return each(first, last, [&](const Matrix& /*matrix*/) { return Piece{some}; });
}

WeightRows PartWeights::own(const std::string& first, const std::string& last, int rank) const {
  return each(first, last, [&](const Matrix& matrix) {
    return matrix.cuts.at(static_cast<std::size_t>(rank));
  });
}

Interval PartWeights::elements_of(std::size_t m, int rank) const {
  const auto stored = [&](const Matrix& matrix) {
    return size(matrix.cuts.at(static_cast<std::size_t>(rank))) * matrix.cols;
  };
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < m; ++i) {
    begin += stored(matrices[i]);
  }
  return {begin, begin + stored(matrices.at(m))};
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
    elements += m.tied ? 0 : size(m.cuts.at(static_cast<std::size_t>(rank))) * m.cols;
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
  const std::int64_t H = model.hidden;
  PartWeights part{
      .part = "attention",
      .prefix = names.layers,
      .matrices =
          {matrix("q", names.q, query, H, Kind::input, swap),
           matrix("k", names.k, key, H, Kind::input, swap),
           matrix("v", names.v, key, H, Kind::input, swap),
           matrix("o", names.o, query, H, Kind::output, swap)},
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
  PartWeights part{.part = "mlp", .prefix = names.layers, .matrices = {}, .vectors = {}};
  add_norm(part, model, names.mlp_norm);
  using Named = std::pair<const char*, std::string>;
  const Named gate{"gate", names.gate};
  const Named up{"up", names.up};
  for (const auto& [own, name] : model.gated() ? std::vector{gate, up} : std::vector{up}) {
    part.matrices.push_back(matrix(own, name, width, model.hidden, Kind::input, names.input_first));
    if (model.mlp_bias) {
      part.vectors.push_back({Role::in_bias, name + ".bias", model.ffn});
    }
  }
  part.matrices.push_back(
      matrix("down", names.down, width, model.hidden, Kind::output, names.input_first));
  part.matrices.back().scale = output_scale(model);
  if (model.mlp_bias) {
    part.vectors.push_back({Role::out_bias, names.down + ".bias", model.hidden});
  }
  return part;
}

PartWeights embedding_weights(const ModelShape& model, int domain) {
  const WeightNames& names = weight_names(model.architecture);
  PartWeights part{.part = "embedding", .prefix = "", .matrices = {}, .vectors = {}};
  const auto add = [&](const char* own, const std::string& name, std::int64_t rows) {
    if (rows > 0) {
      part.matrices.push_back(
          matrix(own, name, even_cuts(rows, domain), model.hidden, Kind::input));
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

PartWeights transform_weights(const ModelShape& model, int domain) {
  const WeightNames& names = weight_names(model.architecture);
  PartWeights part{
      .part = "transform",
      .prefix = "",
      .matrices = {matrix(
          "dense", names.transform, even_cuts(model.hidden, domain), model.hidden, Kind::input)},
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
      .matrices = {matrix(
          "tokens", names.head, even_cuts(model.vocab, domain), model.hidden, Kind::input)},
      .vectors = {}};
  if (model.tied) {  // the embedding's stack whole; the head reads its first matrix
    const std::string own = part.matrices.front().stored_as;
    part.matrices = embedding_weights(model, domain).matrices;
    part.matrices.front().stored_as = own;
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
