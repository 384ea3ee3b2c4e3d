// The judge of models of several dims: their parts, and whole models, on one rank in plain torch
// autograd, without our ops, layouts or programs.
//
// Slow and obviously right; do not tune it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/grid_models.h"
#include "paradyse/run/sample.h"
#include "src/run/reference/reference_model.h"

namespace paradyse::reference {

using Weights = std::map<std::string, at::Tensor>;  // by stored name, without a layer's prefix
using Streams = std::map<std::string, at::Tensor>;  // whole, dims as the model's streams have them

// What a part writes to its stream.  Throws std::out_of_range for a weight or stream that is not
// there, std::invalid_argument for a part that the model has not got.
at::Tensor stdit_part(
    const StditShape& shape, const std::string& part, const Weights& weights, const Streams& in);
at::Tensor evoformer_part(
    const EvoformerShape& shape,
    const std::string& part,
    const Weights& weights,
    const Streams& in);
at::Tensor grid_part(
    const GridShape& shape, const std::string& part, const Weights& weights, const Streams& in);

// Loss and every gradient of a batch of samples, each run by itself, in the weights' type;
// `weights` by full name.  Weights may be without data (naive_memory.h); then losses are 0.
Answer grid_model(
    const GridShape& shape, const Weights& weights, const std::vector<Sample>& samples);

}  // namespace paradyse::reference
