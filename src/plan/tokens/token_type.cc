#include "src/plan/tokens/token_type.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace paradyse {
namespace {

template <typename Number>
NoId converted(std::string_view bytes, std::int64_t vocab, std::span<std::int32_t> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): a byte is a number here
    const auto number = static_cast<std::int64_t>(number_at<Number>(bytes, i * sizeof(Number)));
    if (number < 0 || number >= vocab) {
      return {.place = static_cast<std::ptrdiff_t>(i), .number = number};
    }
    ids[i] = static_cast<std::int32_t>(number);
  }
  return {};
}

}  // namespace

std::size_t width_of(TokenType type) {
  switch (type) {
    case TokenType::uint8:
    case TokenType::int8:
      return 1;
    case TokenType::int16:
    case TokenType::uint16:
      return 2;
    case TokenType::int32:
    case TokenType::uint32:
    case TokenType::float32:
      return 4;
    case TokenType::int64:
    case TokenType::float64:
      return 8;
  }
  throw std::logic_error("width_of: TokenType with an unknown value");
}

NoId ids_from(
    std::string_view bytes, TokenType type, std::int64_t vocab, std::span<std::int32_t> ids) {
  if (bytes.size() != ids.size() * width_of(type)) {
    throw std::logic_error("ids_from: bytes of another number of tokens");
  }
  constexpr std::int64_t kIds = std::int64_t{1} << 31U;
  vocab = std::min(vocab, kIds);
  switch (type) {
    case TokenType::uint8:
      return converted<std::uint8_t>(bytes, vocab, ids);
    case TokenType::int8:
      return converted<std::int8_t>(bytes, vocab, ids);
    case TokenType::int16:
      return converted<std::int16_t>(bytes, vocab, ids);
    case TokenType::uint16:
      return converted<std::uint16_t>(bytes, vocab, ids);
    case TokenType::int32:
      return converted<std::int32_t>(bytes, vocab, ids);
    case TokenType::uint32:
      return converted<std::uint32_t>(bytes, vocab, ids);
    case TokenType::int64:
      return converted<std::int64_t>(bytes, vocab, ids);
    case TokenType::float32:
    case TokenType::float64:
      break;
  }
  throw std::logic_error("ids_from: a type without ids");
}

}  // namespace paradyse
