// device_tests [--device cpu|cuda] [--sizes small|large] [gtest's own options]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <string_view>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "paradyse/run/accountant.h"
#include "src/run/device/device.h"
#include "tests/device/device.h"

namespace paradyse::test {
namespace {

std::optional<c10::Device> chosen;
bool large = false;

}  // namespace

c10::Device device() { return chosen.value(); }
bool large_sizes() { return large; }

at::Tensor random_numbers(const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

double rounding(at::ScalarType type) {
  return type == at::kDouble     ? 0x1p-53
         : type == at::kFloat    ? 0x1p-24
         : type == at::kBFloat16 ? 0x1p-9
                                 : 0x1p-12;
}

double off(const at::Tensor& is, const at::Tensor& expected) {
  const at::Tensor x = is.to(c10::Device(at::kCPU), at::kDouble);
  const at::Tensor y = expected.to(c10::Device(at::kCPU), at::kDouble);
  if (x.sizes() != y.sizes()) {
    return std::numeric_limits<double>::infinity();
  }
  if (x.numel() == 0 || at::equal(x, y)) {
    return 0;
  }
  const double error = ((x - y).norm() / y.norm()).item<double>();
  return error == error ? error : std::numeric_limits<double>::infinity();
}

namespace {

int run(int argc, char** argv) {
  const char* name = "cpu";
  std::string_view sizes;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
      name = argv[++i];
    } else if (std::strcmp(argv[i], "--sizes") == 0 && i + 1 < argc) {
      sizes = argv[++i];
      if (sizes != "small" && sizes != "large") {
        std::fprintf(
            stderr, "device_tests: --sizes '%s' is not one of small, large\n", sizes.data());
        return 2;
      }
    } else {
      argv[kept++] = argv[i];
    }
  }
  if (std::strcmp(name, "cpu") == 0) {
    // Before anything asks: it takes the forms that tensors of other devices take.
    setenv("PARADYSE_ATEN_KERNELS", "1", /*overwrite=*/0);
  }
  testing::InitGoogleTest(&kept, argv);
  if (kept > 1) {
    std::fprintf(
        stderr,
        "device_tests: '%s' is not known; --device cpu|cuda, --sizes small|large, --gtest_...\n",
        argv[1]);
    return 2;
  }
  if (!GTEST_FLAG_GET(list_tests)) {
    try {
      chosen = device_named(name);
      large = sizes.empty() ? !chosen->is_cpu() : sizes == "large";
      install_accounting_allocator(*chosen);
      // The host's large tensors take what was freed before, not new pages each time: that took
      // two thirds of the time.
      mallopt(M_MMAP_MAX, 0);
      mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "device_tests: %s\n", error.what());
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace paradyse::test

int main(int argc, char** argv) { return paradyse::test::run(argc, argv); }
