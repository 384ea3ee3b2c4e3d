#include "src/run/measure/attention_kernels.h"

#include <algorithm>
#include <chrono>

#include <c10/core/InferenceMode.h>

#include "paradyse/run/accountant.h"
#include "src/run/device/device.h"
#include "src/run/measure/measure.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// Of one document, with columns and gradients as attention has them.
class DocumentAttention {
 public:
  DocumentAttention(const aten::FlashHeads& heads, std::int64_t tokens, at::TensorOptions options)
      : heads_(heads),
        tokens_(tokens),
        qkv_(at::randn(
            {tokens, (heads.heads + 2 * heads.key_heads) * heads.head_dim},
            options.dtype(at::kFloat))),
        grad_qkv_(at::empty(qkv_.sizes(), options)),
        o_(at::empty({tokens, heads.heads * heads.head_dim}, options)),
        l_(at::empty({tokens, heads.heads}, options.dtype(at::kFloat))) {
    qkv_ = qkv_.to(options.dtype());
  }

  void run(bool dense) const {
    const AttentionBlock block{.queries = {0, tokens_}, .keys = {0, tokens_}};
    const aten::Pack pack = aten::packs({&block, 1}, true, dense ? tokens_ : aten::kNeverDense)[0];
    const ops::AttentionTensors tensors{at(qkv_, 0), at(qkv_, 1), at(qkv_, 2), {o_}, {l_}};
    aten::flash_attend(pack, heads_, tensors, /*merge=*/false);
    aten::flash_attend_adjoint(
        pack,
        heads_,
        tensors,
        {{o_}, at(grad_qkv_, 0), at(grad_qkv_, 1), at(grad_qkv_, 2)},
        /*fresh=*/true);
  }

 private:
  // 0: queries, 1: keys, 2: values.
  [[nodiscard]] ops::Columns at(const at::Tensor& matrix, int which) const {
    const std::int64_t head = which == 0 ? 0 : heads_.heads + (which - 1) * heads_.key_heads;
    return {matrix, head * heads_.head_dim};
  }

  aten::FlashHeads heads_;
  std::int64_t tokens_;
  at::Tensor qkv_;
  at::Tensor grad_qkv_;
  at::Tensor o_;
  at::Tensor l_;
};

}  // namespace

std::vector<KernelProbe> measure_attention_kernels(
    const aten::FlashHeads& heads,
    at::ScalarType type,
    c10::Device device,
    std::span<const std::int64_t> lengths) {
  const c10::InferenceMode no_autograd;
  const DeviceScope computing(device);
  const auto options = at::TensorOptions().device(device).dtype(type);
  std::vector<KernelProbe> probes;
  if (!aten::dense_takes(at::empty({1}, options), heads.head_dim)) {
    return probes;
  }
  try {
    for (const std::int64_t tokens : lengths) {
      const DocumentAttention document(heads, tokens, options);
      std::vector<KernelProbe> both;
      for (const bool dense : {false, true}) {
        document.run(dense);  // builds cuDNN's graphs, once for each length
        std::vector<double> times;
        for (int i = 0; i < 5; ++i) {
          const auto begin = Clock::now();
          document.run(dense);
          synchronize(device);
          times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
        }
        const auto pairs = static_cast<double>(tokens * (tokens + 1) / 2);
        both.push_back(
            {.kernel = dense ? kDenseKernel : kFlashKernel,
             .shape = {tokens, heads.heads, heads.head_dim},
             .flops = 14 * pairs * static_cast<double>(heads.heads * heads.head_dim),
             .seconds = {
                 .median = median(times),
                 .least = *std::ranges::min_element(times),
                 .most = *std::ranges::max_element(times)}});
      }
      probes.insert(probes.end(), both.begin(), both.end());
    }
  } catch (const OutOfMemory&) {  // what was measured until then is enough
  } catch (const c10::OutOfMemoryError&) {
  }
  release_cached(device);
  return probes;
}

}  // namespace paradyse
