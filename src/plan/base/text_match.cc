#include "src/plan/base/text_match.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include <nlohmann/json.hpp>

namespace paradyse {

namespace {

// The Damerau-Levenshtein distance: least number of insertions, deletions, substitutions and swaps
// of neighbours that turn `a` into `b`.  Lowrance and Wagner 1975, "An extension of the
// string-to-string correction problem"; unlike the simpler variant, letters may be inserted between
// swapped ones.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t far = a.size() + b.size();
  // distance[i + 1][j + 1]: of the first i bytes of a to the first j of b; row and column 0 are
  // walls
  std::vector<std::vector<std::size_t>> distance(
      a.size() + 2, std::vector<std::size_t>(b.size() + 2, far));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    distance[i + 1][1] = i;
  }
  for (std::size_t j = 0; j <= b.size(); ++j) {
    distance[1][j + 1] = j;
  }
  std::array<std::size_t, 256> last_row{};  // last i at which this byte stood in a, 0 = not yet
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t last_col = 0;  // last j < here at which b's byte equals a's i-th
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t row = last_row[static_cast<unsigned char>(b[j - 1])];
      const std::size_t col = last_col;
      const bool same = a[i - 1] == b[j - 1];
      if (same) {
        last_col = j;
      }
      distance[i + 1][j + 1] = std::min(
          {distance[i][j] + (same ? 0 : 1),
           distance[i + 1][j] + 1,
           distance[i][j + 1] + 1,
           distance[row][col] + (i - row - 1) + 1 + (j - col - 1)});
    }
    last_row[static_cast<unsigned char>(a[i - 1])] = i;
  }
  return distance[a.size() + 1][b.size() + 1];
}

}  // namespace

std::string nearest_name(std::string_view word, std::span<const std::string> candidates) {
  return nearest_name(word, candidates, std::max<std::size_t>(2, word.size() / 3));
}

std::string nearest_name(
    std::string_view word, std::span<const std::string> candidates, std::size_t near) {
  std::size_t least = near + 1;
  std::string nearest;
  for (const std::string& candidate : candidates) {
    const std::size_t longer = std::max(word.size(), candidate.size());
    const std::size_t shorter = std::min(word.size(), candidate.size());
    if (longer - shorter >= least) {  // so is the distance: spares the table
      continue;
    }
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const std::string nearest = nearest_name(word, candidates);
  return nearest.empty() ? "" : " (did you mean '" + nearest + "'?)";
}

std::string excerpt(const nlohmann::json& value) {
  using nlohmann::json;
  constexpr std::size_t kLongest = 120;
  // dump() recurses: a stranger's million brackets must not exhaust the stack.
  if (std::any_of(value.begin(), value.end(), [&value](const json& member) {
        return value.is_structured() && member.is_structured();
      })) {
    return std::string("a nested ") + value.type_name();
  }
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kLongest) {
    text.replace(kLongest - 3, std::string::npos, "...");
  }
  return text;
}

void expect_one_of(
    const std::string& option, const std::string& value, const std::vector<std::string>& accepted) {
  if (std::find(accepted.begin(), accepted.end(), value) != accepted.end()) {
    return;
  }
  throw std::invalid_argument(
      option + " '" + value + "' is not known" + did_you_mean(value, accepted) +
      "; accepted: " + joined(accepted, ", "));
}

}  // namespace paradyse
