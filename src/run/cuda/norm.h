// What a norm and its adjoint have in common: where a team's run stands, and the statistics, which
// come out the same in both.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "src/run/cuda/teams.h"

namespace paradyse::PARADYSE_KERNELS {

inline constexpr int kNormThreads = 256;
using NormTeams = Teams<kNormThreads>;

// Run `number` of all, those of a row one after the other.
struct Run {
  bool exists;
  std::int64_t row;
  std::int64_t column;

  PARADYSE_DEVICE Run(const Norm& norm, std::int64_t number)
      : exists(number < norm.rows * norm.runs),
        row(norm.runs == 1 ? number : number / norm.runs),
        column(norm.runs == 1 ? 0 : number % norm.runs * norm.width) {}

  template <typename T>
  PARADYSE_DEVICE const T* in(ConstRows rows) const {
    return static_cast<const T*>(rows.data) + row * rows.stride + column;
  }
  template <typename T>
  PARADYSE_DEVICE T* in(Rows rows) const {
    return static_cast<T*>(rows.data) + row * rows.stride + column;
  }
};

template <typename S>
PARADYSE_DEVICE S inverse_root(S squares, const Norm& norm) {
  return S{1} / std::sqrt(squares / static_cast<S>(norm.width) + static_cast<S>(norm.eps));
}

// call(Tag<T>, kAligned, kLayer) with the constants that fit.
template <typename Call>
void with_norm(const Norm& norm, std::initializer_list<ConstRows> rows, Call call) {
  with_type(norm.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    bool all = norm.width % kPack<T> == 0 && aligned<T>({norm.w}) && aligned<T>({norm.b});
    for (const ConstRows& one : rows) {
      all = all && aligned<T>(one);
    }
    with_bool(all, [&](auto is_aligned) {
      with_bool(norm.layer, [&](auto is_layer) { call(tag, is_aligned, is_layer); });
    });
  });
}

}  // namespace paradyse::PARADYSE_KERNELS
