// RMSNorm and LayerNorm of rows (launch.h).  A team has a run of a row and reads it twice, a third
// time for a LayerNorm; but for the first, it comes from the cache.
#include "src/run/cuda/norm.h"

namespace paradyse::PARADYSE_KERNELS {

template <typename T, bool kAligned, bool kLayer>
struct NormBody {
  using S = Sum<T>;
  static constexpr int kThreads = kNormThreads;
  static constexpr int kColumns = kPack<T>;
  using Shared = TeamSums<S, 1, kThreads>;

  Norm norm;
  ConstRows x;
  Rows y;
  NormTeams teams;

  PARADYSE_DEVICE void run(const Block<kThreads>& block, Shared& sums, void*) const {
    Own<Values<S, 1>, kThreads> own;
    Own<S, kThreads> mean;
    block.each([&](int t) {
      const Run run(norm, teams.number(block.index, t));
      S sum = 0;
      teams.template columns<kAligned, kColumns>(run.exists, t, [&](int c, int count) {
        S v[kColumns];
        load<kAligned>(run.in<T>(x) + c, count, v);
        for (int e = 0; e < kColumns; ++e) {
          sum += kLayer ? v[e] : v[e] * v[e];
        }
      });
      own[t].at[0] = sum;
      mean[t] = 0;
    });
    sums.add(block, teams, own, Plus());
    if constexpr (kLayer) {
      block.each([&](int t) {
        const Run run(norm, teams.number(block.index, t));
        mean[t] = sums.total(teams, t, 0, Plus()) / static_cast<S>(norm.width);
        S squares = 0;
        teams.template columns<kAligned, kColumns>(run.exists, t, [&](int c, int count) {
          S v[kColumns];
          load<kAligned>(run.in<T>(x) + c, count, v);
          for (int e = 0; e < count; ++e) {
            squares += (v[e] - mean[t]) * (v[e] - mean[t]);
          }
        });
        own[t].at[0] = squares;
      });
      sums.add(block, teams, own, Plus());
    }
    block.each([&](int t) {
      const Run run(norm, teams.number(block.index, t));
      const S s = inverse_root(sums.total(teams, t, 0, Plus()), norm);
      teams.template columns<kAligned, kColumns>(run.exists, t, [&](int c, int count) {
        S v[kColumns];
        S w[kColumns];
        S b[kColumns] = {};
        load<kAligned>(run.in<T>(x) + c, count, v);
        load<kAligned>(static_cast<const T*>(norm.w) + c, count, w);
        if (kLayer && norm.b != nullptr) {
          load<kAligned>(static_cast<const T*>(norm.b) + c, count, b);
        }
        for (int e = 0; e < kColumns; ++e) {
          v[e] = kLayer ? (v[e] - mean[t]) * s * w[e] + b[e]
                        : v[e] * s * (w[e] + static_cast<S>(norm.offset));
        }
        store<kAligned>(run.in<T>(y) + c, count, v);
      });
    });
  }
};

void norm(const Norm& norm, ConstRows x, Rows y, Stream stream) {
  with_norm(norm, {x, y}, [&](auto tag, auto is_aligned, auto is_layer) {
    using T = typename decltype(tag)::type;
    const NormTeams teams(norm.width, kPack<T>);
    const NormBody<T, is_aligned, is_layer> body{norm, x, y, teams};
    launch(body, ceil_div(norm.rows * norm.runs, teams.count()), 0, stream);
  });
}

}  // namespace paradyse::PARADYSE_KERNELS
