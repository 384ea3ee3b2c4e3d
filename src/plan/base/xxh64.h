// XXH64 (https://xxhash.com; seed 0): tells a file from a damaged one at the speed of memory, where
// SHA-256 would take longer than the writing.  Against accidents, not against malice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace paradyse {

class Xxh64 {
 public:
  Xxh64();
  ~Xxh64();

  void add(std::string_view bytes);
  // Of all bytes so far; what `xxhsum -H64` prints of a file that holds them.
  [[nodiscard]] std::uint64_t value() const;
  [[nodiscard]] std::string hex() const;  // 16 digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paradyse
