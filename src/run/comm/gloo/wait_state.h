// What a rank says of itself in the store, for the others to read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace paradyse::gloo {

// What a rank waits in.
struct Wait {
  int rank = 0;       // of the world: whom it waits for
  std::string where;  // "operation 57 of ranks 0, 1": compared between ranks that wait there
  std::string what;   // "exchange of layer 1 attention tokens, ..."
};

// `beat`: another each time, so that others see that it lives.
std::string state_text(std::int64_t beat, const std::optional<Wait>& wait);

// What the text of rank `of`, one of `size`, says that it waits in; none where it waits in nothing.
// Throws std::runtime_error for a text that no rank writes: `rank` is one of the world afterwards.
std::optional<Wait> wait_in(const std::string& text, int of, int size);

}  // namespace paradyse::gloo
