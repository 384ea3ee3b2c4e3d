#include "src/plan/report/page_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "paradyse/plan/index.h"

namespace paradyse {

namespace {

constexpr const char* kDash = "\u2013";
constexpr const char* kMinus = "\u2212";

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

std::string printed(const char* format, int precision, double value) {
  std::array<char, 400> text{};  // the greatest double has 309 digits before the point
  const int size = std::snprintf(text.data(), text.size(), format, precision, value);
  return {text.data(), idx(std::clamp(size, 0, 399))};
}

// A comma between each three digits before the point.
std::string apart(std::string number) {
  const std::size_t point = std::min(number.find('.'), number.size());
  const std::size_t first = number.starts_with('-') ? 1 : 0;
  for (std::size_t at = point; at > first + 3;) {
    at -= 3;
    number.insert(at, ",");
  }
  return number;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += letter;
    }
  }
  return safe;
}

std::string shortened(const std::string& text, std::size_t letters) {
  std::size_t count = 0;
  std::size_t cut = text.size();  // where the last letter that may stay begins
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (continues(text[at])) {
      continue;
    }
    if (++count == letters) {
      cut = at;
    }
  }
  return count <= letters ? text : text.substr(0, cut) + "\u2026";
}

std::string decimals(double value, int decimals) {
  if (std::isnan(value)) {
    return kDash;
  }
  const std::string text = printed("%.*f", decimals, value);
  const bool nothing = text.find_first_of("123456789") == std::string::npos;
  return apart(nothing && text.starts_with('-') ? text.substr(1) : text);
}

std::string figures(double value, int digits) {
  constexpr double kLeast = 1e-4;  // beneath, zeros would have to be counted
  if (std::isnan(value)) {
    return kDash;
  }
  if (value == 0) {
    return "0";
  }
  if (std::isinf(value) || std::abs(value) < kLeast) {
    return printed("%.*g", digits, value);
  }
  const int before = static_cast<int>(std::floor(std::log10(std::abs(value)))) + 1;
  return decimals(value, std::max(0, digits - before));
}

std::string whole(std::int64_t value) { return apart(std::to_string(value)); }

std::string tokens_text(std::int64_t tokens) {
  constexpr std::int64_t kK = 1024;
  if (tokens >= kK * kK && tokens % (kK * kK) == 0) {
    return whole(tokens / kK / kK) + "M";
  }
  return tokens >= kK && tokens % kK == 0 ? whole(tokens / kK) + "K" : whole(tokens);
}

std::string percent(double part) {
  if (std::isnan(part)) {
    return kDash;
  }
  constexpr double kCoarse = 0.995;  // from 100 % on, tenths say nothing
  return decimals(100 * part, std::abs(part) < kCoarse ? 1 : 0) + " %";
}

std::string signed_percent(double part) {
  if (std::isnan(part)) {
    return kDash;
  }
  return (part < 0 ? kMinus : "+") + percent(std::abs(part));
}

}  // namespace paradyse
