// Small models, weights and documents for tests; the same for the same seed everywhere.
#pragma once

#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/strategy.h"
#include "paradyse/run/data.h"
#include "paradyse/run/weights.h"
#include "src/plan/model/text/text_shape.h"

namespace paradyse::test {

// By Hugging Face name.
using Weights = std::map<std::string, at::Tensor>;

struct LlamaSizes {
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t head_dim = 4;
  std::int64_t hidden = 12;
  std::int64_t ffn = 20;
  std::int64_t vocab = 32;
  bool tied = false;
};
TextShape llama(const LlamaSizes& sizes);

// A model of another architecture, read from its configuration (JSON text).
TextShape model_of(const std::string& config);

// float64; norms around one and biases around zero, so that nothing hides behind either.
Weights random_weights(const TextShape& model, std::uint64_t seed);

// The same of any model, by the names under which parts store them; vectors around what they begin
// with.
Weights random_weights(const Model& model, unsigned seed);

// float64, standard normal.
at::Tensor normal_numbers(const std::vector<std::int64_t>& sizes, std::mt19937& random);
// A part's weights, by `prefix` and stored name; vectors around what they begin with.
void add_random_weights(
    const PartWeights& part, const std::string& prefix, std::mt19937& random, Weights& into);

// The vector's elements of the tensor that stores it.
at::Tensor stored_elements(const Vector& vector, const at::Tensor& whole);

// A safetensors file.
void write_tensors(const std::filesystem::path& path, const Weights& weights);

// Puts a rank's slices of `weights` into `parameters`, by way of a safetensors file in memory's
// stead: plain slicing, independent of Parameters::load.
void fill(Parameters& parameters, const Weights& weights);

// For a masked LM: ids for some of the tokens, kNoLabel for the others; for other models none.
std::vector<std::vector<std::int32_t>> random_labels(
    const TextShape& model, const std::vector<std::int64_t>& lengths, std::uint64_t seed);

// Documents with these labels, or, of no list, with none.
std::vector<Document> labelled(
    const std::vector<Tokens>& documents, const std::vector<Tokens>& labels);

std::vector<std::vector<std::int32_t>> random_documents(
    const std::vector<std::int64_t>& lengths, std::int64_t vocab, std::uint64_t seed);

// Every attention strategy with the MLP of its verb.
std::vector<std::pair<std::string, std::string>> pure_strategies();

// All of recompute_names().
std::vector<LayerRecompute> recompute_levels();

}  // namespace paradyse::test
