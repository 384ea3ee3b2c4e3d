#include "src/run/comm/rendezvous/printable.h"

#include <fmt/format.h>

#include "src/plan/base/printable.h"

namespace paradyse::rendezvous {

std::string printable(std::string_view text, std::size_t most) {
  std::string shown;
  for (const char letter : paradyse::printable(text.substr(0, most))) {
    shown += letter;
    if (letter == '\n') {
      shown += "  ";
    }
  }
  return text.size() <= most ? shown
                             : shown + fmt::format(" ... ({} more bytes)", text.size() - most);
}

}  // namespace paradyse::rendezvous
