#include "tests/support/models.h"

#include <optional>
#include <random>

#include <ATen/CPUGeneratorImpl.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/strategy.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/weights/safetensors.h"

namespace paradyse::test {

void write_tensors(const std::filesystem::path& path, const Weights& weights) {
  std::vector<std::pair<std::string, StoredTensor>> tensors;
  for (const auto& [name, tensor] : weights) {
    tensors.emplace_back(
        name, StoredTensor{.dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()});
  }
  SafetensorsWriter writer(path, tensors);
  for (const auto& [name, tensor] : weights) {
    writer.write(name, tensor);
  }
  writer.finish();
}

namespace {

at::Tensor indices(const std::vector<Interval>& runs) {
  std::vector<std::int64_t> all;
  for (const Interval run : runs) {
    for (std::int64_t i = run.begin; i < run.end; ++i) {
      all.push_back(i);
    }
  }
  return at::tensor(all, at::kLong);
}

}  // namespace

TextShape llama(const LlamaSizes& sizes) {
  TextShape model;
  model.layers = sizes.layers;
  model.hidden = sizes.hidden;
  model.heads = sizes.heads;
  model.kv_heads = sizes.kv_heads;
  model.head_dim = sizes.head_dim;
  model.ffn = sizes.ffn;
  model.vocab = sizes.vocab;
  model.tied = sizes.tied;
  model.rope_theta = 500.0;
  model.norm_eps = 1e-5;
  return model;
}

TextShape model_of(const std::string& config) {
  return text_shape_from_config(nlohmann::json::parse(config), "a test");
}

Weights random_weights(const TextShape& model, std::uint64_t seed) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  Weights weights;
  for (const auto& [name, shape] : parameter_shapes(text_model(model))) {
    at::Tensor tensor = at::randn(shape, generator, at::kDouble);
    const bool bias = name.ends_with("bias");
    const double norm = 1 - model.norm_offset;
    weights[name] = shape.size() == 1 && !bias ? norm + 0.1 * tensor : 0.3 * tensor;
  }
  return weights;
}

at::Tensor normal_numbers(const std::vector<std::int64_t>& sizes, std::mt19937& random) {
  std::normal_distribution<double> draw(0, 1);
  at::Tensor all = at::empty(sizes, at::kDouble);
  for (std::int64_t i = 0; i < all.numel(); ++i) {
    all.mutable_data_ptr<double>()[i] = draw(random);
  }
  return all;
}

void add_random_weights(
    const PartWeights& part, const std::string& prefix, std::mt19937& random, Weights& into) {
  for (const Matrix& matrix : part.matrices) {
    at::Tensor& whole = into[prefix + matrix.stored_as];
    if (!whole.defined()) {  // some are stored as one tensor
      const std::int64_t rows = std::max(matrix.rows, matrix.stored_rows);
      whole = 0.3 * normal_numbers(
                        matrix.transposed             ? std::vector{matrix.cols, rows}
                        : matrix.stored_shape.empty() ? std::vector{rows, matrix.cols}
                                                      : matrix.stored_shape,
                        random);
    }
  }
  for (const Vector& vector : part.vectors) {
    at::Tensor& whole = into[prefix + vector.name];
    if (!whole.defined()) {
      std::vector<std::int64_t> sizes = {std::max(vector.size, vector.stored_rows)};
      if (vector.columns > 0) {
        sizes = {vector.stored_rows, vector.columns};
      }
      whole = vector.initial + 0.2 * normal_numbers(sizes, random);
    }
  }
}

at::Tensor stored_elements(const Vector& vector, const at::Tensor& whole) {
  if (!vector.stored_at.empty()) {
    return whole.view({-1}).index_select(0, indices(vector.stored_at));
  }
  const std::int64_t first = vector.first * std::max<std::int64_t>(1, vector.columns);
  return whole.view({-1}).narrow(0, first, vector.size);
}

Weights random_weights(const Model& model, unsigned seed) {
  std::mt19937 random(seed);
  Weights weights;
  for (const ModelPart& one : model.parts) {
    const PartWeights part = one.part->weights(1);
    add_random_weights(part, layer_prefix(part, one.layer), random, weights);
  }
  return weights;
}

void fill(Parameters& parameters, const Weights& weights) {
  for (PartParameters& part : parameters.parts()) {
    const PartWeights& layout = part.weights;
    const std::string prefix = layer_prefix(layout, part.layer);
    for (std::size_t v = 0; v < layout.vectors.size(); ++v) {
      part.vectors[v].copy_(
          stored_elements(layout.vectors[v], weights.at(prefix + layout.vectors[v].name)));
    }
    std::int64_t at = 0;
    for (const Matrix& matrix : layout.matrices) {
      if (matrix.tied) {
        continue;
      }
      at::Tensor whole = weights.at(prefix + matrix.stored_as);
      whole = matrix.transposed ? whole.t() : whole.flatten(1);
      whole = matrix.stored_at.empty() ? whole.narrow(0, matrix.first, matrix.rows)
                                       : whole.index_select(0, indices(matrix.stored_at));
      for (const Interval rows : matrix.cuts[static_cast<std::size_t>(parameters.domain_rank())]) {
        const std::int64_t count = rows.size() * matrix.cols;
        part.stack.narrow(0, at, count)
            .view({rows.size(), matrix.cols})
            .copy_(whole.narrow(0, rows.begin, rows.size()));
        at += count;
      }
    }
  }
}

std::vector<std::vector<std::int32_t>> random_documents(
    const std::vector<std::int64_t>& lengths, std::int64_t vocab, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::int32_t> id(0, static_cast<std::int32_t>(vocab) - 1);
  std::vector<std::vector<std::int32_t>> documents;
  for (const std::int64_t n : lengths) {
    auto& document = documents.emplace_back();
    for (std::int64_t i = 0; i < n; ++i) {
      document.push_back(id(random));
    }
  }
  return documents;
}

std::vector<Document> labelled(
    const std::vector<Tokens>& documents, const std::vector<Tokens>& labels) {
  std::vector<Document> all;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    all.push_back({documents[d], labels.empty() ? std::nullopt : std::optional(labels.at(d))});
  }
  return all;
}

std::vector<LayerRecompute> recompute_levels() {
  std::vector<LayerRecompute> all;
  for (const std::string& name : recompute_names()) {
    all.push_back(layer_recompute(name));
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> pure_strategies() {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const Strategy& s : strategies("attention")) {
    pairs.emplace_back(s.name, to_string(s.verb));
  }
  return pairs;
}

std::vector<std::vector<std::int32_t>> random_labels(
    const TextShape& model, const std::vector<std::int64_t>& lengths, std::uint64_t seed) {
  if (!model.masked_lm) {
    return {};
  }
  auto labels = random_documents(lengths, model.vocab, seed + 1);
  std::mt19937_64 random(seed);
  for (auto& of_document : labels) {
    for (std::int32_t& label : of_document) {
      label = random() % 3 == 0 ? label : kNoLabel;
    }
  }
  return labels;
}

}  // namespace paradyse::test
