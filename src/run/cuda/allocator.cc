// Tensors on GPUs through the accountants: a CUDA allocator that counts and leaves the rest to the
// one that was there before it, torch's caching allocator.
//
// Counted are the bytes asked for by tensors.  Not counted: what the caching allocator rounds up
// and keeps, workspaces of cuBLAS and NCCL, the temporaries of ops (HostScope) and the CUDA
// context.
#include <cstdlib>
#include <mutex>

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include "paradyse/run/accountant.h"
#include "src/run/device/device.h"
#include "src/run/memory/device_blocks.h"
#include "src/run/memory/device_memory.h"

namespace paradyse {

bool cuda_is_built() { return true; }

std::string cuda_card_name(int index) {
  cudaDeviceProp card{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&card, index));
  return card.name;
}

int cuda_of_driver() {
  int cuda = 0;
  return cudaDriverGetVersion(&cuda) == cudaSuccess ? cuda : 0;
}

namespace {

using c10::CachingDeviceAllocator::DeviceStats;
using c10::cuda::CUDAStream;
using namespace c10::cuda::CUDACachingAllocator;  // the names of the interface
using MempoolId = c10::MempoolId_t;

CUDAAllocator* beneath = nullptr;

// By its own deleter: with PYTORCH_NO_CUDA_MEMORY_CACHING, it knows no block of what it gave.
void free_block(void* data) {
  if (data != nullptr) {
    device_free(data);
    beneath->raw_deleter()(data);
  }
}

class AccountingAllocator final : public CUDAAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    c10::Device device(c10::kCUDA);
    void* const data = device_allocate(c10::kCUDA, bytes, [&] {
      c10::DataPtr block = beneath->allocate(bytes);
      device = block.device();
      return block.release_context();
    });
    return {data, data, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void* raw_alloc(std::size_t bytes) override {
    void* data = nullptr;
    naming_lack([&] { data = beneath->raw_alloc(bytes); }, bytes);
    return data;
  }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    void* data = nullptr;
    naming_lack([&] { data = beneath->raw_alloc_with_stream(bytes, stream); }, bytes);
    return data;
  }
  void raw_delete(void* data) override { beneath->raw_delete(data); }  // of raw_alloc, not counted
  void copy_data(void* to, const void* from, std::size_t count) const override {
    beneath->copy_data(to, from, count);
  }

  // The caching allocator knows its own blocks by their deleter.
  void recordStream(const c10::DataPtr& data, CUDAStream stream) override {
    c10::DataPtr block(data.get(), data.get(), beneath->raw_deleter(), data.device());
    beneath->recordStream(block, stream);
    block.release_context();
  }

  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return beneath->getMemoryInfo(device);
  }

  void init(int devices) override { beneath->init(devices); }
  bool initialized() override { return beneath->initialized(); }
  void emptyCache(MempoolId pool) override { beneath->emptyCache(pool); }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return beneath->getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    beneath->resetAccumulatedStats(device);
  }
  void resetPeakStats(c10::DeviceIndex device) override { beneath->resetPeakStats(device); }
  double getMemoryFraction(c10::DeviceIndex device) override {
    return beneath->getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    beneath->setMemoryFraction(fraction, device);
  }
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    return beneath->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { beneath->enable(value); }
  bool isEnabled() const override { return beneath->isEnabled(); }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override {
    beneath->cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* data, std::size_t* size) override {
    return beneath->getBaseAllocation(data, size);
  }
  SnapshotInfo snapshot(MempoolId pool, bool include_traces) override {
    return beneath->snapshot(pool, include_traces);
  }
  void beginAllocateToPool(
      c10::DeviceIndex device, MempoolId pool, std::function<bool(cudaStream_t)> filter) override {
    beneath->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, MempoolId pool) override {
    beneath->endAllocateToPool(device, pool);
  }
  void releasePool(c10::DeviceIndex device, MempoolId pool) override {
    beneath->releasePool(device, pool);
  }
  int getPoolUseCount(c10::DeviceIndex device, MempoolId pool) override {
    return beneath->getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(
      c10::DeviceIndex device, MempoolId pool, std::shared_ptr<CUDAAllocator> its_own) override {
    beneath->createOrIncrefPool(device, pool, std::move(its_own));
  }
  void setUseOnOOM(c10::DeviceIndex device, MempoolId pool, bool use) override {
    beneath->setUseOnOOM(device, pool, use);
  }
  void setNoSplit(c10::DeviceIndex device, MempoolId pool) override {
    beneath->setNoSplit(device, pool);
  }
  bool checkPoolLiveAllocations(
      c10::DeviceIndex device, MempoolId pool, const std::unordered_set<void*>& expected) override {
    return beneath->checkPoolLiveAllocations(device, pool, expected);
  }
  ShareableHandle shareIpcHandle(void* data) override { return beneath->shareIpcHandle(data); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return beneath->getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return beneath->isHistoryEnabled(); }
  void recordHistory(
      bool enabled,
      CreateContextFn recorder,
      std::size_t most,
      RecordContext when,
      bool clear,
      const std::vector<std::string>& skip) override {
    beneath->recordHistory(enabled, recorder, most, when, clear, skip);
  }
  void recordAnnotation(
      const std::vector<std::pair<std::string, std::string>>& annotation) override {
    beneath->recordAnnotation(annotation);
  }
  void pushCompileContext(std::string& context) override { beneath->pushCompileContext(context); }
  void popCompileContext() override { beneath->popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override { beneath->setUserMetadata(metadata); }
  std::string getUserMetadata() override { return beneath->getUserMetadata(); }
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    beneath->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    beneath->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override {
    beneath->enablePeerAccess(device, peer);
  }
  cudaError_t memcpyAsync(
      void* to,
      int to_device,
      const void* from,
      int from_device,
      std::size_t count,
      cudaStream_t stream,
      bool peer_to_peer) override {
    return beneath->memcpyAsync(to, to_device, from, from_device, count, stream, peer_to_peer);
  }
  std::shared_ptr<AllocatorState> getCheckpointState(
      c10::DeviceIndex device, MempoolId pool) override {
    return beneath->getCheckpointState(device, pool);
  }
  CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
    return beneath->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return "paradyse over " + beneath->name(); }
};

}  // namespace

void install_cuda_accounting() {
  static AccountingAllocator ours;
  static std::once_flag once;
  std::call_once(once, [] {
    if (const auto settings =
            allocator_settings([](const char* name) { return std::getenv(name); })) {
      c10::CachingAllocator::setAllocatorSettings(*settings);
    }
    at::globalContext().lazyInitDevice(c10::kCUDA);  // the caching allocator is there then
    beneath = get();
    allocator.store(&ours);
  });
}

}  // namespace paradyse
