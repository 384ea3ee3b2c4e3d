// What helps a compiler to make vectors of loops over elements of any type.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

// Compiled for the wide vectors of newer machines as well; the fitting one is chosen at load.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__)  // which is not ready yet when they are chosen
#define PARADYSE_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PARADYSE_CLONES
#endif

namespace paradyse::kernels {

// What an element stands for, in which sums over it are kept.
template <typename T>
using Number =
    std::conditional_t<std::is_same_v<T, at::BFloat16> || std::is_same_v<T, at::Half>, float, T>;

// Elements as numbers and back.  By their bits: compilers make vectors of integers, not of classes;
// and where they may rearrange sums and products, a conversion by those loses what overflows.
template <typename T>
inline __attribute__((always_inline)) Number<T> wide(const T& element) {
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    return std::bit_cast<float>(std::uint32_t{element.x} << 16);
  } else if constexpr (std::is_same_v<T, at::Half>) {
    const std::uint32_t magnitude = element.x & 0x7FFFU;
    const std::uint32_t sign = (element.x & 0x8000U) << 16;
    const std::uint32_t rebias = magnitude >= 0x7C00 ? 0x70000000 : 0x38000000;  // infinite, NaN
    const std::uint32_t normal = (magnitude << 13) + rebias;
    const float multiple = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F;
    const auto small = std::bit_cast<std::uint32_t>(multiple);
    const std::uint32_t is_small = magnitude < 0x400 ? ~0U : 0U;
    const std::uint32_t bits = (small & is_small) | (normal & ~is_small);
    return std::bit_cast<float>(bits | sign);
  } else {
    return element;
  }
}
// To the nearest, of two the even one.
template <typename T>
inline __attribute__((always_inline)) void put(T& element, Number<T> number) {
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    const auto bits = std::bit_cast<std::uint32_t>(number);
    const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    element.x = static_cast<std::uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
  } else if constexpr (std::is_same_v<T, at::Half>) {
    const auto bits = std::bit_cast<std::uint32_t>(number);
    const std::uint32_t magnitude = bits & 0x7FFFFFFF;
    const std::uint32_t rebiased = magnitude - 0x38000000;
    std::uint32_t rounded = (rebiased + 0xFFF + ((rebiased >> 13) & 1)) >> 13;
    // Below 2^-14: multiples of 2^-24.
    const std::uint32_t digits = (magnitude & 0x7FFFFF) | 0x800000;
    const auto exponent = static_cast<std::int32_t>(magnitude >> 23);
    const std::int32_t at_most = exponent < 101 ? 25 : 126 - exponent;
    const std::int32_t shift = at_most < 14 ? 14 : at_most;
    const std::uint32_t half = std::uint32_t{1} << (shift - 1);
    const std::uint32_t small = (digits + half - 1 + ((digits >> shift) & 1)) >> shift;
    rounded = magnitude < 0x38800000 ? small : rounded;
    rounded = magnitude >= 0x477FF000 ? 0x7C00 : rounded;  // 65,520 and above
    rounded = magnitude > 0x7F800000 ? 0x7E00 : rounded;
    element.x = static_cast<std::uint16_t>(rounded | ((bits >> 16) & 0x8000));
  } else {
    element = number;
  }
}

}  // namespace paradyse::kernels
