#include "src/run/memory/device_memory.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "src/plan/base/bytes_text.h"

namespace paradyse {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kUncounted = 1024 * kMiB;
constexpr std::int64_t kUncountedOfRank = 512 * kMiB;

c10::DeviceAllocator* allocator_of(c10::Device device) {
  return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index()
                            : c10::impl::VirtualGuardImpl(device.type()).getDevice().index();
}

}  // namespace

std::optional<DeviceBytes> bytes_of(c10::Device device) {
  c10::DeviceAllocator* const allocator = allocator_of(device);
  if (allocator == nullptr) {
    return std::nullopt;
  }
  const auto [free, total] = allocator->getMemoryInfo(index_of(device));
  return DeviceBytes{
      .free = static_cast<std::int64_t>(free), .total = static_cast<std::int64_t>(total)};
}

std::map<std::string, std::int64_t> allocator_numbers(c10::Device device) {
  c10::DeviceAllocator* const allocator = allocator_of(device);
  if (allocator == nullptr) {
    return {};
  }
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = allocator->getDeviceStats(index_of(device));
  return {
      {"allocated_bytes.all.peak", stats.allocated_bytes.at(kAll).peak},
      {"reserved_bytes.all.peak", stats.reserved_bytes.at(kAll).peak},
      {"num_alloc_retries", stats.num_alloc_retries}};
}

std::int64_t device_budget(std::int64_t asked, int ranks, const DeviceBytes& bytes) {
  const std::int64_t share = (bytes.free - kUncounted) / ranks - kUncountedOfRank;
  const std::string is_free =
      fmt::format("the GPU has {} free of {}", bytes_text(bytes.free), bytes_text(bytes.total));
  const std::string who_holds = "end the programs that use the rest (nvidia-smi lists them)";
  if (asked > bytes.free / ranks) {
    throw std::invalid_argument(fmt::format(
        "--memory-per-rank {}: {}, for {} rank{}; {}{}",
        bytes_text(asked),
        is_free,
        ranks,
        ranks == 1 ? "" : "s",
        share > 0 ? fmt::format("without it each takes {}, or ", bytes_text(share)) : "",
        who_holds));
  }
  if (asked == 0 && share <= 0) {
    throw std::invalid_argument(fmt::format(
        "{}, which leaves nothing for {} rank{}: workspaces, loaded kernels and rounding need up "
        "to {}; {}, or take a GPU with more memory",
        is_free,
        ranks,
        ranks == 1 ? "" : "s",
        bytes_text(kUncounted + ranks * kUncountedOfRank),
        who_holds));
  }
  return asked > 0 ? asked : share;
}

std::optional<std::string> allocator_settings(
    const std::function<const char*(const char* name)>& environment) {
  // As torch 2.11 reads them.
  constexpr std::array kNames = {
      "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"};
  const bool said = std::any_of(
      kNames.begin(), kNames.end(), [&](const char* name) { return environment(name) != nullptr; });
  return said ? std::nullopt : std::optional<std::string>("expandable_segments:True");
}

bool tells_lack(std::string_view error) {
  constexpr std::array<std::string_view, 9> kWords = {
      "CUBLAS_STATUS_ALLOC_FAILED",
      // In a full GPU cuBLAS fails to make a handle before it knows why.
      "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",
      "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtCreate",
      "CUDNN_STATUS_ALLOC_FAILED",
      "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
      "cudaErrorMemoryAllocation",
      "CUDA_ERROR_OUT_OF_MEMORY",
      "CUDA error: out of memory",
      "CUDA driver error: out of memory"};
  return std::any_of(kWords.begin(), kWords.end(), [&](std::string_view words) {
    return error.find(words) != std::string_view::npos;
  });
}

}  // namespace paradyse
