#include "src/run/measure/device_speeds.h"

#include <vector>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "paradyse/run/weights.h"
#include "src/plan/base/median.h"
#include "src/run/device/streams.h"

namespace paradyse {
namespace {

// Of body(), which is done several times; the first do not count.
template <typename Body>
double median_seconds(Body body) {
  constexpr int kCold = 3;
  constexpr int kCounted = 10;
  std::vector<TimedMark> marks;
  for (int i = 0; i < kCold + kCounted; ++i) {
    if (i >= kCold) {
      marks.push_back(TimedMark::here());
    }
    body();
  }
  marks.push_back(TimedMark::here());
  marks.back().wait();
  std::vector<double> seconds;
  for (std::size_t i = 0; i + 1 < marks.size(); ++i) {
    seconds.push_back(seconds_between(marks[i], marks[i + 1]));
  }
  return median(std::move(seconds));
}

}  // namespace

double large_product_flops_per_second(Dtype dtype, c10::Device device, std::int64_t size) {
  const c10::InferenceMode no_autograd;
  const auto options = at::TensorOptions(parameter_types(dtype).weight).device(device);
  const at::Tensor a = at::randn({size, size}, options);
  const at::Tensor b = at::randn({size, size}, options);
  at::Tensor c = at::empty({size, size}, options);
  const auto n = static_cast<double>(size);
  return 2 * n * n * n / median_seconds([&] { at::mm_out(c, a, b); });
}

double copied_bytes_per_second(c10::Device device, std::int64_t bytes) {
  const c10::InferenceMode no_autograd;
  const auto options = at::TensorOptions(at::kByte).device(device);
  const at::Tensor from = at::zeros({bytes}, options);
  const at::Tensor to = at::empty({bytes}, options);
  return 2 * static_cast<double>(bytes) / median_seconds([&] { to.copy_(from); });
}

double kernel_seconds(c10::Device device) {
  constexpr int kKernels = 256;
  const c10::InferenceMode no_autograd;
  at::Tensor small = at::zeros({64}, at::TensorOptions(at::kFloat).device(device));
  return median_seconds([&] {
           for (int i = 0; i < kKernels; ++i) {
             small.add_(1);
           }
         }) /
         kKernels;
}

}  // namespace paradyse
