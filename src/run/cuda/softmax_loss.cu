// Softmax and loss of rows of logits (launch.h); a team has a row, of a large vocabulary a block.
// The statistics take one pass: a thread keeps the maximum it has seen and the sum of exponentials
// relative to it.  The gradient takes a second one, which after the first finds the row in the
// cache.
#include "src/run/cuda/softmax.h"

namespace paradyse::PARADYSE_KERNELS {

struct Halves {
  bool update = false;
  bool first = false;  // nothing was taken in before
  bool gradient = false;
};

// S: of the logits; G: of the gradient.
template <typename S, typename G, bool kAligned>
struct SoftmaxBody {
  static constexpr int kThreads = 1024;
  static constexpr int kColumns = kAligned ? kPack<G> : 1;
  using Shared = TeamSums<S, 1, kThreads>;

  LogitsTile tile;
  SoftmaxStatistics statistics;
  LogitsGradient gradient;
  Halves halves;
  Teams<kThreads> teams;

  PARADYSE_DEVICE void run(const Block<kThreads>& block, Shared& sums, void*) const {
    if (halves.update) {
      update_statistics<kAligned, kColumns>(block, sums, tile, statistics, halves.first, teams);
    }
    if (!halves.gradient) {
      return;
    }
    block.each([&](int t) {
      const std::int64_t row = teams.number(block.index, t);
      if (row >= tile.rows) {
        return;
      }
      const std::int64_t label = tile.labels[row];
      const S maximum = label < 0 ? S{0} : static_cast<S>(statistics.maximum[row]);
      const S inverse = label < 0 ? S{0} : S{1} / static_cast<S>(statistics.sum[row]);
      const S scale = static_cast<S>(gradient.scale);
      G* const to = static_cast<G*>(gradient.to.data) + row * gradient.to.stride;
      logits_of<kAligned, kColumns, S>(tile, teams, row, t, [&](int c, auto& v) {
        for (int e = 0; e < kColumns; ++e) {
          const S one = tile.first_id + c + e == label ? S{1} : S{0};
          v[e] = label < 0 ? S{0} : (std::exp(v[e] - maximum) * inverse - one) * scale;
        }
        store<kAligned>(to + c, kColumns, v);
      });
    });
  }
};

static void launch_softmax(
    const LogitsTile& tile,
    const SoftmaxStatistics& statistics,
    const LogitsGradient& gradient,
    Halves halves,
    Stream stream) {
  with_type(gradient.type, [&](auto tag) {
    using G = typename decltype(tag)::type;
    using S = Sum<G>;
    const bool whole =
        tile.ids % kPack<G> == 0 && aligned<S>(tile.logits) && aligned<G>(gradient.to);
    with_bool(whole, [&](auto is_aligned) {
      using Body = SoftmaxBody<S, G, is_aligned>;
      const Teams<Body::kThreads> teams(tile.ids, Body::kColumns);
      launch(
          Body{tile, statistics, gradient, halves, teams},
          ceil_div(tile.rows, teams.count()),
          0,
          stream);
    });
  });
}

void softmax_update(
    const LogitsTile& tile, const SoftmaxStatistics& statistics, bool first, Stream stream) {
  launch_softmax(tile, statistics, {.type = tile.type}, {.update = true, .first = first}, stream);
}
void softmax_gradient(
    const LogitsTile& tile,
    const SoftmaxStatistics& statistics,
    const LogitsGradient& gradient,
    Stream stream) {
  launch_softmax(tile, statistics, gradient, {.gradient = true}, stream);
}
void softmax_loss(
    const LogitsTile& tile,
    const SoftmaxStatistics& statistics,
    const LogitsGradient& gradient,
    Stream stream) {
  launch_softmax(
      tile, statistics, gradient, {.update = true, .first = true, .gradient = true}, stream);
}

}  // namespace paradyse::PARADYSE_KERNELS
