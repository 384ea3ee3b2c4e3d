// Numbers and texts as bytes of a message, and back, with every length checked.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace paradyse::rendezvous {

// What arrived is not what a process of the run would send.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Little-endian, in sizeof(Number) bytes.
template <typename Number>
void put_number(std::string& bytes, Number number) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes.push_back(static_cast<char>((static_cast<std::uint64_t>(number) >> (8 * i)) & 0xffU));
  }
}

// Its length in four bytes, and itself.
inline void put_text(std::string& bytes, std::string_view text) {
  put_number(bytes, static_cast<std::uint32_t>(text.size()));
  bytes.append(text);
}

// Takes from the front; throws Malformed where bytes are missing, and finish() where some are left.
class BytesReader {
 public:
  explicit BytesReader(std::string_view bytes) : bytes_(bytes) {}

  std::string_view take(std::size_t count) {
    if (bytes_.size() < count) {
      throw Malformed("a message ends in the middle of a field");
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <typename Number>
  Number number() {
    std::uint64_t value = 0;
    int shift = 0;
    for (const char c : take(sizeof(Number))) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(c)) << shift;
      shift += 8;
    }
    return static_cast<Number>(value);
  }
  std::string text() { return std::string(take(number<std::uint32_t>())); }
  void finish() const {
    if (!bytes_.empty()) {
      throw Malformed("a message continues after its last field");
    }
  }

 private:
  std::string_view bytes_;
};

}  // namespace paradyse::rendezvous
