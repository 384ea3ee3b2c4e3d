// Who holds how much memory: every tensor allocation of a rank is counted, by category, against a
// budget.
//
// Over the budget an allocation fails as it would on a full device, so running out of memory is a
// real, testable event on CPU ranks as well.  A rank's memory is that of the device it computes on:
// beside CUDA, what it takes of the host is not counted.  Freed blocks are kept for the next
// allocation of their size (returning large blocks to the system costs up to a third of a short
// step); what is kept that way is not counted.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>

namespace paradyse {

enum class Category { parameters, gradients, optimizer, saved, transient, communication };
inline constexpr int kCategories = 6;
std::string to_string(Category category);

// A rank's budget does not suffice, or the machine itself has no memory left.  Says in which op,
// how much was asked for and who holds what.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The memory of one rank.  Threads count into the accountant that is current on them
// (MemoryScope); a block is credited to the accountant it came from, on whatever thread it dies.
class Accountant {
 public:
  // `budget_bytes` 0: no limit.  `name` stands in messages: "rank 2".  `device`: whose memory is
  // counted.
  explicit Accountant(
      std::string name = "",
      std::int64_t budget_bytes = 0,
      c10::Device device = c10::Device(c10::kCPU));
  ~Accountant();  // blocks that live on stay valid
  Accountant(const Accountant&) = delete;
  Accountant& operator=(const Accountant&) = delete;

  [[nodiscard]] std::int64_t live_bytes() const;
  [[nodiscard]] std::int64_t live_bytes(Category category) const;
  [[nodiscard]] std::int64_t peak_bytes() const;
  [[nodiscard]] std::int64_t budget_bytes() const;
  // What each category held when the peak was reached.
  [[nodiscard]] std::array<std::int64_t, kCategories> at_peak() const;
  // Forgets the peak: it starts again from what is live now.
  void reset_peak();

  // Counts the memory of `tensor` under `category` from now on.  Memory of no accountant is
  // ignored.
  static void recategorize(const at::Tensor& tensor, Category category);

  struct State;

 private:
  friend class MemoryScope;
  State* state_;
};

// While it lives, allocations on this thread count into `accountant` under `category`, and messages
// name `label` ("layer 3 mlp linear"; must outlive the scope).
class MemoryScope {
 public:
  MemoryScope(Accountant& accountant, Category category, const char* label);
  // Keeps the thread's accountant, changes category and label.
  MemoryScope(Category category, const char* label);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  Accountant::State* state_before_;
  bool counted_before_;
  Category category_before_;
  const char* label_before_;
};

// While it lives, allocations on this thread are nobody's: control data of a few bytes (plans,
// losses, counters), which stays on the host whatever device a rank has; a library's own memory.
class HostScope {
 public:
  HostScope();
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;

 private:
  bool counted_before_;
};

// Makes torch allocate tensors of this device through the accountants.  Called once by whatever
// starts ranks; calling it again does nothing.
void install_accounting_allocator(c10::Device device = c10::Device(c10::kCPU));

}  // namespace paradyse
