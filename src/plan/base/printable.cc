#include "src/plan/base/printable.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include <fmt/format.h>

namespace paradyse {
namespace {

struct Letter {
  std::size_t bytes = 1;
  bool shown = false;
};

// How the code points that take so many bytes begin, and the least of them.
struct Lead {
  unsigned mask;
  unsigned mark;
  std::uint32_t least;
};
constexpr std::array<Lead, 4> kLeads = {
    {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}}};

// Marks that turn the direction of what follows, and separators of lines.
bool is_hidden(std::uint32_t point) {
  const bool blank = point == '\n' || point == '\t';
  return (point < 0x20 && !blank) || (point >= 0x7f && point < 0xa0) || point == 0x2028 ||
         point == 0x2029 || (point >= 0x200b && point <= 0x200f) ||
         (point >= 0x202a && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069) ||
         point == 0xfeff || (point >= 0xd800 && point < 0xe000) || point > 0x10ffff;
}

Letter letter_at(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  for (std::size_t more = 0; more < kLeads.size(); ++more) {
    const Lead& lead = kLeads[more];
    if ((first & lead.mask) != lead.mark) {
      continue;
    }
    if (text.size() <= more) {
      return {};
    }
    std::uint32_t point = first & ~lead.mask;
    for (std::size_t i = 1; i <= more; ++i) {
      const auto next = static_cast<unsigned char>(text[i]);
      if ((next & 0xc0U) != 0x80U) {
        return {};
      }
      point = (point << 6U) | (next & 0x3fU);
    }
    return point < lead.least ? Letter{} : Letter{.bytes = more + 1, .shown = !is_hidden(point)};
  }
  return {};
}

}  // namespace

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const Letter letter = letter_at(text);
    for (const char byte : text.substr(0, letter.bytes)) {
      if (letter.shown) {
        shown += byte;
      } else {
        fmt::format_to(
            std::back_inserter(shown),
            "\\x{:02x}",
            static_cast<unsigned>(static_cast<unsigned char>(byte)));
      }
    }
    text.remove_prefix(letter.bytes);
  }
  return shown;
}

}  // namespace paradyse
