#include "src/run/reference/naive_memory.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <thread>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include "paradyse/run/accountant.h"

namespace paradyse::reference {
namespace {

thread_local std::int64_t live_bytes = 0;
thread_local std::int64_t most_bytes = 0;

// Memory that is not there: of a block the address is its size.
class MetaBytes final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    live_bytes += static_cast<std::int64_t>(bytes);
    most_bytes = std::max(most_bytes, live_bytes);
    return {nullptr, reinterpret_cast<void*>(bytes), &forget, c10::Device(c10::kMeta)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &forget; }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {}

 private:
  static void forget(void* block) {
    live_bytes -= static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(block));
  }
};

void install() {
  static MetaBytes* const bytes = [] {
    static MetaBytes counted;
    constexpr std::uint8_t kAboveTorchsOwn = 255;
    c10::SetAllocator(c10::kMeta, &counted, kAboveTorchsOwn);
    return &counted;
  }();
  (void)bytes;
}

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor like_it(const at::Tensor& x) { return at::empty_like(x); }

std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_like(
    const at::Tensor& x,
    c10::SymIntArrayRef normed,
    const OptionalTensor& /*weight*/,
    const OptionalTensor& /*bias*/,
    double /*eps*/) {
  std::vector<std::int64_t> rows(x.sizes().begin(), x.sizes().end());
  std::fill(rows.end() - static_cast<std::ptrdiff_t>(normed.size()), rows.end(), 1);
  return {at::empty_like(x), at::empty(rows, x.options()), at::empty(rows, x.options())};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& x,
    c10::SymIntArrayRef /*normed*/,
    const at::Tensor& /*mean*/,
    const at::Tensor& /*rstd*/,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    std::array<bool, 3> wanted) {
  const auto of = [](bool is_wanted, const OptionalTensor& like) {
    return is_wanted && like ? at::empty_like(*like) : at::Tensor();
  };
  return {of(wanted[0], x), of(wanted[1], weight), of(wanted[2], bias)};
}

at::Tensor index_select(const at::Tensor& x, std::int64_t dim, const at::Tensor& index) {
  std::vector<std::int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes[static_cast<std::size_t>(dim)] = index.numel();
  return at::empty(sizes, x.options());
}

at::Tensor embedding_backward(
    const at::Tensor& grad,
    const at::Tensor& /*indices*/,
    c10::SymInt rows,
    c10::SymInt /*padding*/,
    bool /*scale*/) {
  return at::empty({rows.expect_int(), grad.size(-1)}, grad.options());
}

}  // namespace

// What libtorch has no such kernels for: sizes of results, as PyTorch's own (in Python) have them.
TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("relu", &like_it);
  library.impl("native_layer_norm", &norm_like);
  library.impl("native_layer_norm_backward", &layer_norm_backward);
  library.impl("index_select", &index_select);
  library.impl("embedding_dense_backward", &embedding_backward);
}

std::int64_t counted_peak(const std::function<void()>& run) {
  install();
  const std::int64_t before = live_bytes;
  most_bytes = before;
  run();
  return most_bytes - before;
}

Measured measured(const std::function<Answer()>& run) {
  Measured result;
  std::exception_ptr failure;
  std::thread([&] {  // how many threads torch takes is each thread's own affair
    at::set_num_threads(1);
    install_accounting_allocator();
    Accountant memory("naive");
    try {
      const MemoryScope scope(memory, Category::transient, "naive");
      const auto begin = std::chrono::steady_clock::now();
      result.answer = run();
      result.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    } catch (...) {
      failure = std::current_exception();
    }
    result.peak_bytes = memory.peak_bytes();
  })
      .join();
  if (failure) {
    std::rethrow_exception(failure);
  }
  return result;
}

}  // namespace paradyse::reference
