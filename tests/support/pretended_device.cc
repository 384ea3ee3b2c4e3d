#include "tests/support/pretended_device.h"

#include <cstring>
#include <list>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_map>

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <torch/library.h>

#include "paradyse/plan/detail/index.h"
#include "src/run/memory/device_blocks.h"
#include "tests/support/pretended_kernels.h"

namespace paradyse::test {
namespace {

const c10::Device kDevice(c10::kPrivateUse1, 0);

// [stream] its last call that comes before.
using Clock = std::vector<std::uint64_t>;

void join(Clock& clock, const Clock& other) {
  clock.resize(std::max(clock.size(), other.size()));
  for (std::size_t i = 0; i < other.size(); ++i) {
    clock[i] = std::max(clock[i], other[i]);
  }
}

// A call, in the order of its stream.
struct Stamp {
  std::size_t stream = 0;
  std::uint64_t tick = 0;
  const std::string* who = nullptr;

  [[nodiscard]] bool before(const Clock& clock) const {
    return stream < clock.size() && clock[stream] >= tick;
  }
};

// Memory of the device, in use or free, or pinned memory of the host.
struct Block {
  char* data = nullptr;
  std::size_t capacity = 0;
  std::size_t stream = 0;  // that it was allocated in
  bool pinned = false;
  bool recorded = false;  // record_stream(): it does not come again
  std::optional<Stamp> write = {};
  std::vector<Stamp> reads = {};  // since, the last of each stream
};

// A copy from or to pinned memory that the host has not waited for.
struct Transit {
  const Block* block = nullptr;
  char* at = nullptr;
  std::vector<char> data;  // what is copied
  bool to_device = false;
  Stamp stamp;
};

struct Device {
  std::mutex mutex;  // of all else
  Judging judging;
  std::uint64_t run = 1;              // counts begin_judging()
  std::vector<Clock> streams = {{}};  // the first is the default one
  std::unordered_map<const void*, Block> blocks;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<char*>> free;  // [stream, capacity]
  std::list<Transit> transits;
  std::set<std::string> names;
  std::map<std::string, std::int64_t> unordered;
  std::map<std::string, std::int64_t> changed;
  Calls calls;

  Block* find(const at::Tensor& tensor) {
    const auto found = blocks.find(tensor.storage().data_ptr().get());
    return found == blocks.end() ? nullptr : &found->second;
  }

  // Copies that are over, as `over` says, are there for the host, or may no longer be missed.
  template <typename Over>
  void settle(Over over) {
    for (auto transit = transits.begin(); transit != transits.end();) {
      if (!over(*transit)) {
        ++transit;
        continue;
      }
      if (!transit->to_device) {
        std::memcpy(transit->at, transit->data.data(), transit->data.size());
      } else if (std::memcmp(transit->at, transit->data.data(), transit->data.size()) != 0) {
        ++changed[*transit->stamp.who + ": its pinned source was changed before it was waited for"];
      }
      transit = transits.erase(transit);
    }
  }
};
Device& device() {
  static auto* const one = new Device;  // tensors may die after what is static
  return *one;
}

// A thread of the host.
struct Host {
  std::uint64_t run = 0;
  std::size_t stream = 0;  // the current one
  Clock ordered;           // calls that come before what it gives a stream
  Clock known;             // calls that it knows to be over
  std::int64_t fail_in = -1;
  std::function<void()> strike;
};
Host& host() {
  thread_local Host mine;
  if (mine.run != device().run) {
    const std::size_t stream = mine.stream;
    mine = {};
    mine.run = device().run;
    mine.stream = stream;
  }
  return mine;
}

// This thread knows all before `clock` to be over; with the mutex held.
void waited(const Clock& clock, bool orders) {
  Device& d = device();
  join(host().known, clock);
  if (orders || d.judging.host_waits) {
    join(host().ordered, clock);
  }
  d.settle([](const Transit& transit) { return transit.stamp.before(host().known); });
}

// --- memory --------------------------------------------------------------------------------------

char* host_memory(std::size_t bytes) {
  return static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
}

// Powers of two: unlike sizes take one another's blocks.
std::size_t capacity_for(std::size_t bytes) {
  std::size_t capacity = 512;
  while (capacity < bytes) {
    capacity *= 2;
  }
  return capacity;
}

char* take_block(std::size_t bytes) {
  const std::size_t capacity = capacity_for(bytes);
  Device& d = device();
  const std::lock_guard lock(d.mutex);
  const std::size_t stream = host().stream;
  std::vector<char*>& free = d.free[{stream, capacity}];
  char* data = nullptr;
  if (free.empty()) {
    data = host_memory(capacity);
    d.blocks[data] = {.data = data, .capacity = capacity, .stream = stream};
  } else {  // the one freed last: whoever had it may be at it still
    data = free.back();
    free.pop_back();
  }
  std::memset(data, 0xFF, capacity);  // NaN
  return data;
}

void free_block(void* data) {
  if (data == nullptr) {
    return;
  }
  device_free(data);
  Device& d = device();
  const std::lock_guard lock(d.mutex);
  const Block& block = d.blocks.at(data);
  if (!block.recorded) {
    d.free[{block.stream, block.capacity}].push_back(block.data);
  }
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const data =
        bytes == 0 ? nullptr
                   : device_allocate(kDevice.type(), bytes, [&] { return take_block(bytes); });
    return {data, data, &free_block, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
};
DeviceAllocator allocator;

void free_pinned(void* data) {
  if (data == nullptr) {
    return;
  }
  Device& d = device();
  const std::lock_guard lock(d.mutex);
  // Torch's allocator keeps it until copies from it are over; so no one can change it any more.
  d.settle([&](const Transit& transit) { return transit.block->data == data; });
  d.blocks.erase(data);
  std::free(data);
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &free_pinned, c10::kCPU};
    }
    char* const data = host_memory(bytes);
    std::memset(data, 0xFF, bytes);
    Device& d = device();
    const std::lock_guard lock(d.mutex);
    d.blocks[data] = {.data = data, .capacity = bytes, .pinned = true};
    return {data, data, &free_pinned, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};
PinnedAllocator pinned_allocator;

// --- what torch asks a device for ----------------------------------------------------------------

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  bool isPinnedPtr(const void* data) const override {
    const std::lock_guard lock(device().mutex);
    const auto found = device().blocks.find(data);
    return found != device().blocks.end() && found->second.pinned;
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(std::size_t number) {
    return c10::Stream(c10::Stream::UNSAFE, kDevice, static_cast<c10::StreamId>(number));
  }
  static std::size_t number(const c10::Stream& of) { return static_cast<std::size_t>(of.id()); }

  c10::DeviceType type() const override { return kDevice.type(); }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device) const override { return stream(host().stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    const std::lock_guard lock(device().mutex);
    device().streams.emplace_back();
    return stream(device().streams.size() - 1);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(std::exchange(host().stream, number(to)));
  }
  bool queryStream(const c10::Stream& of) const override {
    synchronizeStream(of);
    return true;
  }
  void synchronizeStream(const c10::Stream& of) const override {
    const std::lock_guard lock(device().mutex);
    ++device().calls.host_waits;
    waited(device().streams.at(number(of)), false);
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    const std::lock_guard lock(device().mutex);
    ++device().calls.host_waits;
    for (const Clock& clock : device().streams) {
      waited(clock, false);
    }
  }

  // An event is a clock.
  void record(
      void** event, const c10::Stream& in, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Clock;
    }
    const std::lock_guard lock(device().mutex);
    *static_cast<Clock*>(*event) = device().streams.at(number(in));
  }
  void block(void* event, const c10::Stream& in) const override {
    const std::lock_guard lock(device().mutex);
    if (device().judging.events) {
      join(device().streams.at(number(in)), *static_cast<Clock*>(event));
    }
  }
  bool queryEvent(void* event) const override {
    const std::lock_guard lock(device().mutex);
    waited(*static_cast<Clock*>(event), false);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    const std::lock_guard lock(device().mutex);
    ++device().calls.host_waits;
    waited(*static_cast<Clock*>(event), false);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock*>(event);
  }
  double elapsedTime(void*, void*, c10::DeviceIndex) const override { return 1; }  // milliseconds
};

// --- calls ---------------------------------------------------------------------------------------

// The same memory as a CPU tensor.
at::Tensor on_host(const at::Tensor& tensor) {
  c10::Storage storage(
      c10::Storage::use_byte_size_t(),
      tensor.storage().nbytes(),
      at::DataPtr(tensor.storage().data_ptr().get(), c10::kCPU),
      c10::GetAllocator(c10::kCPU),
      /*resizable=*/true);
  at::Tensor same = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  same.unsafeGetTensorImpl()->set_sizes_and_strides(
      tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return same;
}

bool on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kDevice.type();
}

// Reads and writes of a call must come after those of others that touch the same.
void access(Block& block, const Stamp& now, bool writes) {
  Device& d = device();
  const Clock& clock = d.streams[now.stream];
  const auto expect_after = [&](const Stamp& other, const char* did) {
    if (!other.before(clock)) {
      ++d.unordered[fmt::format(
          "{} in stream {} {} {} bytes that {} in stream {} {}",
          *now.who,
          now.stream,
          writes ? "writes" : "reads",
          block.capacity,
          *other.who,
          other.stream,
          did)];
    }
  };
  if (block.write) {
    expect_after(*block.write, "wrote");
  }
  if (writes) {
    for (const Stamp& read : block.reads) {
      expect_after(read, "reads");
    }
    block.reads.clear();
    block.write = now;
    return;
  }
  std::erase_if(block.reads, [&](const Stamp& read) { return read.stream == now.stream; });
  block.reads.push_back(now);
}

}  // namespace

DeviceCall::DeviceCall(std::string op) : op_(std::move(op)) {}

DeviceCall::~DeviceCall() {
  if (!begun_) {
    return;
  }
  Device& d = device();
  const std::lock_guard lock(d.mutex);
  if (copy_) {
    ++d.calls.copies[idx(*copy_)];
  } else {
    ++d.calls.kernels;
  }
  ++d.calls.by_op[{label_, op_}];
}

void DeviceCall::touch(const at::Tensor& tensor, bool writes) {
  if (!tensor.defined() || tensor.numel() == 0) {
    return;
  }
  Device& d = device();
  Host& mine = host();
  if (!begun_ && mine.fail_in >= 0 && mine.fail_in-- == 0) {
    std::exchange(mine.strike, {})();
  }
  const std::lock_guard lock(d.mutex);
  if (!begun_) {
    begun_ = true;
    label_ = allocation_label();
    stream_ = mine.stream;
    Clock& clock = d.streams.at(stream_);
    clock.resize(std::max(clock.size(), stream_ + 1));
    join(clock, mine.ordered);
    tick_ = ++clock[stream_];
    who_ = &*d.names.insert(op_ + " (" + label_ + ")").first;
  }
  if (Block* const block = d.find(tensor)) {
    if (block->pinned && !writes) {  // what was copied there before
      d.settle(
          [&](const Transit& transit) { return transit.block == block && !transit.to_device; });
    }
    access(*block, {.stream = stream_, .tick = tick_, .who = who_}, writes);
  }
}

at::Tensor DeviceCall::reads(const at::Tensor& tensor) {
  if (!on_device(tensor)) {
    return tensor;
  }
  touch(tensor, false);
  return on_host(tensor);
}

at::Tensor DeviceCall::writes(const at::Tensor& tensor) {
  if (!on_device(tensor)) {
    return tensor;
  }
  touch(tensor, true);
  return on_host(tensor);
}

void DeviceCall::copies(CopyKind kind, const at::Tensor& to, const at::Tensor& from, bool waits) {
  const bool up = kind == CopyKind::pinned_to_device || kind == CopyKind::pageable_to_device;
  const at::Tensor& on_its_host = up ? from : to;
  touch(from, false);
  touch(to, true);
  if (!begun_) {
    return;
  }
  copy_ = kind;
  Device& d = device();
  if (!waits) {  // the bytes are on their way
    auto* const at = static_cast<char*>(const_cast<void*>(on_its_host.const_data_ptr()));
    Transit transit{
        .block = d.find(on_its_host),
        .at = at,
        .data = std::vector<char>(on_its_host.nbytes()),
        .to_device = up,
        .stamp = {.stream = stream_, .tick = tick_, .who = who_}};
    if (up) {
      std::memcpy(transit.data.data(), at, transit.data.size());
      on_host(to).copy_(from);
    } else {
      std::memcpy(transit.data.data(), on_host(from).const_data_ptr(), transit.data.size());
      std::memset(at, 0xFF, transit.data.size());
    }
    const std::lock_guard lock(d.mutex);
    d.transits.push_back(std::move(transit));
    return;
  }
  (up ? on_host(to) : to).copy_(up ? from : on_host(from));
  const std::lock_guard lock(d.mutex);
  ++d.calls.host_waits;
  waited(d.streams[stream_], /*orders=*/!up);
}

void DeviceCall::host_reads() {
  if (!begun_) {
    return;
  }
  Device& d = device();
  const std::lock_guard lock(d.mutex);
  ++d.calls.host_waits;
  ++d.calls.copies[idx(CopyKind::device_to_pinned)];
  waited(d.streams[stream_], /*orders=*/true);
}

at::Tensor device_empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
  return at::detail::empty_strided_generic(
      sizes, strides, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
}

namespace {

at::Tensor empty(
    at::IntArrayRef sizes,
    std::optional<at::ScalarType> type,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      sizes,
      &allocator,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      type.value_or(at::kFloat),
      format);
}

at::Tensor empty_strided(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    std::optional<at::ScalarType> type,
    std::optional<at::Layout>,
    std::optional<at::Device>,
    std::optional<bool>) {
  return device_empty(sizes, strides, type.value_or(at::kFloat));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (on_device(from) && on_device(to)) {
    DeviceCall call("aten::copy_");
    const at::Tensor source = call.reads(from);
    call.writes(to).copy_(source);
    return to;
  }
  const bool up = on_device(to);
  const at::Tensor& its_host = up ? from : to;
  const bool bytes_alone = from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() &&
                           from.is_contiguous() && to.is_contiguous();
  bool pinned = false;
  {
    const std::lock_guard lock(device().mutex);
    const Block* const block = device().find(its_host);
    pinned = block != nullptr && block->pinned && bytes_alone;
  }
  const CopyKind kind = up ? (pinned ? CopyKind::pinned_to_device : CopyKind::pageable_to_device)
                           : (pinned ? CopyKind::device_to_pinned : CopyKind::device_to_pageable);
  DeviceCall call(
      up ? (pinned ? "copy of pinned memory to the device"
                   : "copy of pageable memory to the device")
         : (pinned ? "copy to pinned memory" : "copy to pageable memory"));
  call.copies(kind, to, from, !(non_blocking && pinned));
  return to;
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  DeviceCall call("aten::item");
  const at::Tensor same = call.reads(tensor);
  call.host_reads();
  return same.item();
}

void record_stream(at::Tensor& tensor, c10::Stream) {
  const std::lock_guard lock(device().mutex);
  device().find(tensor)->recorded = true;
}

// `value` with each tensor in it as body() gives it.
template <typename Body>
c10::IValue with_tensors(const c10::IValue& value, Body body) {
  if (value.isTensor()) {
    return body(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(body(tensor));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      list.push_back(tensor ? std::optional(body(*tensor)) : std::nullopt);
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().type() == kDevice.type()) {
    return c10::Device(c10::kCPU);
  }
  return value;
}

// All that torch does not make of other calls: the CPU's kernel on the same memory.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t begin = stack->size() - schema.arguments().size();
  const bool view = std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
  DeviceCall call(schema.name());
  std::vector<std::pair<at::Tensor, at::Tensor>> same;  // on the device, as CPU tensor
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    c10::IValue& argument = (*stack)[begin + i];
    argument = with_tensors(argument, [&](const at::Tensor& tensor) {
      if (!on_device(tensor)) {
        TORCH_CHECK(
            !tensor.defined() || tensor.dim() == 0, op.schema(), " of a device and a CPU tensor");
        return tensor;
      }
      same.emplace_back(
          tensor,
          view     ? on_host(tensor)
          : writes ? call.writes(tensor)
                   : call.reads(tensor));
      return same.back().second;
    });
  }
  op.callBoxed(stack);
  for (const auto& [there, here] : same) {  // `out` of another size than the result's
    if (here.storage().data_ptr().get() != there.storage().data_ptr().get()) {
      const at::Tensor made = device_empty(here.sizes(), here.strides(), here.scalar_type());
      call.writes(made).copy_(here);
      there.unsafeGetTensorImpl()->set_storage_keep_dtype(made.storage());
      there.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), 0);
    }
  }
  for (std::size_t i = begin; i < stack->size(); ++i) {
    c10::IValue& result = (*stack)[i];
    if (!result.isTensor() && !result.isTensorList()) {
      call.host_reads();
      continue;
    }
    result = with_tensors(result, [&](const at::Tensor& tensor) -> at::Tensor {
      if (!tensor.defined()) {
        return tensor;
      }
      for (const auto& [there, here] : same) {
        if (tensor.is_same(here)) {
          return there;
        }
        if (view && tensor.storage().data_ptr().get() == here.storage().data_ptr().get()) {
          at::Tensor part = at::detail::make_tensor<c10::TensorImpl>(
              c10::TensorImpl::VIEW,
              c10::Storage(there.storage()),
              there.key_set(),
              tensor.dtype());
          part.unsafeGetTensorImpl()->set_sizes_and_strides(
              tensor.sizes(), tensor.strides(), tensor.storage_offset());
          return part;
        }
      }
      const at::Tensor made = device_empty(tensor.sizes(), tensor.strides(), tensor.scalar_type());
      call.writes(made).copy_(tensor);
      return made;
    });
  }
}

const Hooks hooks;
const bool registered = [] {
  c10::register_privateuse1_backend("pretended");
  c10::SetAllocator(kDevice.type(), &allocator);
  at::setHostAllocator(kDevice.type(), &pinned_allocator);
  at::RegisterPrivateUse1HooksInterface(const_cast<Hooks*>(&hooks));
  return true;
}();
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("record_stream", &record_stream);
  // What a GPU does in one call and torch makes several of elsewhere.
  for (const char* const op :
       {"_foreach_norm.Scalar",
        "_foreach_mul_.Scalar",
        "_foreach_add_.Scalar",
        "_foreach_mul_.Tensor",
        "_foreach_copy_",
        "_foreach_zero_"}) {
    library.impl(op, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace

void begin_judging(const Judging& judging) {
  register_pretended_kernels();
  Device& d = device();
  const std::lock_guard lock(d.mutex);
  ++d.run;
  d.judging = judging;
  d.streams.assign(1, {});
  for (const auto& [which, list] : d.free) {
    for (char* const data : list) {
      d.blocks.erase(data);
      std::free(data);
    }
  }
  d.free.clear();
  for (auto& [data, block] : d.blocks) {
    block.write.reset();
    block.reads.clear();
  }
  d.settle([](const Transit&) { return true; });
  d.unordered.clear();
  d.changed.clear();
  d.names.clear();
  d.calls = {};
}

std::map<std::string, std::int64_t> unordered() {
  const std::lock_guard lock(device().mutex);
  return device().unordered;
}

std::map<std::string, std::int64_t> changed_early() {
  const std::lock_guard lock(device().mutex);
  device().settle([](const Transit& transit) { return transit.to_device; });
  return device().changed;
}

std::int64_t Calls::all() const { return std::accumulate(copies.begin(), copies.end(), kernels); }
std::int64_t Calls::to_host() const {
  return copies[idx(CopyKind::device_to_pinned)] + copies[idx(CopyKind::device_to_pageable)];
}
std::int64_t Calls::pageable() const {
  return copies[idx(CopyKind::pageable_to_device)] + copies[idx(CopyKind::device_to_pageable)];
}

Calls take_calls() {
  const std::lock_guard lock(device().mutex);
  return std::exchange(device().calls, {});
}

void fail_at_call(std::int64_t call, std::function<void()> strike) {
  host().fail_in = call;
  host().strike = std::move(strike);
}

}  // namespace paradyse::test
