#include "src/plan/base/number_text.h"

#include <cmath>
#include <cstdio>

namespace paradyse {

std::string decimals_text(double value, int digits) {
  if (!std::isfinite(value)) {
    return "-";
  }
  char text[400];  // the largest number has 309 digits
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  const std::string said = text;
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

}  // namespace paradyse
