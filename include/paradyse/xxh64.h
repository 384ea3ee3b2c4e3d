// XXH64 (Collet, https://xxhash.com; seed 0): tells a file from a damaged one at the speed of
// memory, where SHA-256 would take longer than the writing.  Against accidents, not against malice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace paradyse {

class Xxh64 {
 public:
  void add(std::string_view bytes);
  // Of all bytes so far; what `xxhsum -H64` prints of a file that holds them.
  [[nodiscard]] std::uint64_t value() const;
  [[nodiscard]] std::string hex() const;  // 16 digits

 private:
  static constexpr std::size_t kStripe = 32;  // bytes: one word a lane

  static constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87;
  static constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;

  void add_stripes(const char* bytes, std::size_t count);

  std::array<std::uint64_t, 4> lanes_ = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  std::array<char, kStripe> rest_ = {};  // no whole stripe yet
  std::uint64_t length_ = 0;
};

}  // namespace paradyse
