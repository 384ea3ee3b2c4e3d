// What the judges of models of several dims share: products, norms and attention in plain torch,
// and the sum over samples.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/run/detail/item.h"
#include "src/run/reference/reference.h"

namespace paradyse::reference {

using Streams = std::map<std::string, at::Tensor>;  // whole, dims as the model's streams have them

// x W^T, with a bias where there is one.
at::Tensor linear(const at::Tensor& x, const Weights& weights, const std::string& name);
at::Tensor layer_norm(const at::Tensor& x, const Weights& weights, const std::string& name);
// softmax(q k^T / sqrt(D) + bias) v, heads side by side; fewer key heads are shared by neighbours.
at::Tensor attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    std::int64_t count,
    std::int64_t key_heads,
    const at::Tensor& bias = {});
// Those of a layer, "blocks.N." or as `blocks` says, without its prefix.
Weights of_layer(const Weights& weights, std::int64_t layer, const std::string& blocks = "blocks.");

// Of dropout.
struct Draws {
  std::optional<std::uint64_t> seed = {};  // absent: none
  std::int64_t sample = 0;                 // its number in the batch
};

// What is left of y [.., .., C], of a sample: elements are zero with a probability, others grow.
// Rows that differ along `dim` (0 or 1) have one mask, drawn by the place along the other one times
// `stride`.
struct Sharing {
  std::int64_t dim = 0;
  std::int64_t stride = 1;
};
at::Tensor dropped(
    const at::Tensor& y,
    double probability,
    std::int64_t site,
    const Sharing& sharing,
    const Draws& draws);

// Loss and every gradient of a batch of samples, each run by itself, in the weights' type.
// `loss`: the sum of a sample's.  Weights may be without data (naive_memory.h); then losses are 0.
using LossOfSample =
    std::function<at::Tensor(const Weights& weights, const Item& sample, const Draws& draws)>;
Answer of_samples(
    const Model& model,
    const Weights& weights,
    const std::vector<Item>& samples,
    const std::optional<std::uint64_t>& dropout_seed,
    const LossOfSample& loss);

}  // namespace paradyse::reference
