// JSON as people can read it, and read.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace paradyse {

// What a text says.  Throws nlohmann::json::exception for a text that is no JSON or nests deeper
// than 64; a NUL byte, at which nlohmann's parser stops as if the text ended there, makes it none.
// All that parses JSON calls this, or no_nul() first and has a guard of its own.
nlohmann::json json_in(std::string_view text);
nlohmann::ordered_json ordered_json_in(std::string_view text);
void no_nul(std::string_view text);
// Nobody's file nests so deep, and what takes a value apart goes as deep as it nests.
inline constexpr int kDeepestJson = 64;

// Lines of at most 100 columns: what fits on a line stands on one; numbers of a longer list fill
// lines; all else has lines of its own.  Throws std::invalid_argument for a name that is not UTF-8.
std::string json_text(const nlohmann::ordered_json& json);

// Without a space, keys in their order (nlohmann::json sorts them).  Throws likewise.
std::string json_line(const nlohmann::json& json);
std::string json_line(const nlohmann::ordered_json& json);

}  // namespace paradyse
