// Letters: T tokens of one document, H hidden width, N query heads, K key/value heads, D width of a
// head, C = D / 2 pairs that are rotated, F width of the feed-forward, V vocabulary.
//
// Mathematics and names as in Hugging Face transformers' modeling_llama.py; tests/golden holds this
// file against it.
#include "src/run/reference/reference_llama.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include <ATen/core/grad_mode.h>

namespace paradyse::reference {
namespace {

using Weights = std::map<std::string, at::Tensor>;
using Document = std::vector<std::int32_t>;

std::string layer_prefix(std::int64_t layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

// Every parameter of the model with its shape.
std::map<std::string, std::vector<std::int64_t>> parameters(const ModelShape& shape) {
  const std::int64_t query_width = shape.heads * shape.head_dim;
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  std::map<std::string, std::vector<std::int64_t>> all = {
      {"model.embed_tokens.weight", {shape.vocab, shape.hidden}},
      {"model.norm.weight", {shape.hidden}},
  };
  if (!shape.tied) {
    all["lm_head.weight"] = {shape.vocab, shape.hidden};
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    all[prefix + "input_layernorm.weight"] = {shape.hidden};
    all[prefix + "self_attn.q_proj.weight"] = {query_width, shape.hidden};
    all[prefix + "self_attn.k_proj.weight"] = {kv_width, shape.hidden};
    all[prefix + "self_attn.v_proj.weight"] = {kv_width, shape.hidden};
    all[prefix + "self_attn.o_proj.weight"] = {shape.hidden, query_width};
    all[prefix + "post_attention_layernorm.weight"] = {shape.hidden};
    all[prefix + "mlp.gate_proj.weight"] = {shape.ffn, shape.hidden};
    all[prefix + "mlp.up_proj.weight"] = {shape.ffn, shape.hidden};
    all[prefix + "mlp.down_proj.weight"] = {shape.hidden, shape.ffn};
  }
  return all;
}

// The weights as leaves of an autograd graph of our own, exactly the parameters of the model.
// Throws std::invalid_argument naming every weight that is missing, unknown, of another shape, or
// of another dtype than the rest.
Weights leaves_of(const ModelShape& shape, const Weights& weights) {
  std::ostringstream complaints;
  Weights leaves;
  const auto wanted = parameters(shape);
  for (const auto& [name, sizes] : wanted) {
    const auto found = weights.find(name);
    if (found == weights.end() || !found->second.defined()) {
      complaints << "\n  " << name << ": missing";
      continue;
    }
    const at::Tensor& weight = found->second;
    const at::ScalarType dtype =
        leaves.empty() ? weight.scalar_type() : leaves.begin()->second.scalar_type();
    if (weight.sizes() != sizes) {
      complaints << "\n  " << name << ": has shape " << weight.sizes() << ", the model says "
                 << at::IntArrayRef(sizes);
    } else if (weight.scalar_type() != dtype || !at::isFloatingType(dtype)) {
      complaints << "\n  " << name << ": is " << weight.scalar_type()
                 << ", must be one floating type for all";
    } else {
      leaves[name] = weight.detach().requires_grad_();
    }
  }
  for (const auto& [name, weight] : weights) {
    if (!wanted.contains(name) && name != "lm_head.weight") {
      complaints << "\n  " << name << ": not of this model";
    }
  }
  if (!complaints.str().empty()) {
    throw std::invalid_argument("the weights do not fit the model:" + complaints.str());
  }
  return leaves;
}

void check_tokens(const std::vector<Document>& documents, std::int64_t vocab) {
  for (std::size_t d = 0; d < documents.size(); ++d) {
    for (const std::int32_t token : documents[d]) {
      if (token < 0 || token >= vocab) {
        throw std::invalid_argument(
            "document " + std::to_string(d) + " has token " + std::to_string(token) +
            "; tokens of this model are 0 to " + std::to_string(vocab - 1));
      }
    }
  }
}

at::Tensor rms_norm(const at::Tensor& x_TH, const at::Tensor& weight_H, double eps) {
  return x_TH * at::rsqrt(x_TH.square().mean(-1, /*keepdim=*/true) + eps) * weight_H;
}

// Cosine and sine of position x theta^(-2c/D), computed in float64, then rounded once.
struct Rotation {
  at::Tensor cos_TC;
  at::Tensor sin_TC;
};

Rotation rotation(std::int64_t tokens, const ModelShape& shape, at::ScalarType dtype) {
  const auto exponent_C = at::arange(0, shape.head_dim, 2, at::kDouble) / shape.head_dim;
  const auto position_T = at::arange(tokens, at::kDouble);
  const auto angle_TC = at::outer(position_T, at::pow(shape.rope_theta, -exponent_C));
  return {.cos_TC = angle_TC.cos().to(dtype), .sin_TC = angle_TC.sin().to(dtype)};
}

// Turns each pair (x[c], x[c + D/2]) by its angle: the "rotate half" layout of Hugging Face.
at::Tensor rotated(const at::Tensor& x_NTD, const Rotation& by) {
  const auto halves = x_NTD.chunk(2, -1);
  const at::Tensor& a_NTC = halves[0];
  const at::Tensor& b_NTC = halves[1];
  return at::cat(
      {a_NTC * by.cos_TC - b_NTC * by.sin_TC, b_NTC * by.cos_TC + a_NTC * by.sin_TC}, -1);
}

at::Tensor attention(
    const at::Tensor& x_TH, const Weights& w, const std::string& prefix, const ModelShape& shape) {
  const std::int64_t tokens = x_TH.size(0);
  const auto heads = [&](const std::string& name, std::int64_t count) {
    const auto y = at::linear(x_TH, w.at(prefix + name + "_proj.weight"));
    return y.view({tokens, count, shape.head_dim}).transpose(0, 1);
  };
  const Rotation by = rotation(tokens, shape, x_TH.scalar_type());
  const std::int64_t group = shape.heads / shape.kv_heads;  // query heads to a key/value head
  const auto q_NTD = rotated(heads("q", shape.heads), by);
  const auto k_NTD = rotated(heads("k", shape.kv_heads), by).repeat_interleave(group, 0);
  const auto v_NTD = heads("v", shape.kv_heads).repeat_interleave(group, 0);

  auto score_NTT =
      at::matmul(q_NTD, k_NTD.transpose(1, 2)) / std::sqrt(static_cast<double>(shape.head_dim));
  if (shape.causal) {
    const auto future_TT = at::ones({tokens, tokens}, at::kBool).triu(1);
    score_NTT = score_NTT.masked_fill(future_TT, -std::numeric_limits<double>::infinity());
  }
  const auto y_NTD = at::matmul(at::softmax(score_NTT, -1), v_NTD);
  const auto y_TQ = y_NTD.transpose(0, 1).reshape({tokens, shape.heads * shape.head_dim});
  return at::linear(y_TQ, w.at(prefix + "o_proj.weight"));
}

at::Tensor mlp(const at::Tensor& x_TH, const Weights& w, const std::string& prefix) {
  const auto gate_TF = at::linear(x_TH, w.at(prefix + "gate_proj.weight"));
  const auto up_TF = at::linear(x_TH, w.at(prefix + "up_proj.weight"));
  return at::linear(at::silu(gate_TF) * up_TF, w.at(prefix + "down_proj.weight"));
}

// The sum of -log p(next token) over all tokens but the last, of a document of two tokens or more.
at::Tensor token_losses(const ModelShape& shape, const Weights& w, const Document& document) {
  const auto token_T = at::tensor(document, at::kLong);
  auto x_TH = at::embedding(w.at("model.embed_tokens.weight"), token_T);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    const auto norm = [&](const std::string& name) {
      return rms_norm(x_TH, w.at(prefix + name + ".weight"), shape.norm_eps);
    };
    x_TH = x_TH + attention(norm("input_layernorm"), w, prefix + "self_attn.", shape);
    x_TH = x_TH + mlp(norm("post_attention_layernorm"), w, prefix + "mlp.");
  }
  x_TH = rms_norm(x_TH, w.at("model.norm.weight"), shape.norm_eps);
  const auto& head_VH = w.at(shape.tied ? "model.embed_tokens.weight" : "lm_head.weight");

  const std::int64_t predicted = token_T.size(0) - 1;
  const auto log_p_TV = at::log_softmax(at::linear(x_TH, head_VH), -1).narrow(0, 0, predicted);
  const auto next_T = token_T.narrow(0, 1, predicted);
  return -log_p_TV.gather(1, next_T.unsqueeze(1)).sum();
}

}  // namespace

Answer llama(
    const ModelShape& shape, const Weights& weights, const std::vector<Document>& documents) {
  if (shape.architecture != "llama") {
    throw std::invalid_argument(
        "the reference model is a llama, asked for \"" + shape.architecture + "\"");
  }
  check_tokens(documents, shape.vocab);
  const at::AutoGradMode record(true);  // whatever the caller has switched off
  const Weights leaves = leaves_of(shape, weights);

  Answer answer;
  std::int64_t count = 0;
  for (const Document& document : documents) {
    const auto length = static_cast<std::int64_t>(document.size());
    count +=
        answer.documents.emplace_back(DocumentLoss{0, std::max<std::int64_t>(length - 1, 0)}).count;
  }
  for (std::size_t d = 0; d < documents.size(); ++d) {
    if (answer.documents[d].count == 0) {
      continue;
    }
    const auto sum = token_losses(shape, leaves, documents[d]);
    (sum / count).backward();  // adds to the gradients of the leaves
    answer.documents[d].sum = sum.item<double>();
    answer.loss += answer.documents[d].sum / static_cast<double>(count);
  }
  for (const auto& [name, leaf] : leaves) {
    answer.gradients[name] = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  }
  return answer;
}

}  // namespace paradyse::reference
