// How a file, or a place in one, is refused.
#pragma once

#include <stdexcept>
#include <string>

namespace paradyse {

// Throws std::runtime_error "where: what".  where: a path, or a line or sample of a file.
[[noreturn]] inline void refuse(const std::string& where, const std::string& what) {
  throw std::runtime_error(where + ": " + what);
}

}  // namespace paradyse
