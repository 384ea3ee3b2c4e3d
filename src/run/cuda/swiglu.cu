// SwiGLU and its adjoint (launch.h): a thread has a pack of a row's gate and that of its up.
#include <cmath>

#include "src/run/cuda/block.h"

namespace paradyse::PARADYSE_KERNELS {

// 1 / (1 + exp(-x)): of exp(-|x|), which never overflows.
PARADYSE_DEVICE double sigmoid(double x) {
  const double e = std::exp(x < 0 ? x : -x);
  return (x < 0 ? e : 1) / (1 + e);
}
PARADYSE_DEVICE float sigmoid(float x) {
  const float e = std::exp2((x < 0 ? x : -x) * 1.44269504F);
#ifdef __CUDACC__
  return __fdividef(x < 0 ? e : 1.0F, 1 + e);  // exact to 2 units in the last place
#else
  return (x < 0 ? e : 1.0F) / (1 + e);
#endif
}

template <typename T, bool kAligned, bool kAdjoint>
struct SwigluBody {
  using S = Sum<T>;
  static constexpr int kThreads = 256;
  static constexpr int kColumns = kPack<T>;
  using Shared = Nothing;

  Swiglu swiglu;
  ConstRows grad_a;
  Rows to;             // a, or grad_h
  std::int64_t packs;  // of F

  PARADYSE_DEVICE void run(const Block<kThreads>& block, Shared&, void*) const {
    block.each([&](int t) {
      const std::int64_t F = swiglu.F;
      const std::int64_t item = block.index * kThreads + t;
      const std::int64_t row = item / packs;
      if (row >= swiglu.rows) {
        return;
      }
      const std::int64_t c = (item - row * packs) * kColumns;
      const int count = kAligned ? kColumns : least(kColumns, F - c);
      const T* const in = static_cast<const T*>(swiglu.h.data) + row * swiglu.h.stride + c;
      T* const out = static_cast<T*>(to.data) + row * to.stride + c;
      S gate[kColumns];
      S up[kColumns];
      load<kAligned>(in, count, gate);
      load<kAligned>(in + F, count, up);
      if constexpr (kAdjoint) {
        S d[kColumns];
        load<kAligned>(static_cast<const T*>(grad_a.data) + row * grad_a.stride + c, count, d);
        for (int e = 0; e < kColumns; ++e) {
          const S g = gate[e];
          const S s = sigmoid(g);
          gate[e] = d[e] * up[e] * s * (1 + g * (1 - s));
          up[e] = d[e] * g * s;
        }
        store<kAligned>(out + F, count, up);
      } else {
        for (int e = 0; e < kColumns; ++e) {
          gate[e] = gate[e] * sigmoid(gate[e]) * up[e];
        }
      }
      store<kAligned>(out, count, gate);
    });
  }
};

template <bool kAdjoint>
void launch_swiglu(const Swiglu& swiglu, ConstRows grad_a, Rows to, Stream stream) {
  with_type(swiglu.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool whole =
        swiglu.F % kPack<T> == 0 && aligned<T>(swiglu.h) && aligned<T>(grad_a) && aligned<T>(to);
    with_bool(whole, [&](auto is_aligned) {
      const SwigluBody<T, is_aligned, kAdjoint> body{
          swiglu, grad_a, to, ceil_div(swiglu.F, kPack<T>)};
      launch(body, ceil_div(swiglu.rows * body.packs, body.kThreads), 0, stream);
    });
  });
}

void swiglu(const Swiglu& swiglu, Rows a, Stream stream) {
  launch_swiglu<false>(swiglu, {}, a, stream);
}
void swiglu_adjoint(const Swiglu& swiglu, ConstRows grad_a, Rows grad_h, Stream stream) {
  launch_swiglu<true>(swiglu, grad_a, grad_h, stream);
}

}  // namespace paradyse::PARADYSE_KERNELS
