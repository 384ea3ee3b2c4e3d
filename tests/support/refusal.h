// Why something is refused.
#pragma once

#include <stdexcept>
#include <string>

namespace paradyse::test {

// The message of what `body` throws; "" if it throws nothing.  Other errors than E pass.
template <class E = std::invalid_argument, class Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace paradyse::test
