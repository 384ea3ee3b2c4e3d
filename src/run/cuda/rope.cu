// RoPE in place (launch.h): a thread turns a pack of one half of a head with its fellow of the
// other.
//
// QK norm before it stays a launch of its own, norm.cu by head columns: it is an op of its own in a
// program, whose result is kept beside its input for the adjoint, and the adjoint needs parts of
// w's gradient, which turning has no use for.  One kernel for both would save one pass over queries
// and keys forward, in models with QK norm only, and take a second body of its own for each
// direction.
#include "src/run/cuda/block.h"

namespace paradyse::PARADYSE_KERNELS {

template <typename T, bool kAligned>
struct RotateBody {
  using S = Sum<T>;
  static constexpr int kThreads = 256;
  static constexpr int kColumns = kPack<T>;
  using Shared = Nothing;

  Rotation rotation;
  Rows x;
  std::int64_t packs;  // of half a head

  PARADYSE_DEVICE void run(const Block<kThreads>& block, Shared&, void*) const {
    block.each([&](int t) {
      const std::int64_t item = block.index * kThreads + t;
      const std::int64_t heads = item / packs;  // before this one, of all rows
      const std::int64_t row = heads / rotation.heads;
      if (row >= rotation.rows) {
        return;
      }
      const std::int64_t half = rotation.head_dim / 2;
      const std::int64_t i = (item - heads * packs) * kColumns;
      const int count = kAligned ? kColumns : least(kColumns, half - i);
      T* const low = static_cast<T*>(x.data) + row * x.stride +
                     (heads - row * rotation.heads) * rotation.head_dim + i;
      const std::int64_t angle = rotation.positions[row] * half + i;
      S a[kColumns];
      S b[kColumns];
      S cosines[kColumns];
      S sines[kColumns];
      load<kAligned>(low, count, a);
      load<kAligned>(low + half, count, b);
      load<kAligned>(static_cast<const S*>(rotation.cosines) + angle, count, cosines);
      load<kAligned>(static_cast<const S*>(rotation.sines) + angle, count, sines);
      for (int e = 0; e < kColumns; ++e) {
        const S sine = rotation.inverse ? -sines[e] : sines[e];
        const S turned = a[e] * cosines[e] - b[e] * sine;
        b[e] = b[e] * cosines[e] + a[e] * sine;
        a[e] = turned;
      }
      store<kAligned>(low, count, a);
      store<kAligned>(low + half, count, b);
    });
  }
};

void rotate(const Rotation& rotation, Rows x, Stream stream) {
  with_type(rotation.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const std::int64_t half = rotation.head_dim / 2;
    const bool whole = half % kPack<T> == 0 && aligned<T>(x) && aligned<T>({rotation.cosines}) &&
                       aligned<T>({rotation.sines});
    with_bool(whole, [&](auto is_aligned) {
      const RotateBody<T, is_aligned> body{rotation, x, ceil_div(half, kPack<T>)};
      const std::int64_t items = rotation.rows * rotation.heads * body.packs;
      launch(body, ceil_div(items, body.kThreads), 0, stream);
    });
  });
}

}  // namespace paradyse::PARADYSE_KERNELS
