// File names in commands that a user may copy into a shell.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace paradyse {

// As it stands where a shell takes it for one word of these letters, else in single quotes.
inline std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  const auto plain = [&](char c) {
    return kPlain.find(c) != std::string_view::npos || static_cast<unsigned char>(c) >= 0x80;
  };
  if (!text.empty() && std::ranges::all_of(text, plain)) {
    return std::string(text);
  }
  std::string word = "'";
  for (const char c : text) {
    word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return word + "'";
}

}  // namespace paradyse
