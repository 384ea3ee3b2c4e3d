// Adapters, as the judge has them: by the names of weights alone.
#pragma once

#include "src/run/reference/reference.h"

namespace paradyse::reference {

// What a model with adapters trains, from the answer of merged() weights.
Answer of_adapters(const Model& model, const Weights& weights, Answer merged);

}  // namespace paradyse::reference
