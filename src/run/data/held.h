// The parts of a tensor that a rank holds, and where they are in the rank's piece.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/ATen.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/layout.h"

namespace paradyse {

template <typename Visit>
void for_each_index(const Piece& held, const Visit& visit) {
  for (const Interval run : held) {
    for (std::int64_t i = run.begin; i < run.end; ++i) {
      visit(i);
    }
  }
}

// Calls `visit(part of whole, part of piece)` for each run of what `held` has of every dim; the
// piece has them without gaps.
template <typename Visit>
void for_each_run(
    const at::Tensor& whole,
    const at::Tensor& piece,
    std::span<const Piece> held,
    const Visit& visit,
    std::int64_t dim = 0) {
  if (dim == std::ssize(held)) {
    visit(whole, piece);
    return;
  }
  std::int64_t at = 0;
  for (const Interval run : held[idx(dim)]) {
    for_each_run(
        whole.narrow(dim, run.begin, run.size()),
        piece.narrow(dim, at, run.size()),
        held,
        visit,
        dim + 1);
    at += run.size();
  }
}

// What is held of `whole`, to `piece`.
inline void copy_held(
    const at::Tensor& whole, const at::Tensor& piece, std::span<const Piece> held) {
  for_each_run(
      whole, piece, held, [](const at::Tensor& from, const at::Tensor& to) { to.copy_(from); });
}

}  // namespace paradyse
