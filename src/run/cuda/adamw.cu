// AdamW with the clip factor before and the rounding after it (launch.h): each block has kChunk
// elements of one tensor of a table, which travels as the kernel's argument.
#include <algorithm>
#include <cmath>

#include "src/run/cuda/block.h"

namespace paradyse::PARADYSE_KERNELS {

constexpr int kTensors = 64;  // of a launch: 3.9 KB of the 4 KB of arguments that all devices take
constexpr std::int64_t kChunk = 4096;

// N: of the narrow weight; S: of all else.
template <typename N, bool kAligned>
struct AdamWBody {
  using S = Sum<N>;
  static constexpr int kThreads = 256;
  static constexpr int kColumns = kPack<S>;
  using Shared = Nothing;

  AdamWTensor tensors[kTensors] = {};
  std::int32_t blocks_end[kTensors] = {};  // one past the last block of each
  AdamW options;
  double step_size;   // learning rate / (1 - beta1^step)
  double correction;  // sqrt(1 - beta2^step)

  PARADYSE_DEVICE void run(const Block<kThreads>& block, Shared&, void*) const {
    block.each([&](int t) {
      const double factor = *options.factor;
      if (!(factor > 0 && factor < HUGE_VAL)) {
        return;
      }
      int i = 0;
      for (; block.index >= blocks_end[i]; ++i) {
      }
      const AdamWTensor& tensor = tensors[i];
      const std::int64_t first = (block.index - (i == 0 ? 0 : blocks_end[i - 1])) * kChunk;
      const int size = least(kChunk, tensor.size - first);
      const auto at = [&](void* data) { return static_cast<S*>(data) + first; };
      const S rate = static_cast<S>(options.learning_rate);
      const S share1 = static_cast<S>(1 - options.beta1);  // which a float32 beta would be far from
      const S share2 = static_cast<S>(1 - options.beta2);
      for (int c = t * kColumns; c < size; c += kThreads * kColumns) {
        const int left = least(kColumns, size - c);
        S w[kColumns];
        S g[kColumns];
        S m[kColumns];
        S v[kColumns];
        load<kAligned>(at(tensor.master) + c, left, w);
        load<kAligned>(at(tensor.gradient) + c, left, g);
        load<kAligned>(at(tensor.mean) + c, left, m);
        load<kAligned>(at(tensor.variance) + c, left, v);
        for (int e = 0; e < kColumns; ++e) {
          g[e] *= static_cast<S>(factor);
          w[e] -= rate * static_cast<S>(tensor.weight_decay) * w[e];
          m[e] += share1 * (g[e] - m[e]);
          v[e] = static_cast<S>(options.beta2) * v[e] + share2 * g[e] * g[e];
          const S root = std::sqrt(v[e]) / static_cast<S>(correction);
          w[e] -= static_cast<S>(step_size) * m[e] / (root + static_cast<S>(options.eps));
        }
        store<kAligned>(at(tensor.master) + c, left, w);
        store<kAligned>(at(tensor.mean) + c, left, m);
        store<kAligned>(at(tensor.variance) + c, left, v);
        if (tensor.narrow != nullptr) {
          store<kAligned>(static_cast<N*>(tensor.narrow) + first + c, left, w);
        }
      }
    });
  }
};

static bool whole(const AdamWTensor& tensor) {
  return aligned<char>({tensor.master}) && aligned<char>({tensor.gradient}) &&
         aligned<char>({tensor.mean}) && aligned<char>({tensor.variance}) &&
         aligned<char>({tensor.narrow});
}

void adamw(const AdamW& options, const AdamWTensor* tensors, std::size_t count, Stream stream) {
  const double step_size = options.learning_rate / (1 - std::pow(options.beta1, options.step));
  const double correction = std::sqrt(1 - std::pow(options.beta2, options.step));
  with_type(options.type, [&](auto tag) {
    using N = typename decltype(tag)::type;
    with_bool(std::all_of(tensors, tensors + count, whole), [&](auto all_aligned) {
      for (std::size_t first = 0; first < count; first += kTensors) {
        AdamWBody<N, all_aligned> body{
            .options = options, .step_size = step_size, .correction = correction};
        std::int64_t blocks = 0;
        for (std::size_t i = 0; i < kTensors && first + i < count; ++i) {
          blocks += ceil_div(tensors[first + i].size, kChunk);
          body.tensors[i] = tensors[first + i];
          body.blocks_end[i] = static_cast<std::int32_t>(blocks);
        }
        launch(body, blocks, 0, stream);
      }
    });
  });
}

}  // namespace paradyse::PARADYSE_KERNELS
