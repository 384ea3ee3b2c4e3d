#include "src/plan/base/toml_text.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace paradyse {
namespace {

constexpr std::size_t kDeepestToml = 64;

[[noreturn]] void refuse_at(const std::string& source, std::size_t line, const std::string& what) {
  throw std::invalid_argument(source + ":" + std::to_string(line) + ": " + what);
}

// Where the string that begins at `at` ends; one of a single line ends with its line, for no parser
// goes on there.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool lines = text.substr(at).starts_with(three);
  for (std::size_t i = at + (lines ? 3 : 1); i < text.size(); ++i) {
    if (text[i] == '\\' && quote == '"') {
      ++i;
    } else if (!lines && text[i] == quote) {
      return i + 1;
    } else if (lines && text.substr(i).starts_with(three)) {
      // Of up to five the last three end it.
      const std::size_t most = std::min(i + 5, text.size());
      for (i += 3; i < most && text[i] == quote;) {
        ++i;
      }
      return i;
    } else if (!lines && text[i] == '\n') {
      return i;
    }
  }
  return text.size();
}

// Follows brackets and the dots of keys.  What stands before an error is judged as the parser
// judges it, and it goes no further.
void expect_shallow(std::string_view text, const std::string& source) {
  std::vector<std::size_t> open;  // tables and lists of each open bracket and its key
  std::size_t outside = 0;        // their sum
  std::size_t dots = 0;           // of the key at hand
  for (std::size_t i = 0; i < text.size();) {
    const char letter = text[i];
    if (letter == '"' || letter == '\'') {
      i = end_of_string(text, i);
      continue;
    }
    if (letter == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (letter == '.') {
      ++dots;
    } else if (letter == '[' || letter == '{') {
      open.push_back(dots + 1);
      outside += open.back();
      dots = 0;
    } else if (letter == ']' || letter == '}') {
      outside -= open.empty() ? 0 : open.back();
      open.resize(open.size() - (open.empty() ? 0 : 1));
      dots = 0;
    } else if (letter == ',' || letter == '\n') {
      dots = 0;
    }
    if (outside + dots > kDeepestToml) {
      const auto line = static_cast<std::size_t>(
          std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i), '\n'));
      refuse_at(source, line + 1, "nested deeper than " + std::to_string(kDeepestToml) + " levels");
    }
    ++i;
  }
}

}  // namespace

toml::table toml_in(const std::string& text, const std::string& source) {
  expect_shallow(text, source);
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    refuse_at(
        source, error.source().begin.line, "is not TOML: " + std::string(error.description()));
  }
}

}  // namespace paradyse
