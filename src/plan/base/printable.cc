#include "src/plan/base/printable.h"

#include <cstddef>

namespace paradyse {

std::string printable(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown;
  shown.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool follows = i + 1 < text.size();
    // U+0080 to U+009F: what ESC and a letter stand for, in UTF-8
    const bool pair = byte == 0xc2 && follows && static_cast<unsigned char>(text[i + 1]) >= 0x80 &&
                      static_cast<unsigned char>(text[i + 1]) < 0xa0;
    const bool control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
    if (!control && !pair) {
      shown += text[i];
      continue;
    }
    const auto code = pair ? static_cast<unsigned char>(text[++i]) : byte;
    shown += "\\x";
    shown += kDigits[code >> 4U];
    shown += kDigits[code & 15U];
  }
  return shown;
}

}  // namespace paradyse
