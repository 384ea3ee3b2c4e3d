#include "src/plan/base/bytes_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>

namespace paradyse {

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::int64_t parse_bytes(const std::string& text) {
  static const std::map<std::string, double> units = {
      {"", 1.0},
      {"B", 1.0},
      {"KiB", 1024.0},
      {"MiB", 1048576.0},
      {"GiB", 1073741824.0},
      {"TiB", 1099511627776.0},
      {"kB", 1e3},
      {"KB", 1e3},
      {"MB", 1e6},
      {"GB", 1e9},
      {"TB", 1e12}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  const auto found = units.find(unit);
  if (error != std::errc{} || found == units.end() || !(number >= 0) ||
      number * found->second > 9e18) {
    throw std::invalid_argument(
        "'" + text +
        "' is not an amount of memory; write a number and a unit, as in 512MiB or 2GiB");
  }
  return static_cast<std::int64_t>(number * found->second);
}

}  // namespace paradyse
