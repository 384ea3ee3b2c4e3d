// Switches of kernels in the environment.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace paradyse {

// What a variable of this name and value says; null: it is not set.  Throws std::invalid_argument
// for a value that is neither 0 nor 1.
inline bool switched(const char* name, const char* value, bool otherwise) {
  if (value == nullptr) {
    return otherwise;
  }
  const std::string text = value;
  if (text != "0" && text != "1") {
    throw std::invalid_argument(
        std::string(name) + " in the environment is '" + text + "'; 0 does without, 1 does with");
  }
  return text == "1";
}
inline bool switched(const char* name, bool otherwise) {
  return switched(name, std::getenv(name), otherwise);
}

}  // namespace paradyse
