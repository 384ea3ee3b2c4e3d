#include "src/cli/commands.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "src/plan/base/text_match.h"

namespace paradyse::cli {

void print_json(const Json& json) {
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0) {
    throw std::runtime_error("stdout cannot be written: is the disk full or the reader gone?");
  }
}

std::string aligned(const std::vector<std::vector<std::string>>& rows, std::size_t left) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += c == 0 ? "" : "  ";
      line += c < left ? row[c] + padding : padding + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

void expect_one_of(
    const std::string& option, const std::string& value, const std::vector<std::string>& accepted) {
  if (std::find(accepted.begin(), accepted.end(), value) != accepted.end()) {
    return;
  }
  std::string list;
  for (const std::string& each : accepted) {
    list += (list.empty() ? "" : ", ") + each;
  }
  throw std::invalid_argument(
      option + " '" + value + "' is not known" + did_you_mean(value, accepted) +
      "; accepted: " + list);
}

Dtype dtype_option(const std::string& value, const std::vector<std::string>& accepted) {
  expect_one_of("--dtype", value, accepted);
  return dtype_named(value);
}

namespace {

// Refuses what is no `Number`, to its last character, or does not suit.
template <typename Number, typename Suits>
CLI::Validator accepting(const std::string& accepted, Suits suits) {
  const auto refusal = [=](const std::string& text) {
    Number value{};
    const char* const end = text.data() + text.size();
    const auto [parsed, error] = std::from_chars(text.data(), end, value);
    const bool fine = error == std::errc{} && parsed == end && suits(value);
    return fine ? std::string() : "'" + text + "' is not accepted, " + accepted + " is";
  };
  return {CLI::Validator([refusal](std::string& text) { return refusal(text); }, "")};
}

std::string range(const std::string& what, const std::string& least, const std::string& most) {
  return what + (most.empty() ? " of at least " + least : " from " + least + " to " + most);
}

}  // namespace

CLI::Validator whole_numbers(std::int64_t least, std::int64_t most) {
  const bool bounded = most != std::numeric_limits<std::int64_t>::max();
  return accepting<std::int64_t>(
      range("a whole number", std::to_string(least), bounded ? std::to_string(most) : ""),
      [=](std::int64_t value) { return value >= least && value <= most; });
}

CLI::Validator numbers(double least, double most) {
  return accepting<double>(
      range(
          "a number", fmt::format("{}", least), std::isfinite(most) ? fmt::format("{}", most) : ""),
      [=](double value) { return std::isfinite(value) && value >= least && value <= most; });
}

CLI::Validator seconds() {
  return accepting<double>("a number of seconds above 0, at most 1000000", [](double value) {
    return value > 0 && value <= 1e6;
  });
}

}  // namespace paradyse::cli
