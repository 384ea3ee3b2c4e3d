// A device that is not there, and the judge of what a program gives it.
//
// It is torch's PrivateUse1: its memory is the host's, and each call runs at once on the CPU.  What
// a real device would be free to do otherwise is judged by vector clocks.  A *call* is what a
// program gives a stream: a kernel or a copy.  A stream's clock says which calls of each stream
// come before what it is given next: its own, and those before the events that it waited for.  For
// each block of memory the judge knows the last write and the reads since: a read that does not
// come after that write, or a write that does not come after them all, is *unordered*.  Freed
// blocks wait in a list of their stream and keep what is known of them, so what gets one is judged
// as well.
//
// What the host does wrong, it feels: new memory holds NaN; pinned memory that is copied from must
// not change until the host has waited for the copy; what is copied into it is there only then.
//
// Linked into a test that names anything here, and into no other.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace paradyse::test {

inline const c10::Device kPretended(c10::kPrivateUse1);

struct Judging {
  // A host that waited for a stream has ordered what it gives a device next.  Else only what it
  // read did: the order must come from events.
  bool host_waits = false;
  bool events = true;  // else waits for events order nothing: the judge must report
};
// Everything known and counted is forgotten, freed blocks as well; nothing runs meanwhile.
void begin_judging(const Judging& judging = {});

// Kinds of unordered access, with how often each came: "copy_ (layer 0 mlp linear) in stream 3
// writes 512 bytes that mm (...) in stream 1 reads".
std::map<std::string, std::int64_t> unordered();
// What the host changed while it was read; the same.
std::map<std::string, std::int64_t> changed_early();

enum class CopyKind { pinned_to_device, pageable_to_device, device_to_pinned, device_to_pageable };
inline constexpr int kCopyKinds = 4;

struct Calls {
  std::int64_t kernels = 0;  // copies within the device count as such
  std::array<std::int64_t, kCopyKinds> copies{};
  std::int64_t host_waits = 0;
  // (for what, op): kernels and copies.  For what: the label of MemoryScope.
  std::map<std::pair<std::string, std::string>, std::int64_t> by_op;

  [[nodiscard]] std::int64_t all() const;  // kernels and copies
  [[nodiscard]] std::int64_t to_host() const;
  [[nodiscard]] std::int64_t pageable() const;
};
// Since the last time, or begin_judging().
Calls take_calls();

// In place of this thread's call number `call` from now on, counted from 0, `strike` runs, which
// throws; -1: none.
void fail_at_call(std::int64_t call, std::function<void()> strike = {});

// A call of this thread, for stand-ins of kernels that the CPU has not.  Tensors that it reads and
// writes are told one by one, and given back as CPU tensors of the same memory; others as they are.
class DeviceCall {
 public:
  explicit DeviceCall(std::string op);
  ~DeviceCall();  // counts it, if it had anything to do
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  at::Tensor reads(const at::Tensor& tensor);
  at::Tensor writes(const at::Tensor& tensor);
  // The whole call is a copy between the host and the device.
  void copies(CopyKind kind, const at::Tensor& to, const at::Tensor& from, bool waits);
  // The host waits for the call, for what it reads of it.
  void host_reads();

 private:
  void touch(const at::Tensor& tensor, bool writes);

  std::string op_;
  std::string label_;
  bool begun_ = false;
  std::size_t stream_ = 0;
  std::uint64_t tick_ = 0;
  const std::string* who_ = nullptr;
  std::optional<CopyKind> copy_;
};

// Memory of the device, uninitialised.
at::Tensor device_empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type);

}  // namespace paradyse::test
