// The adjoint of norm.cu.  A block has every so manieth lot of runs, one for each of its teams, and
// adds up its own part of w's and b's gradients in its *room*: [teams][w, b][slots] (norm_parts.h).
#include "src/run/cuda/norm_parts.h"

namespace paradyse::PARADYSE_KERNELS {

template <typename T, bool kAligned, bool kLayer>
struct NormAdjointBody {
  using S = Sum<T>;
  static constexpr int kThreads = kNormThreads;
  static constexpr int kColumns = kPack<T>;
  using Shared = TeamSums<S, 2, kThreads>;
  static_assert(sizeof(Shared) + kRoomBytes <= std::size_t{48} * 1024);  // without asking for more

  Norm norm;
  NormAdjoint adjoint;
  NormTeams teams;
  Parts<S> parts;

  PARADYSE_DEVICE void run(const Block<kThreads>& block, Shared& sums, void* shared_room) const {
    S* const part = static_cast<S*>(adjoint.scratch) + block.index * parts.numbers;
    S* const room = parts.room_bytes > 0 ? static_cast<S*>(shared_room) : part;
    const S width = static_cast<S>(norm.width);
    const auto packs = [&](std::int64_t lot, int t, auto body) {
      adjoint_packs<T, kAligned>(norm, adjoint, teams, teams.number(lot, t), t, body);
    };
    Own<Values<S, 2>, kThreads> own;
    Own<Values<S, 2>, kThreads> means;  // of a LayerNorm: of x and of w g
    parts.clear(block, teams, room);
    for (std::int64_t lot = block.index; lot * teams.count() < norm.rows * norm.runs;
         lot += block.count) {
      block.each([&](int t) {
        own[t] = means[t] = {};
        packs(lot, t, [&](auto&, auto& x, auto& w, auto& g, int, int) {
          for (int e = 0; e < kColumns; ++e) {
            own[t].at[0] += kLayer ? x[e] : x[e] * x[e];
            own[t].at[1] += kLayer ? w[e] * g[e] : x[e] * w[e] * g[e];
          }
        });
      });
      sums.add(block, teams, own, Plus());
      if constexpr (kLayer) {
        block.each([&](int t) {
          own[t] = {};
          means[t] = {
              sums.total(teams, t, 0, Plus()) / width, sums.total(teams, t, 1, Plus()) / width};
          packs(lot, t, [&](auto&, auto& x, auto& w, auto& g, int, int count) {
            for (int e = 0; e < count; ++e) {
              const S v = x[e] - means[t].at[0];
              own[t].at[0] += v * v;
              own[t].at[1] += v * w[e] * g[e];
            }
          });
        });
        sums.add(block, teams, own, Plus());
      }
      block.each([&](int t) {
        const S s = inverse_root(sums.total(teams, t, 0, Plus()), norm);
        const S c = s * s * sums.total(teams, t, 1, Plus()) / width;
        S* const mine = room + (t >> teams.shift) * parts.numbers;
        packs(lot, t, [&](auto& run, auto& x, auto& w, auto& g, int first, int count) {
          S* const slot = mine + first - teams.lane(t) * (kColumns - 1);
          S to[kColumns] = {};
          if (adjoint.accumulate) {
            load<kAligned>(run.template in<T>(adjoint.grad_x) + first, count, to);
          }
          for (int e = 0; e < kColumns; ++e) {
            const S v = x[e] - means[t].at[0];
            to[e] += s * (w[e] * g[e] - means[t].at[1] - v * c);
            slot[e << teams.shift] += g[e] * v * s;
            if constexpr (kLayer) {
              slot[parts.slots + (e << teams.shift)] += g[e];
            }
          }
          store<kAligned>(run.template in<T>(adjoint.grad_x) + first, count, to);
        });
      });
    }
    if (parts.room_bytes > 0) {
      parts.leave(block, teams, room, part);
    }
  }
};

void norm_adjoint(const Norm& norm, const NormAdjoint& adjoint, Stream stream) {
  with_norm(
      norm,
      {adjoint.x, adjoint.grad_y, adjoint.grad_x},
      [&](auto tag, auto is_aligned, auto is_layer) {
        using T = typename decltype(tag)::type;
        const NormTeams teams(norm.width, kPack<T>);
        const Parts<Sum<T>> parts(norm, teams, kPack<T>);
        const NormAdjointBody<T, is_aligned, is_layer> body{norm, adjoint, teams, parts};
        launch(body, parts.blocks, parts.room_bytes, stream);
      });
  add_parts(norm, adjoint, stream);
}

}  // namespace paradyse::PARADYSE_KERNELS
