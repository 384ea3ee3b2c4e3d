// Letters: B samples, T frames, S patches, H hidden width.  ST-DiT as in Open-Sora's STDiT3Block
// (Zheng et al. 2024), and as in its STDiT3.
#include "src/run/reference/stdit.h"

#include <stdexcept>
#include <utility>
#include <vector>

namespace paradyse::reference {

namespace {

// An RMSNorm of every head's D columns, as wide as the weight.
at::Tensor head_norm(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor of_heads = x.unflatten(-1, {-1, weight.size(0)});
  const at::Tensor mean = of_heads.square().mean(-1, /*keepdim=*/true);
  return (weight * of_heads / at::sqrt(mean + 1e-6)).flatten(-2);
}

// Columns 2i and 2i + 1 of every head as a complex number, turned by its row's place times
// 10000^(-2i / D); x [.., L, heads D].
at::Tensor turned(const at::Tensor& x, std::int64_t heads) {
  const std::int64_t D = x.size(-1) / heads;
  const at::Tensor pairs = x.unflatten(-1, {heads, D / 2, 2});
  const at::Tensor places = at::arange(x.size(-2), x.options().requires_grad(false));
  const at::Tensor frequencies =
      at::pow(10000.0, -at::arange(0, D, 2, x.options().requires_grad(false)) / D);
  const at::Tensor angles = at::outer(places, frequencies).unsqueeze(1);  // [L, 1, D/2]
  const at::Tensor a = pairs.select(-1, 0);
  const at::Tensor b = pairs.select(-1, 1);
  return at::stack({a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()}, -1)
      .flatten(-3);
}

// Of text: keys and values are of it.  STDiT3 has one weight for those, or for all.
at::Tensor attention(
    const StditShape& shape,
    const Weights& weights,
    const std::string& core,
    const at::Tensor& x,
    const at::Tensor& text,
    bool turns) {
  const std::int64_t heads = shape.heads;
  if (!shape.stdit3) {
    const at::Tensor& y = text.defined() ? text : x;
    const at::Tensor o = attend(
        linear(x, weights, core + "q"),
        linear(y, weights, core + "k"),
        linear(y, weights, core + "v"),
        heads,
        text.defined() ? heads : shape.kv_heads);
    return linear(o, weights, core + "proj");
  }
  std::vector<at::Tensor> qkv;
  if (text.defined()) {
    qkv = linear(text, weights, core + "kv_linear").chunk(2, -1);
    qkv.insert(qkv.begin(), linear(x, weights, core + "q_linear"));
  } else {
    qkv = linear(x, weights, core + "qkv").chunk(3, -1);
    if (shape.qk_norm) {
      qkv[0] = head_norm(qkv[0], weights.at(core + "q_norm.weight"));
      qkv[1] = head_norm(qkv[1], weights.at(core + "k_norm.weight"));
    }
    if (turns) {
      qkv[0] = turned(qkv[0], heads);
      qkv[1] = turned(qkv[1], heads);
    }
  }
  return linear(attend(qkv[0], qkv[1], qkv[2], heads, heads), weights, core + "proj");
}

// Shift | scale | gate of the block's attention or MLP: what is added to the condition's.
at::Tensor table_of(
    const StditShape& shape, const Weights& weights, const std::string& block, bool attends) {
  if (shape.stdit3) {
    return weights.at("scale_shift_table").narrow(0, attends ? 0 : 3, 3).flatten();
  }
  const std::string table = block + ".scale_shift_table." + (attends ? "attn" : "mlp");
  return at::cat({weights.at(table + ".modulate"), weights.at(table + ".gate")});
}

at::Tensor small_mlp(
    const at::Tensor& x,
    const Weights& weights,
    const std::string& first,
    const std::string& last,
    bool gelu) {
  const at::Tensor inner = linear(x, weights, first);
  return linear(gelu ? at::gelu(inner, "tanh") : at::silu(inner), weights, last);
}

// Of STDiT3's channels, which stand together for each pixel, those of the velocity.
at::Tensor of_velocity(const StditShape& shape, const at::Tensor& y) {
  const std::int64_t all = (shape.pred_sigma ? 2 : 1) * shape.channels;
  return y.unflatten(-1, {-1, all}).narrow(-1, 0, shape.channels);
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
  const bool spatial = block == "spatial";
  const std::string name = shape.stdit3 ? "" : block + ".";
  const std::int64_t H = shape.hidden;
  const at::Tensor& x = in.at("x");  // [B, T, S, H]
  if (kind == "text") {
    const at::Tensor& y = in.at("y");  // [B, text, H]
    return x +
           attention(shape, weights, name + "cross_attn.", x.flatten(1, 2), y, false).view_as(x);
  }
  const at::Tensor condition =
      in.at("c").narrow(1, attends ? 0 : 3 * H, 3 * H) + table_of(shape, weights, block, attends);
  const auto of_samples = [&](std::int64_t which) {
    return condition.narrow(1, which * H, H).unsqueeze(1).unsqueeze(1);
  };
  const at::Tensor xn = at::layer_norm(x, {H}, {}, {}, 1e-6) * (1 + of_samples(1)) + of_samples(0);
  at::Tensor y;
  if (attends) {
    const at::Tensor lines = spatial ? xn : xn.transpose(1, 2);
    y = attention(shape, weights, name + "attn.", lines, {}, !spatial);
    y = spatial ? y : y.transpose(1, 2);
  } else {
    y = small_mlp(xn, weights, name + "mlp.fc1", name + "mlp.fc2", /*gelu=*/true);
  }
  return x + of_samples(2) * y;
}

// The sum of squared differences from the velocity.
at::Tensor stdit_loss(
    const StditShape& shape, const Weights& weights, const Item& sample, const Draws& /*none*/) {
  const std::int64_t H = shape.hidden;
  const auto input = [&](const char* name) { return sample.inputs->at(name).whole().unsqueeze(0); };
  at::Tensor t =
      small_mlp(input("time"), weights, "t_embedder.mlp.0", "t_embedder.mlp.2", /*gelu=*/false);
  Streams streams;
  std::vector<std::string> parts = {
      "spatial_attention", "spatial_mlp", "temporal_attention", "temporal_mlp"};
  if (shape.caption_channels > 0) {
    parts.insert(parts.begin() + 1, "spatial_text");
    parts.insert(parts.begin() + 4, "temporal_text");
  }
  if (shape.stdit3) {
    t = t + small_mlp(
                input("fps"), weights, "fps_embedder.mlp.0", "fps_embedder.mlp.2", /*gelu=*/false);
    const at::Tensor filter = weights.at("x_embedder.proj.weight").flatten(1);
    const at::Tensor patches = input("patches");
    const std::int64_t columns = filter.size(1);
    streams["x"] = at::matmul(patches.narrow(-1, 0, columns), filter.t()) +
                   weights.at("x_embedder.proj.bias") + patches.narrow(-1, columns, H);
    streams["y"] = small_mlp(
        input("text"), weights, "y_embedder.y_proj.fc1", "y_embedder.y_proj.fc2", /*gelu=*/true);
  } else {
    streams["x"] = linear(input("patches"), weights, "x_embedder.proj");
    if (shape.caption_channels > 0) {
      streams["y"] = linear(input("text"), weights, "y_embedder.proj");
    }
  }
  streams["c"] = linear(at::silu(t), weights, "t_block.1");
  for (std::int64_t layer = 0; layer < shape.depth; ++layer) {
    for (const std::string& part : parts) {
      const std::string blocks =
          shape.stdit3 ? part.substr(0, part.find('_')) + "_blocks." : "blocks.";
      streams["x"] = stdit_part(shape, part, of_layer(weights, layer, blocks), streams);
    }
  }
  const at::Tensor& table = weights.at("final_layer.scale_shift_table");
  const at::Tensor condition = shape.stdit3 ? at::cat({t, t}, 1) + table.flatten()
                                            : streams.at("c").narrow(1, 6 * H, 2 * H) + table;
  const at::Tensor xn =
      at::layer_norm(streams.at("x"), {H}, {}, {}, 1e-6) * (1 + condition.narrow(1, H, H)) +
      condition.narrow(1, 0, H);
  const at::Tensor y = linear(xn, weights, "final_layer.linear");
  const at::Tensor velocity = input("velocity");
  return shape.stdit3 ? at::square(of_velocity(shape, y) - of_velocity(shape, velocity)).sum()
                      : at::square(y - velocity).sum();
}

}  // namespace paradyse::reference
