// Names and values in messages that say what to do: the known name nearest to a mistyped one, names
// in a row, and a stranger's value cut to size.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace paradyse {

// The candidate with the least Damerau-Levenshtein distance to `word`, or "" when none is within
// `near`, or max(2, a third of the word's length).
std::string nearest_name(std::string_view word, std::span<const std::string> candidates);
std::string nearest_name(
    std::string_view word, std::span<const std::string> candidates, std::size_t near);

// " (did you mean 'x'?)", or "" when none is near.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

// Throws std::invalid_argument, naming the option and the nearest accepted value, unless `value` is
// one of `accepted`.
void expect_one_of(
    const std::string& option, const std::string& value, const std::vector<std::string>& accepted);

// "a, then b": the names with this between them; a name of each by `name_of`.
template <class Range, class NameOf = std::identity>
std::string joined(const Range& all, std::string_view between, NameOf name_of = {}) {
  std::string text;
  bool first = true;
  for (const auto& each : all) {
    text.append(first ? "" : between).append(std::invoke(name_of, each));
    first = false;
  }
  return text;
}

// A value as it appears in a message: JSON in plain ASCII, at most 120 characters; of a list of
// lists or the like only its kind, however deep it nests.
std::string excerpt(const nlohmann::json& value);

}  // namespace paradyse
