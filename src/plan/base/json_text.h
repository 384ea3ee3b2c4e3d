// JSON as people can read it.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace paradyse {

// Lines of at most 100 columns: what fits on a line stands on one; numbers of a longer list fill
// lines; all else has lines of its own.  Throws std::invalid_argument for a name that is not UTF-8.
std::string json_text(const nlohmann::ordered_json& json);

// Without a space, keys in their order (nlohmann::json sorts them).  Throws likewise.
std::string json_line(const nlohmann::json& json);
std::string json_line(const nlohmann::ordered_json& json);

}  // namespace paradyse
