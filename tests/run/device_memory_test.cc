// Memory of GPUs and their driver, as far as it is arithmetic and words: no GPU is needed.
#include "src/run/memory/device_memory.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/run/accountant.h"
#include "src/run/device/device.h"
#include "src/run/memory/device_blocks.h"
#include "src/run/train/run_folder.h"
#include "tests/support/folder.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

TEST(Driver, IsTooOldBelowCuda13) {
  EXPECT_EQ(driver_too_old(0), "");  // there is none
  EXPECT_EQ(driver_too_old(13000), "");
  EXPECT_EQ(driver_too_old(13020), "");
  EXPECT_EQ(driver_too_old(14000), "");
  EXPECT_THAT(driver_too_old(12090), AllOf(HasSubstr("CUDA 12.9 at most"), HasSubstr("R580")));
  EXPECT_THAT(driver_too_old(11080), HasSubstr("CUDA 11.8 at most"));
}

std::string refusal(std::int64_t asked, int ranks, const DeviceBytes& bytes) {
  return test::refusal([&] { device_budget(asked, ranks, bytes); });
}

TEST(DeviceBudget, IsAnEqualShareOfWhatIsFree) {
  const DeviceBytes h100{.free = 78 * kGiB, .total = 79 * kGiB};
  EXPECT_EQ(device_budget(0, 1, h100), 76 * kGiB + kGiB / 2);
  EXPECT_EQ(device_budget(0, 2, h100), 38 * kGiB);
  EXPECT_EQ(device_budget(0, 4, h100), 18 * kGiB + 3 * kGiB / 4);
}

// All together and what is not counted fill the GPU, to a byte a rank.
TEST(DeviceBudget, FillsTheGpu) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 1000; ++i) {
    const auto ranks = static_cast<int>(1 + random() % 16);
    const auto free = static_cast<std::int64_t>(10 * kGiB + random() % (200 * kGiB));
    const std::int64_t budget = device_budget(0, ranks, {.free = free, .total = 220 * kGiB});
    const auto taken = [&](std::int64_t each) { return kGiB + ranks * (kGiB / 2 + each); };
    EXPECT_LE(taken(budget), free) << free << " bytes, " << ranks << " ranks";
    EXPECT_GT(taken(budget + 1), free) << free << " bytes, " << ranks << " ranks";
  }
}

TEST(DeviceBudget, TakesWhatIsAskedForAsFarAsItIsThere) {
  const DeviceBytes half{.free = 40 * kGiB, .total = 80 * kGiB};
  EXPECT_EQ(device_budget(1, 2, half), 1);
  EXPECT_EQ(device_budget(20 * kGiB, 2, half), 20 * kGiB);  // more than the share: the user knows
  EXPECT_THAT(
      refusal(20 * kGiB + 1, 2, half),
      AllOf(
          HasSubstr("--memory-per-rank 20.0 GiB"),
          HasSubstr("40.0 GiB free of 80.0 GiB"),
          HasSubstr("2 ranks"),
          HasSubstr("each takes 19.0 GiB"),
          HasSubstr("nvidia-smi")));
  // In a GPU that others fill.
  const DeviceBytes full{.free = 3 * kGiB, .total = 80 * kGiB};
  EXPECT_EQ(device_budget(0, 3, full), 2 * kGiB / 3 - kGiB / 2);
  EXPECT_THAT(
      refusal(0, 4, full),
      AllOf(HasSubstr("3.0 GiB free of 80.0 GiB"), HasSubstr("4 ranks"), HasSubstr("nvidia-smi")));
  EXPECT_EQ(device_budget(kGiB / 2, 4, full), kGiB / 2);
}

TEST(AllocatorSettings, AreTheUsersWhereThereAreAny) {
  const auto settings = [](const std::map<std::string, std::string>& variables) {
    return allocator_settings([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_EQ(settings({}), "expandable_segments:True");
  EXPECT_EQ(settings({{"PYTORCH_NO_CUDA_MEMORY_CACHING", "1"}}), "expandable_segments:True");
  EXPECT_EQ(settings({{"PYTORCH_ALLOC_CONF", "max_split_size_mb:64"}}), std::nullopt);
  EXPECT_EQ(settings({{"PYTORCH_CUDA_ALLOC_CONF", ""}}), std::nullopt);
}

// As torch 2.11 words them (TORCH_CUDABLAS_CHECK, AT_CUDNN_CHECK, C10_CUDA_DRIVER_CHECK).
TEST(NamingLack, KnowsTheWordsOfLibraries) {
  for (const char* words :
       {"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasGemmEx( handle, opa, opb)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "CUDA error: out of memory\nCUDA kernel errors might be reported later",
        "CUDA driver error: out of memory"}) {
    EXPECT_TRUE(tells_lack(words)) << words;
    EXPECT_THAT(
        test::refusal<OutOfMemory>([&] { naming_lack([&] { TORCH_CHECK(false, words); }); }),
        HasSubstr(words));
  }
  for (const char* words :
       {"CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasSetStream(handle, stream)`",
        "CUDA error: device-side assert triggered",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "mat1 and mat2 shapes cannot be multiplied (out of memory of whoever wrote this)"}) {
    EXPECT_FALSE(tells_lack(words)) << words;
    EXPECT_THROW(naming_lack([&] { TORCH_CHECK(false, words); }), c10::Error) << words;
  }
}

// A caching allocator that says numbers.
class Numbers final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t /*bytes*/) override { return {}; }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*count*/) const override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex /*device*/) override {}
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return {100 + static_cast<std::size_t>(device), 200};
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].increase(70);
    stats.allocated_bytes[0].decrease(50);
    stats.reserved_bytes[0].increase(90);
    stats.reserved_bytes[1].increase(1000);  // of small blocks alone
    stats.num_alloc_retries = 3 + device;
    return stats;
  }
};

TEST(AllocatorNumbers, AreThoseOfTheDevicesAllocator) {
  EXPECT_TRUE(allocator_numbers(c10::kCPU).empty());
  EXPECT_FALSE(bytes_of(c10::kCPU).has_value());

  static Numbers numbers;
  c10::SetAllocator(c10::kPrivateUse1, &numbers);
  const c10::Device device(c10::kPrivateUse1, 2);
  const std::map<std::string, std::int64_t> expected = {
      {"allocated_bytes.all.peak", 70}, {"reserved_bytes.all.peak", 90}, {"num_alloc_retries", 5}};
  EXPECT_EQ(allocator_numbers(device), expected);
  EXPECT_EQ(bytes_of(device)->free, 102);
  EXPECT_EQ(bytes_of(device)->total, 200);
}

TEST(RunFolder, WritesWhatTheAllocatorSaysWhereThereIsOne) {
  const test::Folder folder;
  LoadedConfig config;
  config.config.output.folder = folder.string();
  config.config.output.name = "run";
  RunFolder run(config);
  StepReport report;
  report.seconds = 1;
  run.write_step(report);
  report.allocator = {{"reserved_bytes.all.peak", 90}};
  run.write_step(report);
  std::ifstream metrics(folder / "run" / "metrics.jsonl");
  std::string line;
  std::getline(metrics, line);
  EXPECT_EQ(line.find("bytes.all"), std::string::npos) << line;
  std::getline(metrics, line);
  EXPECT_EQ(nlohmann::json::parse(line).at("reserved_bytes.all.peak"), 90) << line;
}

}  // namespace
}  // namespace paradyse
