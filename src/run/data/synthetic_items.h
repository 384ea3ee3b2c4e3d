// Items that are there to be run, not to be learned from: the same on every machine.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"
#include "paradyse/run/detail/item.h"
#include "src/run/data/owned_item.h"

namespace paradyse {

// Numbers from -1 to 1, masks that count about two rows of three, and a label for about every third
// row where the model wants any.  Throws std::runtime_error where this machine has no memory for
// them.
std::vector<Sample> synthetic_samples(
    const Model& model, const std::map<std::string, std::int64_t>& dims, std::int64_t count);

// An item for each of these sizes: documents of any ids, which a masked LM is to predict as they
// are; or samples like those.
std::vector<OwnedItem> synthetic_items(const Model& model, const BatchSizes& sizes);

}  // namespace paradyse
