// Parts that models of several dims are put together from: a model of your own is its streams and a
// list of these (examples/axial.cc).
//
// Weights are called by the part: "<part>.q.weight", below "layers.N." in layers.  Sizes are those
// of the shape; a part norms its input (RMSNorm) and has no biases.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/plan/model.h"

namespace paradyse {

// What a batch brings as `input`, so many columns, times a matrix: a stream is made.
Part projection_part(
    const std::string& name,
    const std::string& stream,
    const std::string& input,
    std::int64_t columns,
    const PartShape& shape);
// Attention along a row dim of the stream, the others a batch; added to the stream.
Part attention_part(
    const std::string& name,
    const std::string& stream,
    const std::string& along,
    const PartShape& shape);
// shape.activation between two products; added to the stream.
Part mlp_part(const std::string& name, const std::string& stream, const PartShape& shape);
// The end: a prediction of what a batch brings as `input`, by squared differences.
Part prediction_part(
    const std::string& name,
    const std::string& stream,
    const std::string& input,
    std::int64_t columns,
    const PartShape& shape);

// Before or after the layers.
void add_end(Model& model, Part part);
// So many layers of these parts, which they share, behind those that are there; a site of dropout
// for each.
void add_layers(Model& model, std::int64_t layers, std::vector<Part> parts);

}  // namespace paradyse
