// What the judges of models of several dims share: products, norms and attention in plain torch,
// and the sum over samples.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/run/sample.h"
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

// Loss and every gradient of a batch of samples, each run by itself, in the weights' type.
// `loss`: the sum of a sample's.  Weights may be without data (naive_memory.h); then losses are 0.
using LossOfSample = std::function<at::Tensor(const Weights& weights, const Sample& sample)>;
Answer of_samples(
    const Model& model,
    const Weights& weights,
    const std::vector<Sample>& samples,
    const LossOfSample& loss);

}  // namespace paradyse::reference
