// The half of softmax_loss.cu that takes a tile of logits into the running statistics of rows.
#pragma once

#include <cmath>
#include <type_traits>

#include "src/run/cuda/teams.h"

namespace paradyse::PARADYSE_KERNELS {

// Lower than any logit but -infinity, whose exponential relative to it is 0.
template <typename S>
inline constexpr S kLowest =
    static_cast<S>(std::is_same_v<S, double> ? -0x1.fffffffffffffp1023 : -0x1.fffffep127);

// The second where one is NaN: then the sum of exponentials will tell.
struct Larger {
  template <typename S>
  PARADYSE_DEVICE S operator()(S a, S b) const {
    return a > b ? a : b;
  }
};

template <typename S>
PARADYSE_DEVICE S logit_at(const LogitsTile& tile, std::int64_t row, std::int64_t column) {
  return static_cast<const S*>(tile.logits.data)[row * tile.logits.stride + column];
}

// body(c, v) for thread t's logits v of columns c, c + 1, ... of a row.
template <bool kAligned, int kColumns, typename S, typename Teams, typename Body>
PARADYSE_DEVICE void logits_of(
    const LogitsTile& tile, const Teams& teams, std::int64_t row, int t, Body body) {
  const S* const from = static_cast<const S*>(tile.logits.data) + row * tile.logits.stride;
  const bool exists = row < tile.rows;
  teams.template columns<true, kColumns>(exists, t, [&](int c, int) {
    S v[kColumns];
    load<kAligned>(from + c, kColumns, v);
    body(c, v);
  });
}

// `sum_here`: of exp(logit - maximum_here) over the tile's columns.
template <typename S>
PARADYSE_DEVICE void take_in(
    const LogitsTile& tile,
    const SoftmaxStatistics& statistics,
    bool first,
    std::int64_t row,
    S maximum_here,
    S sum_here) {
  double maximum = maximum_here;
  double sum = sum_here;
  double label = 0;
  if (!first) {
    const double before = statistics.maximum[row];
    maximum = Larger()(before, maximum);
    sum = statistics.sum[row] * std::exp(before - maximum) + sum * std::exp(maximum_here - maximum);
    label = statistics.label[row];
  }
  const std::int64_t column = tile.labels[row] - tile.first_id;
  if (column >= 0 && column < tile.ids) {
    label = logit_at<S>(tile, row, column);
  }
  statistics.maximum[row] = maximum;
  statistics.sum[row] = sum;
  statistics.label[row] = label;
}

// Takes the rows of a block's teams in, those that have a label.
template <bool kAligned, int kColumns, typename S, int kThreads>
PARADYSE_DEVICE void update_statistics(
    const Block<kThreads>& block,
    TeamSums<S, 1, kThreads>& sums,
    const LogitsTile& tile,
    const SoftmaxStatistics& statistics,
    bool first,
    const Teams<kThreads>& teams) {
  Own<std::int64_t, kThreads> rows;  // one without a label is as none
  Own<S, kThreads> maximum;
  Own<S, kThreads> sum;
  Own<Values<S, 1>, kThreads> own;
  block.each([&](int t) {
    const std::int64_t row = teams.number(block.index, t);
    rows[t] = row < tile.rows && tile.labels[row] >= 0 ? row : tile.rows;
    S most = kLowest<S>;
    S total = 0;
    logits_of<kAligned, kColumns, S>(tile, teams, rows[t], t, [&](int, auto& v) {
      S here = most;
      for (int e = 0; e < kColumns; ++e) {
        here = Larger()(v[e], here);
      }
      if (here > most) {
        total *= std::exp(most - here);
        most = here;
      }
      for (int e = 0; e < kColumns; ++e) {
        total += std::exp(v[e] - most);
      }
    });
    own[t].at[0] = maximum[t] = most;
    sum[t] = total;
  });
  sums.add(block, teams, own, Larger());
  block.each([&](int t) {
    const S most = sums.total(teams, t, 0, Larger());
    own[t].at[0] = sum[t] * std::exp(maximum[t] - most);
    maximum[t] = most;
  });
  sums.add(block, teams, own, Plus());
  block.each([&](int t) {
    const S total = sums.total(teams, t, 0, Plus());
    const std::int64_t row = teams.number(block.index, t);
    if (teams.lane(t) > 0 || row >= tile.rows) {
      return;
    }
    if (rows[t] == row) {
      take_in(tile, statistics, first, row, maximum[t], total);
    }
  });
}

}  // namespace paradyse::PARADYSE_KERNELS
