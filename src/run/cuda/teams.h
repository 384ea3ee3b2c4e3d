// Rows shared out to threads.  A *team* is some of a block's threads, a power of two of them, as
// many as a row has work for; it has a row at a time.  A row's columns go in *packs* of 16 bytes:
// thread `lane` of a team of n has packs lane, lane + n, lane + 2n, ...
#pragma once

#include "src/run/cuda/block.h"

namespace paradyse::PARADYSE_KERNELS {

template <int kThreads>
struct Teams {
  int shift = 0;  // 2^shift threads each
  int width = 0;  // columns

  // `pack`: columns of a pack.
  Teams(std::int64_t columns, int pack) : width(static_cast<int>(columns)) {
    while ((1 << shift) < kThreads && (std::int64_t{pack} << shift) < columns) {
      ++shift;
    }
  }
  // In a block.
  PARADYSE_BOTH int count() const { return kThreads >> shift; }
  PARADYSE_DEVICE int lane(int t) const { return t & ((1 << shift) - 1); }
  // Of thread t's team among those of all blocks.
  PARADYSE_DEVICE std::int64_t number(std::int64_t block, int t) const {
    return block * count() + (t >> shift);
  }

  // body(first column, columns) for the packs of thread t, where its team has a row.
  template <bool kAligned, int kColumns, typename Body>
  PARADYSE_DEVICE void columns(bool has_row, int t, Body body) const {
    for (int c = has_row ? lane(t) * kColumns : width; c < width; c += kColumns << shift) {
      body(c, kAligned ? kColumns : least(kColumns, width - c));
    }
  }
};

template <typename S, int kCount>
struct Values {
  S at[kCount];
};

struct Plus {
  template <typename S>
  PARADYSE_DEVICE S operator()(S a, S b) const {
    return a + b;
  }
};

// kCount sums over the threads of each team, in two steps: of every kGroups-th thread, then of
// those.
template <typename S, int kCount, int kThreads>
struct TeamSums {
  static constexpr int kGroups = kThreads > 256 ? 32 : 16;
  S own[kCount][kThreads];
  S some[kCount][kThreads];

  // Afterwards total(...) may be asked for, until the next `add`.
  template <typename Op>
  PARADYSE_DEVICE void add(
      const Block<kThreads>& block,
      const Teams<kThreads>& teams,
      Own<Values<S, kCount>, kThreads>& values,
      Op op) {
    block.each([&](int t) {
      for (int n = 0; n < kCount; ++n) {
        own[n][t] = values[t].at[n];
      }
    });
    block.each([&](int t) {
      const int size = 1 << teams.shift;
      const int groups = least(kGroups, size);
      const int lane = teams.lane(t);
      for (int n = 0; lane < groups && n < kCount; ++n) {
        S sum = own[n][t];
        for (int i = groups; i < size; i += groups) {
          sum = op(sum, own[n][t + i]);
        }
        some[n][t] = sum;
      }
    });
  }
  template <typename Op>
  PARADYSE_DEVICE S total(const Teams<kThreads>& teams, int t, int n, Op op) const {
    const int first = t - teams.lane(t);
    const int groups = least(kGroups, 1 << teams.shift);
    S sum = some[n][first];
    for (int i = 1; i < groups; ++i) {
      sum = op(sum, some[n][first + i]);
    }
    return sum;
  }
};

}  // namespace paradyse::PARADYSE_KERNELS
