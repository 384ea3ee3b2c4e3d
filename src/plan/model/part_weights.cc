#include "paradyse/part_weights.h"

#include <stdexcept>

namespace paradyse {
namespace {

Matrix matrix(std::string name, Cuts cuts, bool transposed = false) {
  std::int64_t rows = 0;
  for (const Piece& piece : cuts) {
    rows += size(piece);
  }
  return {.name = std::move(name), .rows = rows, .cuts = std::move(cuts), .transposed = transposed};
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

std::vector<Heads> own_heads(const ModelShape& model, int ranks) {
  const std::int64_t group = model.heads / model.kv_heads;  // query heads of one key/value head
  std::vector<Heads> heads;
  for (std::int64_t r = 0; r < ranks; ++r) {
    const Interval query{r * model.heads / ranks, (r + 1) * model.heads / ranks};
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
  const std::int64_t D = model.head_dim;
  const Cuts query = scaled(even_cuts(model.heads, domain), D);
  const Cuts key = even_cuts(model.kv_heads * D, domain);
  return {
      .part = "attention",
      .cols = model.hidden,
      .matrices =
          {matrix("self_attn.q_proj.weight", query),
           matrix("self_attn.k_proj.weight", key),
           matrix("self_attn.v_proj.weight", key),
           matrix("self_attn.o_proj.weight", query, true)},
      .vectors = {{"input_layernorm.weight", model.hidden}}};
}

PartWeights mlp_weights(const ModelShape& model, int domain) {
  const Cuts width = even_cuts(model.ffn, domain);
  return {
      .part = "mlp",
      .cols = model.hidden,
      .matrices =
          {matrix("mlp.gate_proj.weight", width),
           matrix("mlp.up_proj.weight", width),
           matrix("mlp.down_proj.weight", width, true)},
      .vectors = {{"post_attention_layernorm.weight", model.hidden}}};
}

PartWeights embedding_weights(const ModelShape& model, int domain) {
  return {
      .part = "embedding",
      .cols = model.hidden,
      .matrices = {matrix("model.embed_tokens.weight", even_cuts(model.vocab, domain))},
      .vectors = {}};
}

PartWeights head_weights(const ModelShape& model, int domain) {
  Matrix head = matrix("lm_head.weight", even_cuts(model.vocab, domain));
  head.tied = model.tied;
  return {
      .part = "head",
      .cols = model.hidden,
      .matrices = {head},
      .vectors = {{"model.norm.weight", model.hidden}}};
}

std::string layer_prefix(const PartWeights& part, std::int64_t layer) {
  const bool in_layer = part.part == "attention" || part.part == "mlp";
  return in_layer ? "model.layers." + std::to_string(layer) + "." : "";
}

std::vector<ModelPart> model_parts(const ModelShape& model, int domain) {
  std::vector<ModelPart> parts = {{-1, embedding_weights(model, domain)}};
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    parts.push_back({layer, attention_weights(model, domain)});
    parts.push_back({layer, mlp_weights(model, domain)});
  }
  parts.push_back({-1, head_weights(model, domain)});
  return parts;
}

std::int64_t stored_elements(const ModelShape& model, int domain, int rank) {
  return embedding_weights(model, domain).elements(rank) +
         head_weights(model, domain).elements(rank) +
         model.layers * (attention_weights(model, domain).elements(rank) +
                         mlp_weights(model, domain).elements(rank));
}

}  // namespace paradyse
