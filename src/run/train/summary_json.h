// What a run comes to, as summary.json and `train --json` have it.
#pragma once

#include <nlohmann/json.hpp>

#include "paradyse/run/train.h"

namespace paradyse {

// All but its folder; what is no number is null.
nlohmann::ordered_json json_of(const TrainSummary& summary);

}  // namespace paradyse
