// Files of what this program says, stored before the code under it is moved: a refactoring leaves
// them as they are.  PARADYSE_WRITE_GOLDEN=1 writes them anew instead of comparing.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace paradyse::test {

inline std::string golden_path(const std::string& name) {
  return PARADYSE_SOURCE_DIR "/tests/golden/" + name;
}

inline std::string golden_text(const std::string& name) {
  const std::ifstream in(golden_path(name), std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline bool writes_golden() { return std::getenv("PARADYSE_WRITE_GOLDEN") != nullptr; }

inline void write_golden(const std::string& name, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(golden_path(name)).parent_path());
  std::ofstream(golden_path(name), std::ios::binary) << text;
}

// `text` is what the file tests/golden/`name` holds; the first line that differs is named.
inline void expect_golden(const std::string& name, const std::string& text) {
  if (writes_golden()) {
    write_golden(name, text);
    return;
  }
  std::istringstream is(text);
  std::istringstream was(golden_text(name));
  std::string is_line;
  std::string was_line;
  for (int line = 1;; ++line) {
    const bool more = static_cast<bool>(std::getline(is, is_line));
    const bool expected = static_cast<bool>(std::getline(was, was_line));
    if (!more && !expected) {
      return;
    }
    ASSERT_TRUE(more && expected && is_line == was_line)
        << name << ", line " << line << "\n  is:  " << (more ? is_line : "(end)")
        << "\n  was: " << (expected ? was_line : "(end)");
  }
}

}  // namespace paradyse::test
