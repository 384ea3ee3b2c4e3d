#include "src/run/device/device.h"

#include <optional>
#include <stdexcept>

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "paradyse/plan/detail/op_traits.h"
#include "src/run/device/streams.h"

namespace paradyse {
namespace {

using Guard = c10::impl::VirtualGuardImpl;

// Of a thread under a DeviceScope.
struct Streams {
  c10::Device device;
  c10::Stream compute;
  c10::Stream copy;
};
thread_local std::optional<Streams> streams;

Guard guard() { return Guard(streams->device.type()); }

c10::Stream no_stream() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCPU)); }

}  // namespace

int cuda_devices() { return cuda_is_built() ? static_cast<int>(at::getNumGPUs()) : 0; }

std::string driver_too_old(int cuda) {
  if (cuda == 0 || cuda >= 13000) {
    return "";
  }
  return fmt::format(
      "the NVIDIA driver takes CUDA {}.{} at most, and this program is of CUDA 13: install driver "
      "R580 or later",
      cuda / 1000,
      cuda % 1000 / 10);
}

c10::Device device_named(const std::string& name) {
  if (name == "cpu") {
    return c10::kCPU;
  }
  if (name != "cuda") {
    throw std::invalid_argument("--device '" + name + "' is not one of cpu, cuda");
  }
  if (!cuda_is_built()) {
    throw std::invalid_argument(
        "--device cuda: this program was built without CUDA; build it with `make build-cuda` (it "
        "takes a CUDA 13 toolkit) and run build/cuda/paradyse, or take --device cpu");
  }
  if (cuda_devices() == 0) {
    const std::string old = driver_too_old(cuda_of_driver());
    throw std::invalid_argument(
        "--device cuda: no GPU is seen; " +
        (old.empty() ? "check nvidia-smi and CUDA_VISIBLE_DEVICES" : old) +
        ", or take --device cpu");
  }
  return c10::kCUDA;
}

Tiles tiles_for(c10::Device device, const Model& model, Dtype dtype) {
  return device.is_cpu() ? Tiles{} : gpu_tiles(model, precision_of(dtype).activation);
}

c10::Device numbered(c10::Device device) {
  return device.is_cpu() || device.has_index() ? device : Guard(device.type()).getDevice();
}

void make_current(c10::Device device) {
  if (!device.is_cpu()) {
    Guard(device.type()).setDevice(device);
  }
}

std::string card_name(c10::Device device) {
  return device.is_cuda() ? cuda_card_name(numbered(device).index()) : "";
}

void release_cached(c10::Device device) {
  if (device.is_cuda()) {
    c10::getDeviceAllocator(device.type())->emptyCache();
  }
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) {
    const Guard guard(device.type());
    guard.getStream(guard.getDevice()).synchronize();
  }
}

struct DeviceScope::State {
  std::optional<Streams> before;
  c10::Stream stream_before;
  c10::Device device_before;
};

DeviceScope::DeviceScope(c10::Device device) {
  if (device.is_cpu()) {
    return;
  }
  // Narrow products are summed in float32 throughout, as on the CPU.
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
  const Guard guard(device.type());
  const c10::Device here = numbered(device);
  const Streams mine{
      here, guard.getStreamFromGlobalPool(here), guard.getStreamFromGlobalPool(here)};
  state_ = std::make_unique<State>(State{streams, mine.compute, here});
  state_->device_before = guard.exchangeDevice(here);
  state_->stream_before = guard.exchangeStream(mine.compute);
  streams = mine;
  if (device.is_cuda()) {
    try {
      make_cuda_handles();
    } catch (...) {
      leave();
      throw;
    }
  }
}

DeviceScope::~DeviceScope() {
  if (state_ != nullptr) {
    leave();
  }
}

void DeviceScope::leave() {
  finish_streams();
  const Guard here = guard();
  here.exchangeStream(state_->stream_before);
  here.uncheckedSetDevice(state_->device_before);
  streams = state_->before;
}

void finish_streams() noexcept {
  if (streams) {
    try {
      streams->copy.synchronize();
      streams->compute.synchronize();
    } catch (const std::exception&) {  // the device is lost; whoever uses it next is told
    }
  }
}

MarkPtr Mark::here() {
  if (!streams) {
    return nullptr;
  }
  c10::Event event(streams->device.type());
  event.record(guard().getStream(streams->device));
  return std::make_shared<const Mark>(std::move(event));
}

void Mark::wait(const MarkPtr& mark) {
  if (mark != nullptr && streams) {
    mark->event_.block(guard().getStream(streams->device));
  }
}

void Mark::reached(const MarkPtr& mark) {
  if (!passed(mark)) {
    mark->event_.synchronize();
  }
}

bool Mark::passed(const MarkPtr& mark) { return mark == nullptr || mark->event_.query(); }

bool has_streams() { return streams.has_value(); }

TimedMark TimedMark::here() {
  TimedMark mark;
  if (streams) {
    auto event =
        std::make_shared<c10::Event>(streams->device.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(guard().getStream(streams->device));
    mark.event_ = std::move(event);
  }
  mark.host_ = Clock::now();
  return mark;
}

void TimedMark::wait() const {
  if (event_ != nullptr && !event_->query()) {
    event_->synchronize();
  }
}

double seconds_between(const TimedMark& begin, const TimedMark& end) {
  if (begin.event_ != nullptr && end.event_ != nullptr) {
    return begin.event_->elapsedTime(*end.event_) * 1e-3;  // it says milliseconds
  }
  return std::chrono::duration<double>(end.host_ - begin.host_).count();
}

CopyScope::CopyScope() : before_(no_stream()), active_(streams.has_value()) {
  if (active_) {
    const MarkPtr computed = Mark::here();
    before_ = guard().exchangeStream(streams->copy);
    Mark::wait(computed);
  }
}

CopyScope::~CopyScope() {
  if (active_) {
    guard().exchangeStream(before_);
  }
}

}  // namespace paradyse
