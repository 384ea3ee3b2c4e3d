// What is written of a run that was measured beside the best static plan.
#pragma once

#include <optional>

#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/compared_steps.h"

namespace paradyse {

// null: no step was compared.
nlohmann::ordered_json json_of(const std::optional<MeasuredComparison>& one);

}  // namespace paradyse
