#include "src/cli/commands.h"

#include <algorithm>
#include <cstdio>

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

}  // namespace paradyse::cli
