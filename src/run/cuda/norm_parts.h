// The parts of w's and b's gradients that blocks of norm_adjoint.cu leave in the scratch: [blocks]
// [w, b][slots].  A pack's columns have slots a team's size apart, so that neighbouring threads
// find neighbouring numbers.  How many blocks there are does not depend on the device.
#pragma once

#include "src/run/cuda/norm.h"

namespace paradyse::PARADYSE_KERNELS {

inline constexpr std::int64_t kMostBlocks = 528;  // 4 for each of an H100's 132 multiprocessors
inline constexpr std::size_t kRoomBytes =
    40 * 1024;  // shared, beside TeamSums; what is more, in scratch

template <typename S>
struct Parts {
  std::int64_t blocks;
  std::int64_t slots;      // columns, and what is left of a team's last packs
  std::int64_t numbers;    // of a block
  std::size_t room_bytes;  // 0: a block's room is its part in the scratch, and it is one team

  Parts(const Norm& norm, const NormTeams& teams, int pack)
      : blocks(std::min(kMostBlocks, ceil_div(norm.rows * norm.runs, teams.count()))),
        slots(ceil_div(norm.width, pack << teams.shift) * (pack << teams.shift)),
        numbers(norm.layer ? 2 * slots : slots),
        room_bytes(static_cast<std::size_t>(teams.count() * numbers) * sizeof(S)) {
    room_bytes = room_bytes > kRoomBytes ? 0 : room_bytes;
  }

  // Zeros for a block's room, [teams][numbers]: each thread clears what it will add to.
  PARADYSE_DEVICE void clear(
      const Block<kNormThreads>& block, const NormTeams& teams, S* room) const {
    block.each([&](int t) {
      S* const mine = room + (t >> teams.shift) * numbers;
      for (std::int64_t i = teams.lane(t); i < numbers; i += 1 << teams.shift) {
        mine[i] = 0;
      }
    });
  }
  // The block's part: the teams' numbers added up.
  PARADYSE_DEVICE void leave(
      const Block<kNormThreads>& block, const NormTeams& teams, const S* room, S* part) const {
    block.each([&](int t) {
      for (std::int64_t i = t; i < numbers; i += kNormThreads) {
        S sum = 0;
        for (int team = 0; team < teams.count(); ++team) {
          sum += room[team * numbers + i];
        }
        part[i] = sum;
      }
    });
  }
};

// body(run, x, w, grad_y, column, columns) for thread t's packs of run `number`.
template <typename T, bool kAligned, typename Body>
PARADYSE_DEVICE void adjoint_packs(
    const Norm& norm,
    const NormAdjoint& adjoint,
    const NormTeams& teams,
    std::int64_t number,
    int t,
    Body body) {
  const Run run(norm, number);
  teams.columns<kAligned, kPack<T>>(run.exists, t, [&](int c, int count) {
    Sum<T> x[kPack<T>];
    Sum<T> w[kPack<T>];
    Sum<T> g[kPack<T>];
    load<kAligned>(run.in<T>(adjoint.x) + c, count, x);
    load<kAligned>(static_cast<const T*>(norm.w) + c, count, w);
    load<kAligned>(run.in<T>(adjoint.grad_y) + c, count, g);
    for (int e = 0; e < kPack<T>; ++e) {
      w[e] += static_cast<Sum<T>>(norm.offset);
    }
    body(run, x, w, g, c, count);
  });
}

// Adds the parts, in the order of blocks, to the gradients of w and b, those that are there.
void add_parts(const Norm& norm, const NormAdjoint& adjoint, Stream stream);

}  // namespace paradyse::PARADYSE_KERNELS
