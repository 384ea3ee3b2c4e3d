// Letters: T tokens of one document, H hidden width, N query heads, K key/value heads, D width of a
// head, C = D / 2 pairs that are rotated, F width of the feed-forward, V vocabulary.
//
// Mathematics and names as in Hugging Face transformers'
// modeling_{llama,qwen2,qwen3,olmo2,phi3,gemma2,gemma3,gpt2,gpt_neox,opt,bert,roberta,distilbert,
// modernbert}.py;
// tests/golden holds this file against them.
#include "src/run/reference/text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/grad_mode.h>

#include "src/run/reference/text_names.h"

namespace paradyse::reference {
namespace {

// The weights as leaves of an autograd graph of our own, exactly the parameters of the model.
// Throws std::invalid_argument naming every weight that is missing, unknown, of another shape, or
// of another dtype than the rest.
Weights leaves_of(const TextShape& shape, const Weights& weights) {
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
    if (!wanted.contains(name) && name != names_of(shape).head) {
      complaints << "\n  " << name << ": not of this model";
    }
  }
  if (!complaints.str().empty()) {
    throw std::invalid_argument("the weights do not fit the model:" + complaints.str());
  }
  return leaves;
}

void check_tokens(
    TokenView tokens, std::int64_t vocab, std::int32_t least, const char* what, std::size_t d = 0) {
  for (const std::int32_t token : tokens) {
    if (token < least || token >= vocab) {
      throw std::invalid_argument(
          "document " + std::to_string(d) + " has " + what + " " + std::to_string(token) +
          "; tokens of this model are 0 to " + std::to_string(vocab - 1));
    }
  }
}

at::Tensor rms_norm(const at::Tensor& x_TH, const at::Tensor& weight_H, double eps) {
  return x_TH * at::rsqrt(x_TH.square().mean(-1, /*keepdim=*/true) + eps) * weight_H;
}

// A document on its way through the model.
struct Pass {
  const TextShape& shape;
  const Names names;
  const Weights& w;
  std::int64_t first_token = 0;  // of the document in the batch
  std::optional<std::uint64_t> dropout_seed;

  [[nodiscard]] bool is_gemma() const { return shape.architecture.starts_with("gemma"); }
  [[nodiscard]] at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    if (!shape.layer_norm) {
      return rms_norm(
          x, is_gemma() ? 1 + w.at(name + ".weight") : w.at(name + ".weight"), shape.norm_eps);
    }
    const auto centred = x - x.mean(-1, /*keepdim=*/true);
    const auto scaled = centred *
                        at::rsqrt(centred.square().mean(-1, /*keepdim=*/true) + shape.norm_eps) *
                        w.at(name + ".weight");
    const auto bias = w.find(name + ".bias");
    return bias == w.end() ? scaled : scaled + bias->second;
  }
  [[nodiscard]] at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    const at::Tensor& weight = w.at(name + ".weight");
    const auto y = at::matmul(x, shape.architecture == "gpt2" ? weight : weight.t());
    const auto bias = w.find(name + ".bias");
    return bias == w.end() ? y : y + bias->second;
  }
  // Zeroes elements by Philox draws of counter {column / 4, site, token}; one by one.
  [[nodiscard]] at::Tensor dropout(
      const at::Tensor& x, double probability, std::int64_t site) const {
    if (!dropout_seed || probability == 0) {
      return x;
    }
    at::Tensor keep = at::empty(x.sizes(), at::kDouble);
    for (std::int64_t t = 0; t < x.size(0); ++t) {
      for (std::int64_t i = 0; i < x.size(1); i += 4) {
        at::Philox4_32 draw(
            *dropout_seed,
            static_cast<std::uint64_t>(first_token + t),
            static_cast<std::uint64_t>(i / 4) + (static_cast<std::uint64_t>(site) << 32));
        for (std::int64_t j = i; j < std::min(i + 4, x.size(1)); ++j) {
          keep[t][j] = draw(10) < probability * 4294967296.0 ? 0.0 : 1.0;
        }
      }
    }
    return x * keep.to(x.scalar_type()) / (1 - probability);
  }
  // Of probabilities [head, query, key]: counter {key / 4, site, token of the query with head + 1
  // in its highest 16 bits}.
  [[nodiscard]] at::Tensor attention_dropout(const at::Tensor& p_NTT, std::int64_t layer) const {
    if (!dropout_seed || shape.attention_dropout == 0) {
      return p_NTT;
    }
    const auto site = static_cast<std::uint64_t>(2 * (layer + 1));  // its attention's
    at::Tensor keep = at::empty(p_NTT.sizes(), at::kDouble);
    for (std::int64_t n = 0; n < p_NTT.size(0); ++n) {
      for (std::int64_t t = 0; t < p_NTT.size(1); ++t) {
        for (std::int64_t j = 0; j < p_NTT.size(2); j += 4) {
          at::Philox4_32 draw(
              *dropout_seed,
              static_cast<std::uint64_t>(first_token + t) +
                  (static_cast<std::uint64_t>(n + 1) << 48),
              static_cast<std::uint64_t>(j / 4) + (site << 32));
          for (std::int64_t k = j; k < std::min(j + 4, p_NTT.size(2)); ++k) {
            keep[n][t][k] = draw(10) < shape.attention_dropout * 4294967296.0 ? 0.0 : 1.0;
          }
        }
      }
    }
    return p_NTT * keep.to(p_NTT.scalar_type()) / (1 - shape.attention_dropout);
  }
};

// Cosine and sine of position x frequency, computed in float64, then rounded once.
struct Rotation {
  at::Tensor cos_TC;
  at::Tensor sin_TC;
};

// Columns of a head that are rotated.
std::int64_t turned_of(const TextShape& shape) {
  return shape.turned == 0 ? shape.head_dim : shape.turned;
}

// As transformers' modeling_rope_utils.py, formula by formula.
at::Tensor frequencies(const TextShape& shape, std::int64_t layer) {
  const RopeScaling& scaling = shape.rope_scaling;
  const double pi = std::acos(-1.0);
  if (shape.window_rope_theta > 0 && shape.window_of(layer) > 0) {
    return at::pow(
        shape.window_rope_theta, -at::arange(0, shape.head_dim, 2, at::kDouble) / shape.head_dim);
  }
  const auto plain_C = at::pow(
      shape.rope_theta, -at::arange(0, turned_of(shape), 2, at::kDouble) / turned_of(shape));
  const auto original = static_cast<double>(scaling.original_positions);
  switch (scaling.type) {
    case RopeScaling::Type::none:
      return plain_C;
    case RopeScaling::Type::linear:
      return plain_C / scaling.factor;
    case RopeScaling::Type::llama3: {
      const auto wavelength_C = 2 * pi / plain_C;
      const auto smooth_C = (original / wavelength_C - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
      const auto between_C = (1 - smooth_C) * plain_C / scaling.factor + smooth_C * plain_C;
      return at::where(
          wavelength_C > original / scaling.low_freq_factor,
          plain_C / scaling.factor,
          at::where(wavelength_C < original / scaling.high_freq_factor, plain_C, between_C));
    }
    case RopeScaling::Type::yarn: {
      const auto D = static_cast<double>(shape.head_dim);
      const auto dim = [&](double rotations) {
        return D * std::log(original / (rotations * 2 * pi)) / (2 * std::log(shape.rope_theta));
      };
      double low = dim(scaling.beta_fast);
      double high = dim(scaling.beta_slow);
      if (scaling.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
      }
      low = std::max(low, 0.0);
      high = std::min(high, D - 1);
      if (low == high) {
        high += 0.001;
      }
      const auto ramp_C =
          ((at::arange(shape.head_dim / 2, at::kDouble) - low) / (high - low)).clamp(0, 1);
      return plain_C / scaling.factor * ramp_C + plain_C * (1 - ramp_C);
    }
  }
  throw std::logic_error("frequencies: unknown RopeScaling");
}

Rotation rotation(
    std::int64_t tokens,
    const TextShape& shape,
    std::int64_t layer,
    const at::TensorOptions& options) {
  const auto angle_TC = at::outer(at::arange(tokens, at::kDouble), frequencies(shape, layer));
  const double factor = shape.rope_scaling.attention_factor;
  return {
      .cos_TC = (angle_TC.cos() * factor).to(options),
      .sin_TC = (angle_TC.sin() * factor).to(options)};
}

// Turns each pair (x[c], x[c + R/2]) of the first R columns by its angle: the "rotate half" layout
// of Hugging Face.
at::Tensor rotated(const at::Tensor& x_NTD, const Rotation& by) {
  const std::int64_t turned = 2 * by.cos_TC.size(1);
  const auto halves = x_NTD.narrow(-1, 0, turned).chunk(2, -1);
  const at::Tensor& a_NTC = halves[0];
  const at::Tensor& b_NTC = halves[1];
  return at::cat(
      {a_NTC * by.cos_TC - b_NTC * by.sin_TC,
       b_NTC * by.cos_TC + a_NTC * by.sin_TC,
       x_NTD.narrow(-1, turned, x_NTD.size(-1) - turned)},
      -1);
}

at::Tensor attention(const at::Tensor& x_TH, const Pass& pass, std::int64_t layer) {
  const std::string prefix = pass.names.layer + std::to_string(layer) + ".";
  const TextShape& shape = pass.shape;
  const Names& names = pass.names;
  const std::int64_t tokens = x_TH.size(0);
  const std::int64_t D = shape.head_dim;
  at::Tensor q_TQ;
  at::Tensor k_TK;
  at::Tensor v_TK;
  if (shape.architecture == "gpt_neox") {  // of each head its query, key and value
    const auto of_heads = pass.linear(x_TH, prefix + names.fused).view({tokens, shape.heads, 3, D});
    q_TQ = of_heads.select(2, 0).flatten(1);
    k_TK = of_heads.select(2, 1).flatten(1);
    v_TK = of_heads.select(2, 2).flatten(1);
  } else if (!names.fused.empty()) {  // q | k | v
    const auto fused = pass.linear(x_TH, prefix + names.fused);
    q_TQ = fused.narrow(1, 0, shape.heads * D);
    k_TK = fused.narrow(1, shape.heads * D, shape.kv_heads * D);
    v_TK = fused.narrow(1, (shape.heads + shape.kv_heads) * D, shape.kv_heads * D);
  } else {
    q_TQ = pass.linear(x_TH, prefix + names.q);
    k_TK = pass.linear(x_TH, prefix + names.k);
    v_TK = pass.linear(x_TH, prefix + names.v);
  }
  const auto qk_norm = [&](const at::Tensor& x, const std::string& name) {
    return pass.norm(x, prefix + "self_attn." + name);
  };
  if (shape.architecture == "olmo2") {
    q_TQ = qk_norm(q_TQ, "q_norm");
    k_TK = qk_norm(k_TK, "k_norm");
  }
  const auto heads = [&](const at::Tensor& y, std::int64_t count) {
    return y.reshape({tokens, count, D}).transpose(0, 1);
  };
  auto q_NTD = heads(q_TQ, shape.heads);
  auto k_NTD = heads(k_TK, shape.kv_heads);
  auto v_NTD = heads(v_TK, shape.kv_heads);
  if (shape.architecture == "qwen3" || shape.architecture == "gemma3_text") {
    q_NTD = qk_norm(q_NTD, "q_norm");
    k_NTD = qk_norm(k_NTD, "k_norm");
  }
  if (!shape.learned_positions) {
    const Rotation by = rotation(tokens, shape, layer, x_TH.options().requires_grad(false));
    q_NTD = rotated(q_NTD, by);
    k_NTD = rotated(k_NTD, by);
  }
  const std::int64_t group = shape.heads / shape.kv_heads;  // query heads to a key/value head
  k_NTD = k_NTD.repeat_interleave(group, 0);
  v_NTD = v_NTD.repeat_interleave(group, 0);

  auto score_NTT = at::matmul(q_NTD, k_NTD.transpose(1, 2));
  score_NTT =
      score_NTT /
      std::sqrt(shape.score_root > 0 ? shape.score_root : static_cast<double>(shape.head_dim));
  if (shape.score_cap > 0) {
    score_NTT = at::tanh(score_NTT / shape.score_cap) * shape.score_cap;
  }
  if (const std::int64_t window = shape.window_of(layer); window > 0) {
    const auto all_TT =
        at::ones({tokens, tokens}, x_TH.options().dtype(at::kBool).requires_grad(false));
    const auto far_TT = all_TT.tril(-window).logical_or(all_TT.triu(window));
    score_NTT = score_NTT.masked_fill(far_TT, -std::numeric_limits<double>::infinity());
  }
  if (shape.causal) {
    const auto future_TT =
        at::ones({tokens, tokens}, x_TH.options().dtype(at::kBool).requires_grad(false)).triu(1);
    score_NTT = score_NTT.masked_fill(future_TT, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor p_NTT = pass.attention_dropout(at::softmax(score_NTT, -1), layer);
  const auto y_NTD = at::matmul(p_NTT, v_NTD);
  const auto y_TQ = y_NTD.transpose(0, 1).reshape({tokens, shape.heads * shape.head_dim});
  return pass.linear(y_TQ, prefix + names.o);
}

at::Tensor activated(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::gelu:
    case Activation::geglu_exact:
      return 0.5 * x * (1 + at::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
    case Activation::geglu:
      return 0.5 * x *
             (1 + at::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * at::pow(x, 3))));
    case Activation::relu:
      return at::relu(x);
    case Activation::swiglu:
    case Activation::silu:
      return at::silu(x);
  }
  throw std::logic_error("activated: unknown Activation");
}

at::Tensor mlp(const at::Tensor& x_TH, const Pass& pass, const std::string& prefix) {
  const Names& names = pass.names;
  if (!names.fused_mlp.empty()) {  // gate | up
    const auto halves = pass.linear(x_TH, prefix + names.fused_mlp).chunk(2, -1);
    return pass.linear(
        activated(halves[0], pass.shape.activation) * halves[1], prefix + names.down);
  }
  at::Tensor h_TF = pass.linear(x_TH, prefix + names.up);
  h_TF = names.gate.empty()
             ? activated(h_TF, pass.shape.activation)
             : activated(pass.linear(x_TH, prefix + names.gate), pass.shape.activation) * h_TF;
  return pass.linear(h_TF, prefix + names.down);
}

at::Tensor embedded(const at::Tensor& token_T, const Pass& pass) {
  const TextShape& shape = pass.shape;
  at::Tensor x_TH = at::embedding(pass.w.at(pass.names.tokens), token_T, shape.padding_id);
  if (shape.learned_positions) {
    const auto position_T =
        at::arange(token_T.size(0), at::kLong).to(token_T.device()) + shape.position_offset;
    x_TH = x_TH + at::embedding(pass.w.at(pass.names.positions), position_T);
  }
  if (!pass.names.segments.empty()) {
    x_TH = x_TH + pass.w.at(pass.names.segments)[0];
  }
  if (!pass.names.embedding_norm.empty()) {
    x_TH = pass.norm(x_TH, pass.names.embedding_norm);
  }
  if (pass.is_gemma()) {
    x_TH = x_TH * std::sqrt(static_cast<double>(shape.hidden));
  }
  return pass.dropout(x_TH, shape.embedding_dropout, 0);
}

at::Tensor logits_of(const Pass& pass, TokenView document) {
  const TextShape& shape = pass.shape;
  const c10::Device device = pass.w.begin()->second.device();
  const at::ArrayRef<std::int32_t> ids(document.data(), document.size());
  at::Tensor x_TH = embedded(at::tensor(ids, at::kLong).to(device), pass);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = pass.names.layer + std::to_string(layer) + ".";
    const std::string norms[] = {prefix + pass.names.attention_norm, prefix + pass.names.mlp_norm};
    const bool norm_first = !shape.post_norm && shape.architecture != "olmo2";
    const double dropouts[] = {
        shape.attention_output_dropout.value_or(shape.residual_dropout), shape.residual_dropout};
    at::Tensor read_TH = x_TH;
    for (const int part : {0, 1}) {
      const bool bare = part == 0 && layer == 0 && pass.names.bare_first;
      const at::Tensor in = norm_first && !bare ? pass.norm(read_TH, norms[part]) : read_TH;
      at::Tensor y = part == 0 ? attention(in, pass, layer) : mlp(in, pass, prefix);
      y = shape.architecture == "olmo2" ? pass.norm(y, norms[part]) : y;
      if (pass.is_gemma()) {
        const std::string& added =
            part == 0 ? pass.names.attention_added_norm : pass.names.mlp_added_norm;
        y = pass.norm(y, prefix + added);
      }
      x_TH = x_TH + pass.dropout(y, dropouts[part], 2 * (layer + 1) + part);
      x_TH = shape.post_norm ? pass.norm(x_TH, norms[part]) : x_TH;
      read_TH = shape.parallel ? read_TH : x_TH;
    }
  }
  at::Tensor bias;
  if (!pass.names.transform.empty()) {
    if (!pass.names.last_norm.empty()) {
      x_TH = pass.norm(x_TH, pass.names.last_norm);
    }
    const bool roberta = shape.architecture == "roberta";  // whose head is always a GELU's
    x_TH = activated(
        pass.linear(x_TH, pass.names.transform),
        roberta ? Activation::gelu : shape.transform_activation.value_or(shape.activation));
    x_TH = pass.norm(x_TH, pass.names.transform_norm);
    const auto found = pass.w.find(shape.tied ? pass.names.tied_head_bias : pass.names.head_bias);
    bias = found == pass.w.end() ? bias : found->second;
  } else {
    x_TH = pass.norm(x_TH, pass.names.last_norm);
  }
  const auto& head_VH = pass.w.at(shape.tied ? pass.names.tokens : pass.names.head);
  auto logits_TV = at::matmul(x_TH, head_VH.t());
  if (shape.logit_cap > 0) {
    logits_TV = at::tanh(logits_TV / shape.logit_cap) * shape.logit_cap;
  }
  return bias.defined() ? logits_TV + bias : logits_TV;
}

// The sum of -log p(label) over all labels that count, of a document with one.
at::Tensor token_losses(const Pass& pass, TokenView document, TokenView labels) {
  const at::Tensor logits_TV = logits_of(pass, document).narrow(0, 0, std::ssize(labels));
  const at::ArrayRef<std::int32_t> ids(labels.data(), labels.size());
  const auto label_T = at::tensor(ids, at::kLong).to(logits_TV.device());
  const auto log_p_T =
      at::log_softmax(logits_TV, -1).gather(1, label_T.clamp_min(0).unsqueeze(1)).squeeze(1);
  return -log_p_T.masked_fill(label_T < 0, 0).sum();
}

// The labels that the tokens of a document are to predict, from the first token on.
TokenView wanted(const TextShape& shape, const Item& document) {
  const TokenView labels = document.labels.empty() ? document.tokens : document.labels;
  return shape.masked_lm || labels.empty() ? labels : labels.subspan(1);
}

}  // namespace

Answer text_answer(
    const TextShape& shape,
    const Weights& weights,
    const std::vector<Item>& documents,
    std::optional<std::uint64_t> dropout_seed) {
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const Item& document = documents[d];
    check_tokens(document.tokens, shape.vocab, 0, "token", d);
    check_tokens(document.labels, shape.vocab, -100, "label", d);
    if ((shape.masked_lm || !document.labels.empty()) &&
        document.labels.size() != document.tokens.size()) {
      throw std::invalid_argument(
          "document " + std::to_string(d) + " has " + std::to_string(document.labels.size()) +
          " labels for " + std::to_string(document.tokens.size()) +
          " tokens: a masked LM takes one for each, others that or none");
    }
  }
  const at::AutoGradMode record(true);  // whatever the caller has switched off
  const Weights leaves = leaves_of(shape, weights);

  Answer answer;
  std::int64_t count = 0;
  for (const Item& document : documents) {
    const auto counted = std::ranges::count_if(
        wanted(shape, document), [](std::int32_t label) { return label >= 0; });
    count += answer.documents.emplace_back(DocumentLoss{0, counted}).count;
  }
  Pass pass{.shape = shape, .names = names_of(shape), .w = leaves, .dropout_seed = dropout_seed};
  for (std::size_t d = 0; d < documents.size(); ++d) {
    if (answer.documents[d].count > 0) {
      const auto sum = token_losses(pass, documents[d].tokens, wanted(shape, documents[d]));
      (sum / count).backward();  // adds to the gradients of the leaves
      answer.documents[d].sum = sum.is_meta() ? 0 : sum.item<double>();
      answer.loss += answer.documents[d].sum / static_cast<double>(count);
    }
    pass.first_token += std::ssize(documents[d].tokens);
  }
  for (const auto& [name, leaf] : leaves) {
    answer.gradients[name] = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  }
  return answer;
}

at::Tensor logits(const TextShape& shape, const Weights& weights, TokenView document) {
  check_tokens(document, shape.vocab, 0, "token");
  const at::AutoGradMode record(false);
  const Pass pass{.shape = shape, .names = names_of(shape), .w = weights, .dropout_seed = {}};
  return logits_of(pass, document);
}

}  // namespace paradyse::reference
