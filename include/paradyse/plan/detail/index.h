// Counts are signed (std::int64_t, int), and containers are indexed by std::size_t.
#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace paradyse {

// Pre: i is not negative.
template <std::integral Integer>
constexpr std::size_t idx(Integer i) {
  assert(std::cmp_greater_equal(i, 0));
  return static_cast<std::size_t>(i);
}
template <typename Enum>
  requires std::is_enum_v<Enum>
constexpr std::size_t idx(Enum value) {
  return static_cast<std::size_t>(value);
}

}  // namespace paradyse
