#include "paradyse/plan/parts.h"

#include <memory>
#include <utility>

#include "src/plan/model/matrices.h"

namespace paradyse {
namespace {

// Weights of a part that norms its input.
PartWeights normed(const std::string& name, std::int64_t hidden) {
  return {
      .part = name,
      .prefix = "layers.",
      .matrices = {},
      .vectors = {{Role::norm, name + ".norm.weight", hidden, 1.0}}};
}

}  // namespace

Part projection_part(
    const std::string& name,
    const std::string& stream,
    const std::string& input,
    std::int64_t columns,
    const PartShape& shape) {
  return {
      .name = name,
      .kind = kProjection,
      .reads = {},
      .writes = {stream},
      .input = input,
      .shape = shape,
      .weights = [=, H = shape.hidden](int domain) {
        return PartWeights{
            .part = name,
            .prefix = "",
            .matrices = {matrix("proj", name, even_cuts(H, domain), columns, Side::input)},
            .vectors = {}};
      }};
}

Part attention_part(
    const std::string& name,
    const std::string& stream,
    const std::string& along,
    const PartShape& shape) {
  return {
      .name = name,
      .kind = kAxialAttention,
      .reads = {stream},
      .writes = {stream},
      .along = along,
      .shape = shape,
      .weights = [=](int domain) {
        const std::int64_t H = shape.hidden;
        const Cuts query = scaled(even_cuts(shape.heads, domain), shape.head_dim);
        const Cuts key = even_cuts(shape.kv_heads * shape.head_dim, domain);
        PartWeights part = normed(name, H);
        part.matrices = {
            matrix("q", name + ".q", query, H, Side::input),
            matrix("k", name + ".k", key, H, Side::input),
            matrix("v", name + ".v", key, H, Side::input),
            matrix("o", name + ".o", query, H, Side::output)};
        return part;
      }};
}

Part mlp_part(const std::string& name, const std::string& stream, const PartShape& shape) {
  return {
      .name = name,
      .kind = "mlp",
      .reads = {stream},
      .writes = {stream},
      .shape = shape,
      .weights = [=](int domain) {
        const Cuts width = even_cuts(shape.ffn, domain);
        PartWeights part = normed(name, shape.hidden);
        if (shape.gated()) {
          part.matrices.push_back(matrix("gate", name + ".gate", width, shape.hidden, Side::input));
        }
        part.matrices.push_back(matrix("up", name + ".up", width, shape.hidden, Side::input));
        part.matrices.push_back(matrix("down", name + ".down", width, shape.hidden, Side::output));
        return part;
      }};
}

Part prediction_part(
    const std::string& name,
    const std::string& stream,
    const std::string& input,
    std::int64_t columns,
    const PartShape& shape) {
  return {
      .name = name,
      .kind = "flow_head",
      .reads = {stream},
      .writes = {},
      .input = input,
      .shape = shape,
      .weights = [=](int domain) {
        PartWeights part = normed(name, shape.hidden);
        part.prefix = "";
        part.matrices = {
            matrix("proj", name + ".proj", even_cuts(columns, domain), shape.hidden, Side::input)};
        return part;
      }};
}

void add_end(Model& model, Part part) {
  model.parts.push_back({.part = std::make_shared<const Part>(std::move(part))});
}

void add_layers(Model& model, std::int64_t layers, std::vector<Part> parts) {
  std::vector<std::shared_ptr<const Part>> shared;
  shared.reserve(parts.size());
  for (Part& part : parts) {
    shared.push_back(std::make_shared<const Part>(std::move(part)));
  }
  const std::int64_t first = model.layers;
  model.layers += layers;
  for (std::int64_t layer = first; layer < model.layers; ++layer) {
    for (const std::shared_ptr<const Part>& part : shared) {
      const auto site = static_cast<std::uint32_t>(model.parts.size()) + 1;
      model.parts.push_back({.layer = layer, .site = site, .part = part});
    }
  }
}

}  // namespace paradyse
