// Reads the JSON that data has, several times as fast as nlohmann's parser, and tells a listener of
// that parser (nlohmann::json_sax) what it would.  What it is not sure of it leaves to the parser.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

namespace paradyse {

template <typename Listener>
class PlainJson {
 public:
  PlainJson(std::string_view text, Listener& listener) : text_(text), listener_(listener) {}

  // Whether the text is JSON for sure; false: the parser is to say, to a listener that was told
  // nothing.  This one has to answer true to all but parse_error().
  bool read() {
    blanks();
    if (!value(kDeepest)) {
      return false;
    }
    blanks();
    return at_ == text_.size();
  }

 private:
  static constexpr int kDeepest = 32;
  static constexpr std::size_t kDigits = 18;  // of a number that has 64 bits for sure
  static constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_between(unsigned char c, unsigned char low, unsigned char high) {
    return c >= low && c <= high;
  }
  [[nodiscard]] char here() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  [[nodiscard]] unsigned char byte(std::size_t ahead) const {
    return at_ + ahead < text_.size() ? static_cast<unsigned char>(text_[at_ + ahead]) : 0;
  }
  void blanks() {
    while (here() == ' ' || here() == '\n' || here() == '\t' || here() == '\r') {
      ++at_;
    }
  }
  bool take(char c) {
    const bool found = here() == c && at_ < text_.size();
    at_ += found ? 1 : 0;
    return found;
  }
  bool take(std::string_view word) {
    const bool found = text_.substr(at_, word.size()) == word;
    at_ += found ? word.size() : 0;
    return found;
  }

  bool value(int depth) {
    switch (here()) {
      case '{':
        return depth > 0 && object(depth);
      case '[':
        return depth > 0 && list(depth);
      case '"':
        if (!string()) {
          return false;
        }
        listener_.string(found_);
        return true;
      case 't':
        return take("true") && listener_.boolean(true);
      case 'f':
        return take("false") && listener_.boolean(false);
      case 'n':
        return take("null") && listener_.null();
      default:
        return number();
    }
  }

  bool object(int depth) {
    ++at_;
    listener_.start_object(kUnknown);
    blanks();
    if (take('}')) {
      return listener_.end_object();
    }
    do {
      blanks();
      if (here() != '"' || !string()) {
        return false;
      }
      listener_.key(found_);
      blanks();
      if (!take(':')) {
        return false;
      }
      blanks();
      if (!value(depth - 1)) {
        return false;
      }
      blanks();
    } while (take(','));
    return take('}') && listener_.end_object();
  }

  bool list(int depth) {
    ++at_;
    listener_.start_array(kUnknown);
    blanks();
    if (take(']')) {
      return listener_.end_array();
    }
    do {
      blanks();
      if (!value(depth - 1)) {
        return false;
      }
      blanks();
    } while (take(','));
    return take(']') && listener_.end_array();
  }

  bool number() {
    const std::size_t begin = at_;
    const bool negative = take('-');
    const std::size_t first = at_;
    std::int64_t found = 0;
    for (; is_digit(here()) && at_ - first < kDigits; ++at_) {
      found = 10 * found + (here() - '0');
    }
    const std::size_t digits = at_ - first;
    if (digits == 0 || is_digit(here()) || (text_[first] == '0' && digits > 1)) {
      return false;
    }
    if (here() == '.' || here() == 'e' || here() == 'E') {
      return fraction(begin);
    }
    if (!negative) {
      return listener_.number_unsigned(static_cast<std::uint64_t>(found));
    }
    return found > 0 && listener_.number_integer(-found);  // -0 is the parser's
  }

  // Of a number that begins there, whose whole part was read.
  bool fraction(std::size_t begin) {
    const auto skip_digits = [this] {
      const std::size_t first = at_;
      while (is_digit(here())) {
        ++at_;
      }
      return at_ > first;
    };
    if (take('.') && !skip_digits()) {
      return false;
    }
    if (take('e') || take('E')) {
      if (!take('+')) {
        take('-');
      }
      if (!skip_digits()) {
        return false;
      }
    }
    const std::string digits(text_.substr(begin, at_ - begin));
    double found = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), found);
    return error == std::errc() && listener_.number_float(found, digits);
  }

  // To found_; checked as UTF-8, as the parser does.
  bool string() {
    ++at_;
    found_.clear();
    std::size_t run = at_;  // begins what is taken over as it is
    while (at_ < text_.size()) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '"' || c == '\\') {
        found_.append(text_, run, at_ - run);
        ++at_;
        if (c == '"') {
          return true;
        }
        if (!escape()) {
          return false;
        }
        run = at_;
      } else if (c < 0x20) {
        return false;
      } else if (c < 0x80) {
        ++at_;
      } else if (const std::size_t size = letter(c); size > 0) {
        at_ += size;
      } else {
        return false;
      }
    }
    return false;
  }

  // Bytes of the letter of several that begins with c, here; 0: none does.
  [[nodiscard]] std::size_t letter(unsigned char c) const {
    const auto follows = [this](std::size_t ahead) { return is_between(byte(ahead), 0x80, 0xbf); };
    if (is_between(c, 0xc2, 0xdf)) {
      return follows(1) ? 2 : 0;
    }
    if (is_between(c, 0xe0, 0xef)) {
      const unsigned char low = c == 0xe0 ? 0xa0 : 0x80;
      const unsigned char high = c == 0xed ? 0x9f : 0xbf;
      return is_between(byte(1), low, high) && follows(2) ? 3 : 0;
    }
    if (is_between(c, 0xf0, 0xf4)) {
      const unsigned char low = c == 0xf0 ? 0x90 : 0x80;
      const unsigned char high = c == 0xf4 ? 0x8f : 0xbf;
      return is_between(byte(1), low, high) && follows(2) && follows(3) ? 4 : 0;
    }
    return 0;
  }

  // What stands behind a backslash.  Pairs of surrogates are the parser's.
  bool escape() {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (const std::size_t named = kNames.find(here());
        named != std::string_view::npos && at_ < text_.size()) {
      found_ += kMeanings[named];
      ++at_;
      return true;
    }
    unsigned code = 0;
    const std::string_view digits = text_.substr(at_, 5);
    if (digits.size() < 5 || digits[0] != 'u' ||
        std::from_chars(digits.data() + 1, digits.data() + 5, code, 16).ptr != digits.data() + 5 ||
        (code >= 0xd800 && code <= 0xdfff)) {
      return false;
    }
    at_ += 5;
    if (code < 0x80) {
      found_ += static_cast<char>(code);
    } else if (code < 0x800) {
      found_ += static_cast<char>(0xc0U | (code >> 6U));
      found_ += static_cast<char>(0x80U | (code & 0x3fU));
    } else {
      found_ += static_cast<char>(0xe0U | (code >> 12U));
      found_ += static_cast<char>(0x80U | ((code >> 6U) & 0x3fU));
      found_ += static_cast<char>(0x80U | (code & 0x3fU));
    }
    return true;
  }

  std::string_view text_;
  Listener& listener_;
  std::size_t at_ = 0;
  std::string found_;  // the last key or text
};

}  // namespace paradyse
