#include "src/run/reference/samples.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/grad_mode.h>

namespace paradyse::reference {
namespace {

// Along the last dim but one of x [..., L, heads * D] to [..., heads, L, D].
at::Tensor heads(const at::Tensor& x, std::int64_t count) {
  return x.unflatten(-1, {count, x.size(-1) / count}).transpose(-2, -3);
}

// As the weights are.
SampleInputs like(const Weights& weights, SampleInputs inputs) {
  for (auto& [name, input] : inputs) {
    input = input.whole().to(weights.begin()->second.options().requires_grad(false));
  }
  return inputs;
}

// Nothing of a tensor without data.
double number(const at::Tensor& tensor) { return tensor.is_meta() ? 0 : tensor.item<double>(); }

}  // namespace

at::Tensor linear(const at::Tensor& x, const Weights& weights, const std::string& name) {
  const auto bias = weights.find(name + ".bias");
  const at::Tensor y = at::matmul(x, weights.at(name + ".weight").t());
  return bias == weights.end() ? y : y + bias->second;
}

at::Tensor layer_norm(const at::Tensor& x, const Weights& weights, const std::string& name) {
  return at::layer_norm(
      x, {x.size(-1)}, weights.at(name + ".weight"), weights.at(name + ".bias"), 1e-5);
}

at::Tensor attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    std::int64_t count,
    std::int64_t key_heads,
    const at::Tensor& bias) {
  const at::Tensor of_q = heads(q, count);
  const at::Tensor of_k = heads(k, key_heads).repeat_interleave(count / key_heads, -3);
  const at::Tensor of_v = heads(v, key_heads).repeat_interleave(count / key_heads, -3);
  at::Tensor scores =
      at::matmul(of_q, of_k.transpose(-1, -2)) / std::sqrt(static_cast<double>(of_q.size(-1)));
  if (bias.defined()) {
    scores = scores + bias;
  }
  return at::matmul(at::softmax(scores, -1), of_v).transpose(-2, -3).flatten(-2);
}

// Those of a layer, without its prefix.
Weights of_layer(const Weights& weights, std::int64_t layer, const std::string& blocks) {
  const std::string prefix = blocks + std::to_string(layer) + ".";
  Weights own;
  for (const auto& [name, weight] : weights) {
    if (name.starts_with(prefix)) {
      own[name.substr(prefix.size())] = weight;
    }
  }
  return own;
}

// By Philox draws of counter {column / 4, site, number}; one by one.
at::Tensor dropped(
    const at::Tensor& y,
    double probability,
    std::int64_t site,
    const Sharing& sharing,
    const Draws& draws) {
  if (!draws.seed || probability == 0) {
    return y;
  }
  const std::int64_t rows = y.size(1 - sharing.dim);
  const std::int64_t C = y.size(2);
  at::Tensor keep = at::empty({rows, C}, at::kDouble);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t number = (draws.sample << 32) + row * sharing.stride;
    for (std::int64_t i = 0; i < C; i += 4) {
      at::Philox4_32 draw(
          *draws.seed,
          static_cast<std::uint64_t>(number),
          static_cast<std::uint64_t>(i / 4) + (static_cast<std::uint64_t>(site) << 32));
      for (std::int64_t j = i; j < std::min(i + 4, C); ++j) {
        keep[row][j] = draw(10) < probability * 4294967296.0 ? 0.0 : 1.0;
      }
    }
  }
  return y * keep.to(y.device(), y.scalar_type()).unsqueeze(sharing.dim) / (1 - probability);
}

Answer of_samples(
    const Model& model,
    const Weights& weights,
    const std::vector<Item>& samples,
    const std::optional<std::uint64_t>& dropout_seed,
    const LossOfSample& loss_of) {
  const at::AutoGradMode on(true);
  Weights leaves;
  for (const auto& [name, weight] : weights) {
    leaves[name] = weight.detach().clone().requires_grad_(true);
  }
  Answer answer;
  std::int64_t count = 0;
  at::Tensor sum;
  for (Item sample : samples) {
    const SampleInputs inputs = like(weights, *sample.inputs);
    sample.inputs = &inputs;
    const at::Tensor of_sample =
        loss_of(leaves, sample, {.seed = dropout_seed, .sample = std::ssize(answer.documents)});
    answer.documents.push_back({.sum = number(of_sample), .count = scored(sample, model)});
    count += answer.documents.back().count;
    sum = sum.defined() ? sum + of_sample : of_sample;
  }
  const at::Tensor loss = sum / static_cast<double>(std::max<std::int64_t>(count, 1));
  answer.loss = number(loss);
  loss.backward();
  for (const auto& [name, leaf] : leaves) {
    answer.gradients[name] = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  }
  return answer;
}

}  // namespace paradyse::reference
