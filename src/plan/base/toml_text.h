// TOML that people and strangers write: all that parses TOML calls this.
#pragma once

#include <string>

#include <toml++/toml.h>

namespace paradyse {

// Throws std::invalid_argument "SOURCE:LINE: ..." for what is no TOML, and for values deeper than
// 64 tables and lists: toml++ limits brackets, but not the parts of a key (a.a.a. ...), each of
// which is a table, and takes the stack that they need.
toml::table toml_in(const std::string& text, const std::string& source);

}  // namespace paradyse
