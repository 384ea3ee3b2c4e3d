#include "src/plan/base/number_text.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace paradyse {

std::string decimals_text(double value, int digits) {
  if (!std::isfinite(value)) {
    return "-";
  }
  const std::string said = fmt::format("{:.{}f}", value, digits);
  return said.find_first_of("123456789") == std::string::npos && said.front() == '-'
             ? said.substr(1)
             : said;
}

std::string percent_text(double share, int digits) {
  const std::string number = decimals_text(100 * share, digits);
  return number == "-" ? number : number + " %";
}

std::string signed_percent_text(double share, int digits) {
  const std::string text = percent_text(share, digits);
  const bool plain = text.find_first_of("123456789") == std::string::npos || text.front() == '-';
  return plain ? text : "+" + text;
}

std::string counted(std::int64_t number, const std::string& thing) {
  const bool hisses = thing.ends_with('s') || thing.ends_with("ch");
  return std::to_string(number) + " " + thing + (number == 1 ? "" : hisses ? "es" : "s");
}

std::optional<std::int64_t> whole_number(const std::string& text) {
  const char* const end = text.data() + text.size();
  std::int64_t number = 0;
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{}) {
    return std::nullopt;
  }
  const std::string unit(at, end);
  const std::int64_t times = unit.empty()                 ? 1
                             : unit == "K" || unit == "k" ? 1024
                             : unit == "M" || unit == "m" ? 1024 * 1024
                                                          : 0;
  std::int64_t all = 0;
  return times == 0 || __builtin_mul_overflow(number, times, &all) ? std::nullopt
                                                                   : std::optional(all);
}

}  // namespace paradyse
