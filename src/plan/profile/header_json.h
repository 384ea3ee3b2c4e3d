// A ProfileHeader in JSON: the first line of a profile, and a member of a costs file.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/plan/profile.h"
#include "src/plan/base/json_node.h"

namespace paradyse {

nlohmann::ordered_json json_of(const ProfileHeader& header);

// The header whose fields are keys of this object, among `others`.  Throws std::invalid_argument.
ProfileHeader header_from(const JsonNode& node, const std::vector<std::string>& others = {});

}  // namespace paradyse
