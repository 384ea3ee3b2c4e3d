// Letters: B samples, T frames, S patches, H hidden width.  ST-DiT as in Open-Sora's STDiT3Block
// (Zheng et al. 2024).
#include "src/run/reference/stdit.h"

#include <stdexcept>
#include <utility>

namespace paradyse::reference {

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

}  // namespace paradyse::reference
