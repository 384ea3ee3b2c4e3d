#pragma once

#include <string>
#include <vector>

#include "src/plan/model/evoformer/evoformer.h"
#include "src/run/reference/samples.h"

namespace paradyse::reference {

// What a part writes to its stream; `weights` by stored name, without a layer's prefix; beside
// streams `in` may have "msa_mask" and "extra_msa_mask", as a batch brings them.  Throws
// std::out_of_range for a weight or stream that is not there, std::invalid_argument for a part that
// the model has not got.
at::Tensor evoformer_part(
    const EvoformerShape& shape,
    const std::string& part,
    const Weights& weights,
    const Streams& in);

// The sum of a sample's losses; `weights` by full name.
at::Tensor evoformer_loss(
    const EvoformerShape& shape, const Weights& weights, const Item& sample, const Draws& draws);

}  // namespace paradyse::reference
