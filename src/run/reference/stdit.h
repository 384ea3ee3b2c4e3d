#pragma once

#include <string>
#include <vector>

#include "src/plan/model/stdit/stdit.h"
#include "src/run/reference/samples.h"

namespace paradyse::reference {

// What a part writes to its stream; `weights` by stored name, without a layer's prefix.  Throws
// std::out_of_range for a weight or stream that is not there, std::invalid_argument for a part that
// the model has not got.
at::Tensor stdit_part(
    const StditShape& shape, const std::string& part, const Weights& weights, const Streams& in);

// The sum of a sample's losses; `weights` by full name.
at::Tensor stdit_loss(
    const StditShape& shape, const Weights& weights, const Item& sample, const Draws& none);

}  // namespace paradyse::reference
