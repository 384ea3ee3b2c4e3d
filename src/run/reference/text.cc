// Letters: T tokens of one document, H hidden width, N query heads, K key/value heads, D width of a
// head, C = D / 2 pairs that are rotated, F width of the feed-forward, V vocabulary.
//
// Mathematics and names as in Hugging Face transformers'
// modeling_{llama,qwen2,qwen3,gpt2,opt,bert}.py; tests/golden holds this file against them.
#include "src/run/reference/text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/grad_mode.h>

namespace paradyse::reference {
namespace {

using Document = std::vector<std::int32_t>;

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

bool like_llama(const TextShape& shape) {
  return shape.architecture == "llama" || shape.architecture == "mistral" ||
         shape.architecture == "qwen2" || shape.architecture == "qwen3";
}

// What the parts of a layer, and the parts around the layers, are called.
struct Names {
  std::string layer;
  std::string attention_norm, q, k, v, o;
  std::string mlp_norm, gate, up, down;
  std::string embedding, tokens, positions, last_norm, head;
};

// Of BERT: an untied head has its bias under its own name.
std::string head_bias_of(const TextShape& shape) {
  return shape.tied ? "cls.predictions.bias" : "cls.predictions.decoder.bias";
}

Names names_of(const std::string& architecture) {
  if (architecture == "gpt2") {
    return {
        .layer = "transformer.h.",
        .attention_norm = "ln_1",
        .q = "",
        .k = "",
        .v = "",
        .o = "attn.c_proj",
        .mlp_norm = "ln_2",
        .gate = "",
        .up = "mlp.c_fc",
        .down = "mlp.c_proj",
        .embedding = "",
        .tokens = "transformer.wte.weight",
        .positions = "transformer.wpe.weight",
        .last_norm = "transformer.ln_f",
        .head = "lm_head.weight"};
  }
  if (architecture == "opt") {
    return {
        .layer = "model.decoder.layers.",
        .attention_norm = "self_attn_layer_norm",
        .q = "self_attn.q_proj",
        .k = "self_attn.k_proj",
        .v = "self_attn.v_proj",
        .o = "self_attn.out_proj",
        .mlp_norm = "final_layer_norm",
        .gate = "",
        .up = "fc1",
        .down = "fc2",
        .embedding = "",
        .tokens = "model.decoder.embed_tokens.weight",
        .positions = "model.decoder.embed_positions.weight",
        .last_norm = "model.decoder.final_layer_norm",
        .head = "lm_head.weight"};
  }
  if (architecture == "bert") {
    return {
        .layer = "bert.encoder.layer.",
        .attention_norm = "attention.output.LayerNorm",
        .q = "attention.self.query",
        .k = "attention.self.key",
        .v = "attention.self.value",
        .o = "attention.output.dense",
        .mlp_norm = "output.LayerNorm",
        .gate = "",
        .up = "intermediate.dense",
        .down = "output.dense",
        .embedding = "bert.embeddings.",
        .tokens = "bert.embeddings.word_embeddings.weight",
        .positions = "bert.embeddings.position_embeddings.weight",
        .last_norm = "",
        .head = "cls.predictions.decoder.weight"};
  }
  return {
      .layer = "model.layers.",
      .attention_norm = "input_layernorm",
      .q = "self_attn.q_proj",
      .k = "self_attn.k_proj",
      .v = "self_attn.v_proj",
      .o = "self_attn.o_proj",
      .mlp_norm = "post_attention_layernorm",
      .gate = "mlp.gate_proj",
      .up = "mlp.up_proj",
      .down = "mlp.down_proj",
      .embedding = "",
      .tokens = "model.embed_tokens.weight",
      .positions = "",
      .last_norm = "model.norm",
      .head = "lm_head.weight"};
}

// Every parameter of the model with its shape.
Shapes parameters(const TextShape& shape) {
  const Names names = names_of(shape.architecture);
  const std::int64_t H = shape.hidden;
  const std::int64_t query_width = shape.heads * shape.head_dim;
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  Shapes all = {{names.tokens, {shape.vocab, H}}};
  const auto norm = [&](const std::string& name) {
    all[name + ".weight"] = {H};
    if (shape.layer_norm) {
      all[name + ".bias"] = {H};
    }
  };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in, bool bias) {
    all[name + ".weight"] = shape.architecture == "gpt2" ? std::vector<std::int64_t>{in, out}
                                                         : std::vector<std::int64_t>{out, in};
    if (bias) {
      all[name + ".bias"] = {out};
    }
  };
  if (!shape.tied) {
    all[names.head] = {shape.vocab, H};
  }
  if (shape.learned_positions) {
    all[names.positions] = {shape.max_positions + shape.position_offset, H};
  }
  if (!names.last_norm.empty()) {
    norm(names.last_norm);
  }
  if (shape.architecture == "bert") {
    all["bert.embeddings.token_type_embeddings.weight"] = {shape.segments, H};
    norm("bert.embeddings.LayerNorm");
    linear("cls.predictions.transform.dense", H, H, true);
    norm("cls.predictions.transform.LayerNorm");
    all[head_bias_of(shape)] = {shape.vocab};
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = names.layer + std::to_string(layer) + ".";
    norm(prefix + names.attention_norm);
    norm(prefix + names.mlp_norm);
    if (shape.architecture == "gpt2") {
      linear(prefix + "attn.c_attn", query_width + 2 * kv_width, H, true);
    } else {
      linear(prefix + names.q, query_width, H, shape.qkv_bias);
      linear(prefix + names.k, kv_width, H, shape.qkv_bias);
      linear(prefix + names.v, kv_width, H, shape.qkv_bias);
    }
    linear(prefix + names.o, H, query_width, shape.out_bias);
    if (shape.architecture == "qwen3") {
      all[prefix + "self_attn.q_norm.weight"] = {shape.head_dim};
      all[prefix + "self_attn.k_norm.weight"] = {shape.head_dim};
    }
    if (like_llama(shape)) {
      linear(prefix + names.gate, shape.ffn, H, shape.mlp_bias);
    }
    linear(prefix + names.up, shape.ffn, H, shape.mlp_bias);
    linear(prefix + names.down, H, shape.ffn, shape.mlp_bias);
  }
  return all;
}

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
    if (!wanted.contains(name) && name != names_of(shape.architecture).head) {
      complaints << "\n  " << name << ": not of this model";
    }
  }
  if (!complaints.str().empty()) {
    throw std::invalid_argument("the weights do not fit the model:" + complaints.str());
  }
  return leaves;
}

void check_tokens(
    const std::vector<Document>& documents,
    std::int64_t vocab,
    std::int32_t least,
    const char* what) {
  for (std::size_t d = 0; d < documents.size(); ++d) {
    for (const std::int32_t token : documents[d]) {
      if (token < least || token >= vocab) {
        throw std::invalid_argument(
            "document " + std::to_string(d) + " has " + what + " " + std::to_string(token) +
            "; tokens of this model are 0 to " + std::to_string(vocab - 1));
      }
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

  [[nodiscard]] at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    if (!shape.layer_norm) {
      return rms_norm(x, w.at(name + ".weight"), shape.norm_eps);
    }
    const auto centred = x - x.mean(-1, /*keepdim=*/true);
    return centred * at::rsqrt(centred.square().mean(-1, /*keepdim=*/true) + shape.norm_eps) *
               w.at(name + ".weight") +
           w.at(name + ".bias");
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
};

// Cosine and sine of position x frequency, computed in float64, then rounded once.
struct Rotation {
  at::Tensor cos_TC;
  at::Tensor sin_TC;
};

// As transformers' modeling_rope_utils.py, formula by formula.
at::Tensor frequencies(const TextShape& shape) {
  const RopeScaling& scaling = shape.rope_scaling;
  const double pi = std::acos(-1.0);
  const auto plain_C =
      at::pow(shape.rope_theta, -at::arange(0, shape.head_dim, 2, at::kDouble) / shape.head_dim);
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

Rotation rotation(std::int64_t tokens, const TextShape& shape, const at::TensorOptions& options) {
  const auto angle_TC = at::outer(at::arange(tokens, at::kDouble), frequencies(shape));
  const double factor = shape.rope_scaling.attention_factor;
  return {
      .cos_TC = (angle_TC.cos() * factor).to(options),
      .sin_TC = (angle_TC.sin() * factor).to(options)};
}

// Turns each pair (x[c], x[c + D/2]) by its angle: the "rotate half" layout of Hugging Face.
at::Tensor rotated(const at::Tensor& x_NTD, const Rotation& by) {
  const auto halves = x_NTD.chunk(2, -1);
  const at::Tensor& a_NTC = halves[0];
  const at::Tensor& b_NTC = halves[1];
  return at::cat(
      {a_NTC * by.cos_TC - b_NTC * by.sin_TC, b_NTC * by.cos_TC + a_NTC * by.sin_TC}, -1);
}

at::Tensor attention(const at::Tensor& x_TH, const Pass& pass, const std::string& prefix) {
  const TextShape& shape = pass.shape;
  const Names& names = pass.names;
  const std::int64_t tokens = x_TH.size(0);
  at::Tensor fused;  // GPT-2's q | k | v
  if (shape.architecture == "gpt2") {
    fused = pass.linear(x_TH, prefix + "attn.c_attn");
  }
  const auto heads = [&](const std::string& name, std::int64_t count, std::int64_t at) {
    const auto y = fused.defined() ? fused.narrow(1, at * shape.hidden, shape.hidden)
                                   : pass.linear(x_TH, prefix + name);
    return y.reshape({tokens, count, shape.head_dim}).transpose(0, 1);
  };
  auto q_NTD = heads(names.q, shape.heads, 0);
  auto k_NTD = heads(names.k, shape.kv_heads, 1);
  auto v_NTD = heads(names.v, shape.kv_heads, 2);
  if (shape.architecture == "qwen3") {
    q_NTD = rms_norm(q_NTD, pass.w.at(prefix + "self_attn.q_norm.weight"), shape.norm_eps);
    k_NTD = rms_norm(k_NTD, pass.w.at(prefix + "self_attn.k_norm.weight"), shape.norm_eps);
  }
  if (like_llama(shape)) {
    const Rotation by = rotation(tokens, shape, x_TH.options().requires_grad(false));
    q_NTD = rotated(q_NTD, by);
    k_NTD = rotated(k_NTD, by);
  }
  const std::int64_t group = shape.heads / shape.kv_heads;  // query heads to a key/value head
  k_NTD = k_NTD.repeat_interleave(group, 0);
  v_NTD = v_NTD.repeat_interleave(group, 0);

  auto score_NTT =
      at::matmul(q_NTD, k_NTD.transpose(1, 2)) / std::sqrt(static_cast<double>(shape.head_dim));
  if (shape.causal) {
    const auto future_TT =
        at::ones({tokens, tokens}, x_TH.options().dtype(at::kBool).requires_grad(false)).triu(1);
    score_NTT = score_NTT.masked_fill(future_TT, -std::numeric_limits<double>::infinity());
  }
  const auto y_NTD = at::matmul(at::softmax(score_NTT, -1), v_NTD);
  const auto y_TQ = y_NTD.transpose(0, 1).reshape({tokens, shape.heads * shape.head_dim});
  return pass.linear(y_TQ, prefix + names.o);
}

at::Tensor activated(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return 0.5 * x * (1 + at::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
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
  if (shape.architecture == "bert") {
    x_TH = x_TH + pass.w.at("bert.embeddings.token_type_embeddings.weight")[0];
    x_TH = pass.norm(x_TH, "bert.embeddings.LayerNorm");
  }
  return pass.dropout(x_TH, shape.embedding_dropout, 0);
}

at::Tensor logits_of(const Pass& pass, const Document& document) {
  const TextShape& shape = pass.shape;
  const c10::Device device = pass.w.begin()->second.device();
  at::Tensor x_TH = embedded(at::tensor(document, at::kLong).to(device), pass);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = pass.names.layer + std::to_string(layer) + ".";
    const std::string norms[] = {prefix + pass.names.attention_norm, prefix + pass.names.mlp_norm};
    for (const int part : {0, 1}) {
      const at::Tensor in = shape.post_norm ? x_TH : pass.norm(x_TH, norms[part]);
      at::Tensor y = part == 0 ? attention(in, pass, prefix) : mlp(in, pass, prefix);
      x_TH = x_TH + pass.dropout(y, shape.residual_dropout, 2 * (layer + 1) + part);
      x_TH = shape.post_norm ? pass.norm(x_TH, norms[part]) : x_TH;
    }
  }
  at::Tensor bias;
  if (shape.architecture == "bert") {
    x_TH = activated(pass.linear(x_TH, "cls.predictions.transform.dense"), shape.activation);
    x_TH = pass.norm(x_TH, "cls.predictions.transform.LayerNorm");
    bias = pass.w.at(head_bias_of(shape));
  } else {
    x_TH = pass.norm(x_TH, pass.names.last_norm);
  }
  const auto& head_VH = pass.w.at(shape.tied ? pass.names.tokens : pass.names.head);
  const auto logits_TV = at::matmul(x_TH, head_VH.t());
  return bias.defined() ? logits_TV + bias : logits_TV;
}

// The sum of -log p(label) over all tokens whose label counts, of a document with one.
at::Tensor token_losses(const Pass& pass, const Document& document, const Document& labels) {
  const at::Tensor logits_TV = logits_of(pass, document);
  const auto label_T = at::tensor(labels, at::kLong).to(logits_TV.device());
  const auto log_p_T =
      at::log_softmax(logits_TV, -1).gather(1, label_T.clamp_min(0).unsqueeze(1)).squeeze(1);
  return -log_p_T.masked_fill(label_T < 0, 0).sum();
}

// The next label of each; -1 for the last.
Document shifted(const Document& labels) {
  Document next(labels.begin() + (labels.empty() ? 0 : 1), labels.end());
  next.resize(labels.size(), -1);
  return next;
}

}  // namespace

Answer text_answer(
    const TextShape& shape,
    const Weights& weights,
    const std::vector<Document>& documents,
    const std::vector<Document>& labels,
    std::optional<std::uint64_t> dropout_seed) {
  check_tokens(documents, shape.vocab, 0, "token");
  check_tokens(labels, shape.vocab, -100, "label");
  if (labels.size() != documents.size() && (shape.masked_lm || !labels.empty())) {
    throw std::invalid_argument(
        std::to_string(labels.size()) + " lists of labels for " + std::to_string(documents.size()) +
        " documents: a masked LM takes one for each, others that or none");
  }
  const at::AutoGradMode record(true);  // whatever the caller has switched off
  const Weights leaves = leaves_of(shape, weights);

  Answer answer;
  std::vector<Document> wanted;
  std::int64_t count = 0;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    wanted.push_back(
        shape.masked_lm ? labels[d] : shifted(labels.empty() ? documents[d] : labels[d]));
    const auto counted = std::count_if(
        wanted[d].begin(), wanted[d].end(), [](std::int32_t label) { return label >= 0; });
    count += answer.documents.emplace_back(DocumentLoss{0, counted}).count;
  }
  Pass pass{
      .shape = shape,
      .names = names_of(shape.architecture),
      .w = leaves,
      .dropout_seed = dropout_seed};
  for (std::size_t d = 0; d < documents.size(); ++d) {
    if (answer.documents[d].count > 0) {
      const auto sum = token_losses(pass, documents[d], wanted[d]);
      (sum / count).backward();  // adds to the gradients of the leaves
      answer.documents[d].sum = sum.is_meta() ? 0 : sum.item<double>();
      answer.loss += answer.documents[d].sum / static_cast<double>(count);
    }
    pass.first_token += static_cast<std::int64_t>(documents[d].size());
  }
  for (const auto& [name, leaf] : leaves) {
    answer.gradients[name] = leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
  }
  return answer;
}

at::Tensor logits(const TextShape& shape, const Weights& weights, const Document& document) {
  check_tokens({document}, shape.vocab, 0, "token");
  const at::AutoGradMode record(false);
  const Pass pass{
      .shape = shape, .names = names_of(shape.architecture), .w = weights, .dropout_seed = {}};
  return logits_of(pass, document);
}

}  // namespace paradyse::reference
