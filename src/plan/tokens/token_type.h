// The types that token ids have in files, by Megatron-core's codes (indexed_dataset.py, DType).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace paradyse {

enum class TokenType : std::uint8_t {
  uint8 = 1,
  int8 = 2,
  int16 = 3,
  int32 = 4,
  int64 = 5,
  float64 = 6,
  float32 = 7,
  uint16 = 8,
  uint32 = 255,  // llm.c's; Megatron-core has none
};

// Whether it is one of whole numbers.
constexpr bool holds_ids(TokenType type) {
  return type != TokenType::float64 && type != TokenType::float32;
}

// Bytes of a number.
std::size_t width_of(TokenType type);

// A number of a file, wherever it stands.
template <typename Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// Numbers of `bytes`, which has as many, as ids.  Gives the place of the first that is negative or
// not below `vocab` (at most 2^31), and the number; what stands behind it is not written.
struct NoId {
  std::ptrdiff_t place = -1;  // -1: all are ids
  std::int64_t number = 0;
};
NoId ids_from(
    std::string_view bytes, TokenType type, std::int64_t vocab, std::span<std::int32_t> ids);

}  // namespace paradyse
