// Elements as numbers and back, some at once, and the way from an element type's name to its type.
#pragma once

#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define PARADYSE_DEVICE __device__ __forceinline__
#define PARADYSE_BOTH __host__ __device__ __forceinline__
#else
#include <bit>
#define PARADYSE_DEVICE inline
#define PARADYSE_BOTH inline
#endif

#include "src/run/cuda/launch.h"

namespace paradyse::PARADYSE_KERNELS {

struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

// The type in which sums over elements are kept.
template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
PARADYSE_DEVICE Sum<T> wide(T element) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return __bfloat162float(__ushort_as_bfloat16(element.bits));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return __half2float(__ushort_as_half(element.bits));
#else
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return std::bit_cast<float>(std::uint32_t{element.bits} << 16);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return static_cast<float>(std::bit_cast<_Float16>(element.bits));
#endif
  } else {
    return element;
  }
}

// To the nearest, of two the even one.
template <typename T>
PARADYSE_DEVICE T rounded(Sum<T> number) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, Bfloat16>) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(number))};
  } else if constexpr (std::is_same_v<T, Float16>) {
    return {__half_as_ushort(__float2half_rn(number))};
#else
  if constexpr (std::is_same_v<T, Bfloat16>) {
    const auto bits = std::bit_cast<std::uint32_t>(number);
    const std::uint32_t up = bits + 0x7FFF + ((bits >> 16) & 1);
    return {static_cast<std::uint16_t>(number != number ? 0x7FC0 : up >> 16)};
  } else if constexpr (std::is_same_v<T, Float16>) {
    return {std::bit_cast<std::uint16_t>(static_cast<_Float16>(number))};
#endif
  } else {
    return number;
  }
}

// So many elements are 16 bytes.
template <typename T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Elements {
  T at[kCount];
};

PARADYSE_DEVICE int least(std::int64_t a, std::int64_t b) {
  return static_cast<int>(a < b ? a : b);
}

// The first `count` of kCount numbers from elements; the others become 0.  kAligned: a whole lot of
// elements stands where Elements may.
template <bool kAligned, typename T, int kCount>
PARADYSE_DEVICE void load(const T* from, int count, Sum<T> (&to)[kCount]) {
  if (kAligned && count == kCount) {
    const auto all = *reinterpret_cast<const Elements<T, kCount>*>(from);
    for (int e = 0; e < kCount; ++e) {
      to[e] = wide(all.at[e]);
    }
  } else {
    for (int e = 0; e < kCount; ++e) {
      to[e] = e < count ? wide(from[e]) : Sum<T>{0};
    }
  }
}
// Back, rounded; no others.
template <bool kAligned, typename T, int kCount>
PARADYSE_DEVICE void store(T* to, int count, const Sum<T> (&from)[kCount]) {
  if (kAligned && count == kCount) {
    Elements<T, kCount> all;
    for (int e = 0; e < kCount; ++e) {
      all.at[e] = rounded<T>(from[e]);
    }
    *reinterpret_cast<Elements<T, kCount>*>(to) = all;
  } else {
    for (int e = 0; e < kCount; ++e) {
      if (e < count) {
        to[e] = rounded<T>(from[e]);
      }
    }
  }
}

// Whether rows may be read and written 16 bytes at a time; those of nothing may.
template <typename T>
bool aligned(ConstRows rows) {
  return reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.stride % kPack<T> == 0;
}

template <typename T>
struct Tag {
  using type = T;
};
template <typename Body>
void with_type(Type type, Body body) {
  switch (type) {
    case Type::float64:
      return body(Tag<double>());
    case Type::float32:
      return body(Tag<float>());
    case Type::bfloat16:
      return body(Tag<Bfloat16>());
    case Type::float16:
      return body(Tag<Float16>());
  }
}
// body(std::true_type) or body(std::false_type).
template <typename Body>
void with_bool(bool value, Body body) {
  if (value) {
    body(std::true_type());
  } else {
    body(std::false_type());
  }
}

}  // namespace paradyse::PARADYSE_KERNELS
