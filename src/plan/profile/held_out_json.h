// Errors on lengths left out, in costs files and in what `fit` prints.
#pragma once

#include <nlohmann/json.hpp>

#include "src/plan/base/json_node.h"
#include "src/plan/profile/fit.h"

namespace paradyse {

// Throws std::invalid_argument for an error that is no number.
nlohmann::ordered_json json_of(const HeldOutError& error);
HeldOutError held_out_error_from(const JsonNode& node);

}  // namespace paradyse
