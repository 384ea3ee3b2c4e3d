// libFuzzer over the messages of the rendezvous (scripts/fuzz.sh rendezvous):
// tests/run/rendezvous_input.h says what an input is, and what must not be.
#include <cstdint>

#include "tests/run/rendezvous_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const bool is_input =
      paradyse::rendezvous::test::play({reinterpret_cast<const char*>(data), size});
  return is_input ? 0 : -1;  // others are not kept
}
