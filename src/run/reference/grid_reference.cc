// Letters: B samples, T frames, S patches, H hidden width, N heads, D width of a head; s sequences,
// r residues, C channels.
//
// ST-DiT as in Open-Sora's STDiT3Block (Zheng et al. 2024); the Evoformer by the algorithms of
// AlphaFold 2's supplement (Jumper et al. 2021).
#include "src/run/reference/grid_reference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>
#include <variant>

#include <ATen/core/grad_mode.h>

namespace paradyse::reference {
namespace {

at::Tensor linear(const at::Tensor& x, const Weights& weights, const std::string& name) {
  const auto bias = weights.find(name + ".bias");
  const at::Tensor y = at::matmul(x, weights.at(name + ".weight").t());
  return bias == weights.end() ? y : y + bias->second;
}

at::Tensor layer_norm(const at::Tensor& x, const Weights& weights, const std::string& name) {
  return at::layer_norm(
      x, {x.size(-1)}, weights.at(name + ".weight"), weights.at(name + ".bias"), 1e-5);
}

// Along the last dim but one of x [..., L, heads * D] to [..., heads, L, D].
at::Tensor heads(const at::Tensor& x, std::int64_t count) {
  return x.unflatten(-1, {count, x.size(-1) / count}).transpose(-2, -3);
}

// softmax(q k^T / sqrt(D) + bias) v, heads side by side; fewer key heads are shared by neighbours.
at::Tensor attend(
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    std::int64_t count,
    std::int64_t key_heads,
    const at::Tensor& bias = {}) {
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

}  // namespace

at::Tensor stdit_part(
    const StditShape& shape, const std::string& part, const Weights& weights, const Streams& in) {
  const std::size_t split = part.find('_');
  const std::string block = part.substr(0, split);
  const std::string kind = split == std::string::npos ? "" : part.substr(split + 1);
  if ((block != "spatial" && block != "temporal") ||
      (kind != "attention" && kind != "mlp" && kind != "text")) {
    throw std::invalid_argument("reference: stdit has no part '" + part + "'");
  }
  const bool attends = kind == "attention";
  const std::int64_t H = shape.hidden;
  const at::Tensor& x = in.at("x");  // [B, T, S, H]
  if (kind == "text") {
    const std::string core = block + ".cross_attn.";
    const at::Tensor& y = in.at("y");  // [B, text, H]
    const at::Tensor o = attend(
        linear(x.flatten(1, 2), weights, core + "q"),
        linear(y, weights, core + "k"),
        linear(y, weights, core + "v"),
        shape.heads,
        shape.heads);
    return x + linear(o.view_as(x), weights, core + "proj");
  }
  const std::string table = block + ".scale_shift_table." + (attends ? "attn" : "mlp");
  const at::Tensor condition =
      in.at("c").narrow(1, attends ? 0 : 3 * H, 3 * H) +
      at::cat({weights.at(table + ".modulate"), weights.at(table + ".gate")});
  const auto of_samples = [&](std::int64_t which) {
    return condition.narrow(1, which * H, H).unsqueeze(1).unsqueeze(1);
  };
  const at::Tensor xn = at::layer_norm(x, {H}, {}, {}, 1e-6) * (1 + of_samples(1)) + of_samples(0);
  at::Tensor y;
  if (attends) {
    const at::Tensor lines = block == "spatial" ? xn : xn.transpose(1, 2);
    const std::string core = block + ".attn.";
    const at::Tensor o = attend(
        linear(lines, weights, core + "q"),
        linear(lines, weights, core + "k"),
        linear(lines, weights, core + "v"),
        shape.heads,
        shape.kv_heads);
    y = linear(block == "spatial" ? o : o.transpose(1, 2), weights, core + "proj");
  } else {
    y = linear(
        at::gelu(linear(xn, weights, block + ".mlp.fc1"), "tanh"), weights, block + ".mlp.fc2");
  }
  return x + of_samples(2) * y;
}

namespace {

// Algorithms 7, 8, 13 and 14, along the last dim but one: gated self-attention; `bias` [heads, L,
// L].
at::Tensor gated_attention(
    const at::Tensor& xn,
    const Weights& weights,
    const std::string& core,
    std::int64_t count,
    const at::Tensor& bias = {}) {
  const at::Tensor o = attend(
      linear(xn, weights, core + "linear_q"),
      linear(xn, weights, core + "linear_k"),
      linear(xn, weights, core + "linear_v"),
      count,
      count,
      bias);
  return linear(
      at::sigmoid(linear(xn, weights, core + "linear_g")) * o, weights, core + "linear_o");
}

// Algorithms 9 and 15.
at::Tensor transition(const at::Tensor& x, const Weights& weights, const std::string& name) {
  const at::Tensor xn = layer_norm(x, weights, name + ".layer_norm");
  return linear(at::relu(linear(xn, weights, name + ".linear_1")), weights, name + ".linear_2");
}

// Algorithms 11 and 12.
at::Tensor triangle(
    const at::Tensor& z, const Weights& weights, const std::string& name, bool incoming) {
  const at::Tensor zn = layer_norm(z, weights, name + ".layer_norm_in");
  const auto operand = [&](const char* which) {
    const std::string own = name + ".linear_" + which;
    return at::sigmoid(linear(zn, weights, own + "_g")) * linear(zn, weights, own + "_p");
  };
  const at::Tensor a = operand("a");
  const at::Tensor b = operand("b");
  const at::Tensor o =
      incoming ? at::einsum("kic,kjc->ijc", {a, b}) : at::einsum("ikc,jkc->ijc", {a, b});
  return at::sigmoid(linear(zn, weights, name + ".linear_g")) *
         linear(layer_norm(o, weights, name + ".layer_norm_out"), weights, name + ".linear_z");
}

}  // namespace

at::Tensor evoformer_part(
    const EvoformerShape& shape,
    const std::string& part,
    const Weights& weights,
    const Streams& in) {
  const auto stream = [&](const char* name) -> const at::Tensor& { return in.at(name); };
  if (part == "row_attention") {
    const at::Tensor mn = layer_norm(stream("m"), weights, "msa_att_row.layer_norm_m");
    const at::Tensor zn = layer_norm(stream("z"), weights, "msa_att_row.layer_norm_z");
    const at::Tensor bias = linear(zn, weights, "msa_att_row.linear_z").permute({2, 0, 1});
    return stream("m") + gated_attention(mn, weights, "msa_att_row.mha.", shape.msa_heads, bias);
  }
  if (part == "column_attention") {
    const at::Tensor mn =
        layer_norm(stream("m"), weights, "msa_att_col._msa_att.layer_norm_m").transpose(0, 1);
    return stream("m") + gated_attention(mn, weights, "msa_att_col._msa_att.mha.", shape.msa_heads)
                             .transpose(0, 1);
  }
  if (part == "global_column_attention") {  // algorithm 19
    const std::string core = "msa_att_col.global_attention.";
    const at::Tensor mn =
        layer_norm(stream("m"), weights, "msa_att_col.layer_norm_m").transpose(0, 1);
    const at::Tensor o = attend(
        linear(mn.mean(1, /*keepdim=*/true), weights, core + "linear_q"),
        linear(mn, weights, core + "linear_k"),
        linear(mn, weights, core + "linear_v"),
        shape.msa_heads,
        /*key_heads=*/1);
    const at::Tensor y =
        linear(at::sigmoid(linear(mn, weights, core + "linear_g")) * o, weights, core + "linear_o");
    return stream("m") + y.transpose(0, 1);
  }
  if (part == "msa_transition") {
    return stream("m") + transition(stream("m"), weights, "core.msa_transition");
  }
  if (part == "outer_product_mean") {  // algorithm 10
    const std::string name = "core.outer_product_mean";
    const at::Tensor mn = layer_norm(stream("m"), weights, name + ".layer_norm");
    const at::Tensor o = at::einsum(
        "sia,sjb->ijab",
        {linear(mn, weights, name + ".linear_1"), linear(mn, weights, name + ".linear_2")});
    // what is divided is the product with its bias, by S + 1e-3, as in AlphaFold and OpenFold
    return stream("z") + linear(o.flatten(-2), weights, name + ".linear_out") /
                             (static_cast<double>(mn.size(0)) + 1e-3);
  }
  if (part == "triangle_outgoing" || part == "triangle_incoming") {
    const bool incoming = part == "triangle_incoming";
    return stream("z") +
           triangle(
               stream("z"), weights, incoming ? "core.tri_mul_in" : "core.tri_mul_out", incoming);
  }
  if (part == "triangle_starting" || part == "triangle_ending") {
    // along the columns of z is along the rows of its transpose, whose bias is transposed, too
    const bool ending = part == "triangle_ending";
    const std::string name = ending ? "core.tri_att_end." : "core.tri_att_start.";
    const at::Tensor z = ending ? stream("z").transpose(0, 1) : stream("z");
    const at::Tensor zn = layer_norm(z, weights, name + "layer_norm");
    const at::Tensor bias = linear(zn, weights, name + "linear").permute({2, 0, 1});
    const at::Tensor y = gated_attention(zn, weights, name + "mha.", shape.pair_heads, bias);
    return stream("z") + (ending ? y.transpose(0, 1) : y);
  }
  if (part == "pair_transition") {
    return stream("z") + transition(stream("z"), weights, "core.pair_transition");
  }
  throw std::invalid_argument("reference: evoformer has no part '" + part + "'");
}

at::Tensor grid_part(
    const GridShape& shape, const std::string& part, const Weights& weights, const Streams& in) {
  const auto* const video = std::get_if<StditShape>(&shape);
  return video != nullptr ? stdit_part(*video, part, weights, in)
                          : evoformer_part(std::get<EvoformerShape>(shape), part, weights, in);
}

namespace {

// Those of a layer, without its prefix.
Weights of_layer(const Weights& weights, std::int64_t layer) {
  const std::string prefix = "blocks." + std::to_string(layer) + ".";
  Weights own;
  for (const auto& [name, weight] : weights) {
    if (name.starts_with(prefix)) {
      own[name.substr(prefix.size())] = weight;
    }
  }
  return own;
}

// The sum of squared differences from the velocity.
at::Tensor stdit_loss(const StditShape& shape, const Weights& weights, const Sample& sample) {
  const std::int64_t H = shape.hidden;
  const at::Tensor t = linear(
      at::silu(linear(sample.inputs.at("time").unsqueeze(0), weights, "t_embedder.mlp.0")),
      weights,
      "t_embedder.mlp.2");
  Streams streams = {
      {"c", linear(at::silu(t), weights, "t_block.1")},
      {"x", linear(sample.inputs.at("patches").unsqueeze(0), weights, "x_embedder.proj")}};
  std::vector<std::string> parts = {
      "spatial_attention", "spatial_mlp", "temporal_attention", "temporal_mlp"};
  if (shape.caption_channels > 0) {
    streams["y"] = linear(sample.inputs.at("text").unsqueeze(0), weights, "y_embedder.proj");
    parts.insert(parts.begin() + 1, "spatial_text");
    parts.insert(parts.begin() + 4, "temporal_text");
  }
  for (std::int64_t layer = 0; layer < shape.depth; ++layer) {
    const Weights own = of_layer(weights, layer);
    for (const std::string& part : parts) {
      streams["x"] = stdit_part(shape, part, own, streams);
    }
  }
  const at::Tensor condition =
      streams.at("c").narrow(1, 6 * H, 2 * H) + weights.at("final_layer.scale_shift_table");
  const at::Tensor xn =
      at::layer_norm(streams.at("x"), {H}, {}, {}, 1e-6) * (1 + condition.narrow(1, H, H)) +
      condition.narrow(1, 0, H);
  return at::square(
             linear(xn, weights, "final_layer.linear") - sample.inputs.at("velocity").unsqueeze(0))
      .sum();
}

// The sum of cross-entropies of the letters that have a label.
at::Tensor evoformer_loss(
    const EvoformerShape& shape, const Weights& weights, const Sample& sample) {
  Streams streams = {
      {"m", linear(sample.inputs.at("msa"), weights, "input_embedder.linear_m")},
      {"z", linear(sample.inputs.at("pair"), weights, "input_embedder.linear_z")}};
  std::vector<std::pair<const char*, const char*>> parts = {
      {"row_attention", "m"},
      {shape.global_column ? "global_column_attention" : "column_attention", "m"},
      {"msa_transition", "m"},
      {"outer_product_mean", "z"},
      {"triangle_outgoing", "z"},
      {"triangle_incoming", "z"},
      {"triangle_starting", "z"},
      {"triangle_ending", "z"},
      {"pair_transition", "z"}};
  if (shape.multimer) {
    parts.insert(parts.begin(), parts[3]);
    parts.erase(parts.begin() + 4);
  }
  for (std::int64_t layer = 0; layer < shape.blocks; ++layer) {
    const Weights own = of_layer(weights, layer);
    for (const auto& [part, stream] : parts) {
      streams[stream] = evoformer_part(shape, part, own, streams);
    }
  }
  const at::Tensor logits = linear(streams.at("m"), weights, "masked_msa_head.linear");
  const at::Tensor scores = at::log_softmax(logits, -1).flatten(0, 1);
  const at::Tensor label = at::tensor(sample.labels, at::kLong).to(scores.device());
  const at::Tensor of_label = scores.gather(1, label.clamp_min(0).unsqueeze(1)).squeeze(1);
  return -of_label.masked_fill(label < 0, 0).sum();
}

// Its inputs as the weights are.
Sample like(const Weights& weights, Sample sample) {
  for (auto& [name, input] : sample.inputs) {
    input = input.to(weights.begin()->second.options().requires_grad(false));
  }
  return sample;
}

// Nothing of a tensor without data.
double number(const at::Tensor& tensor) { return tensor.is_meta() ? 0 : tensor.item<double>(); }

}  // namespace

Answer grid_model(
    const GridShape& shape, const Weights& weights, const std::vector<Sample>& samples) {
  const at::AutoGradMode on(true);
  const Model model = paradyse::grid_model(shape);
  Weights leaves;
  for (const auto& [name, weight] : weights) {
    leaves[name] = weight.detach().clone().requires_grad_(true);
  }
  Answer answer;
  std::int64_t count = 0;
  at::Tensor sum;
  for (const Sample& given : samples) {
    const Sample sample = like(weights, given);
    const auto* const video = std::get_if<StditShape>(&shape);
    const at::Tensor of_sample =
        video != nullptr ? stdit_loss(*video, leaves, sample)
                         : evoformer_loss(std::get<EvoformerShape>(shape), leaves, sample);
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
