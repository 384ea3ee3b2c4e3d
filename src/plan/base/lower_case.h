// Names of files in one spelling.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>

namespace paradyse {

// ASCII letters alone, in the C locale.
inline std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  return text;
}

}  // namespace paradyse
