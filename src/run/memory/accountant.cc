#include "paradyse/run/accountant.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <malloc.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/bytes_text.h"
#include "src/run/memory/device_blocks.h"
#include "src/run/memory/device_memory.h"

namespace paradyse {

std::string to_string(Category category) {
  static const char* const kNames[kCategories] = {
      "parameters", "gradients", "optimizer", "saved", "transient", "communication"};
  return kNames[static_cast<int>(category)];
}

namespace {

constexpr std::size_t kHeaderBytes = 128;  // in front of every block, keeps it aligned

struct Header {
  Accountant::State* state = nullptr;
  std::size_t bytes = 0;     // asked for
  std::size_t capacity = 0;  // of the block, header excluded
  Category category = Category::transient;
  std::array<char, 64> label{};  // a copy: blocks outlive scopes
  Header* previous = nullptr;    // live blocks of the state
  Header* next = nullptr;
};
static_assert(sizeof(Header) <= kHeaderBytes);

Header* header_of(void* data) {
  return reinterpret_cast<Header*>(static_cast<char*>(data) - kHeaderBytes);
}

// Sizes are rounded to quarters of a power of two, so that blocks of about one size serve each
// other.
std::size_t rounded(std::size_t bytes) {
  if (bytes <= 512) {
    return 512;
  }
  std::size_t power = 512;
  while (power * 2 < bytes) {
    power *= 2;
  }
  const std::size_t quarter = power / 4;
  return (bytes + quarter - 1) / quarter * quarter;
}

void* system_allocate(std::size_t capacity) {
  void* block = nullptr;
  if (posix_memalign(&block, 64, capacity + kHeaderBytes) != 0) {
    return nullptr;
  }
  return block;
}

// PARADYSE_POISON_MEMORY, set by the tests: new memory holds NaN, so that a kernel that reads what
// nobody wrote cannot be right by luck.
void* poisoned(void* data, std::size_t bytes) {
  static const bool poison = std::getenv("PARADYSE_POISON_MEMORY") != nullptr;
  return poison ? std::memset(data, 0xFF, bytes) : data;
}

thread_local Accountant::State* current_state = nullptr;
thread_local bool current_counted = true;  // else current_state is there for messages alone
thread_local Category current_category = Category::transient;
thread_local const char* current_label = "";

}  // namespace

struct Accountant::State {
  std::string name;
  std::int64_t budget = 0;
  c10::DeviceType device = c10::kCPU;
  std::mutex mutex;
  std::int64_t live = 0;
  std::array<std::int64_t, kCategories> live_by_category{};
  std::int64_t peak = 0;
  std::array<std::int64_t, kCategories> at_peak{};
  std::int64_t taken = 0;  // capacities of live blocks
  std::int64_t most = 0;   // the most of them ever, which reset_peak() leaves alone
  std::unordered_map<std::size_t, std::vector<void*>> free_blocks;  // by capacity
  std::int64_t free_bytes = 0;
  Header* blocks = nullptr;
  bool abandoned = false;  // the accountant is gone, blocks live on

  void count(Category category, std::int64_t bytes) {
    live += bytes;
    live_by_category[idx(category)] += bytes;
    if (live > peak) {
      peak = live;
      at_peak = live_by_category;
    }
  }

  // "9.8 KiB of a budget of 9.8 KiB in use (saved 9.8 KiB). Largest holders: ..."
  [[nodiscard]] std::string in_use() const {
    std::string categories;
    for (int c = 0; c < kCategories; ++c) {
      const std::int64_t held = live_by_category[idx(c)];
      if (held > 0) {
        categories += fmt::format(
            "{}{} {}",
            categories.empty() ? "" : ", ",
            to_string(static_cast<Category>(c)),
            bytes_text(held));
      }
    }
    std::map<std::string, std::int64_t> by_label;
    for (const Header* block = blocks; block != nullptr; block = block->next) {
      by_label[block->label.data()] += static_cast<std::int64_t>(block->bytes);
    }
    std::vector<std::pair<std::int64_t, std::string>> largest;
    for (const auto& [label, held] : by_label) {
      largest.emplace_back(held, label);
    }
    std::sort(largest.rbegin(), largest.rend());
    const std::string of_budget = budget > 0 ? " of a budget of " + bytes_text(budget) : "";
    if (categories.empty() || largest.empty()) {
      return "nothing" + of_budget + " in use";
    }
    std::string holders;
    for (std::size_t i = 0; i < std::min<std::size_t>(3, largest.size()); ++i) {
      holders += fmt::format(
          "{}{} ({})",
          i == 0 ? "" : ", ",
          largest[i].second.empty() ? "what has no name" : largest[i].second,
          bytes_text(largest[i].first));
    }
    return fmt::format(
        "{}{} in use ({}). Largest holders: {}", bytes_text(live), of_budget, categories, holders);
  }

  // " in layer 1 mlp linear"; "": nobody said.
  static std::string place() {
    return *current_label == '\0' ? "" : std::string(" in ") + current_label;
  }

  [[noreturn]] void refuse(std::size_t bytes) const {
    throw OutOfMemory(fmt::format(
        "{}: out of memory{}: requested {} with {}. Give more with --memory-per-rank, recompute "
        "more, or split documents over more ranks",
        name,
        place(),
        bytes_text(static_cast<std::int64_t>(bytes)),
        in_use()));
  }

  // Within the budget, if there is one: `whose` memory is full.
  [[noreturn]] void report_lack(
      const std::string& whose, std::size_t bytes, const std::string& said) const {
    throw OutOfMemory(fmt::format(
        "{}: out of memory{}: {} itself has {} left, with {}. End other programs that use its "
        "memory, or make plans that need less: lower --memory-per-rank, recompute more, or split "
        "documents over more ranks{}",
        name,
        place(),
        whose,
        bytes > 0 ? "no " + bytes_text(static_cast<std::int64_t>(bytes)) : std::string("nothing"),
        in_use(),
        said.empty() ? "" : ". It says: " + said));
  }

  void release_free_blocks() {
    for (auto& [capacity, list] : free_blocks) {
      for (void* block : list) {
        std::free(block);
      }
    }
    free_blocks.clear();
    free_bytes = 0;
  }

  // Both with the mutex held.
  void expect_room(std::size_t bytes) const {
    if (budget > 0 && live + static_cast<std::int64_t>(bytes) > budget) {
      refuse(bytes);
    }
  }
  Header* enter(void* place, std::size_t bytes, std::size_t capacity) {
    auto* header = new (place) Header{
        .state = this,
        .bytes = bytes,
        .capacity = capacity,
        .category = current_category,
        .next = blocks};
    std::strncpy(header->label.data(), current_label, header->label.size() - 1);
    if (blocks != nullptr) {
      blocks->previous = header;
    }
    blocks = header;
    taken += static_cast<std::int64_t>(capacity);
    most = std::max(most, taken);
    count(header->category, static_cast<std::int64_t>(bytes));
    return header;
  }
  void leave(const Header* header) {
    taken -= static_cast<std::int64_t>(header->capacity);
    count(header->category, -static_cast<std::int64_t>(header->bytes));
    (header->previous != nullptr ? header->previous->next : blocks) = header->next;
    if (header->next != nullptr) {
      header->next->previous = header->previous;
    }
  }

  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex);
    expect_room(bytes);
    const std::size_t capacity = rounded(bytes);
    void* block = nullptr;
    auto found = free_blocks.find(capacity);
    if (found != free_blocks.end() && !found->second.empty()) {
      block = found->second.back();
      found->second.pop_back();
      free_bytes -= static_cast<std::int64_t>(capacity);
    } else {
      // When lengths change, blocks of other sizes that wait for reuse make room: all there are
      // stay within the budget, or half as much again as was ever needed at once.
      const std::int64_t room = budget > 0 ? budget : most + most / 2;
      if (taken + free_bytes + static_cast<std::int64_t>(capacity) > room) {
        release_free_blocks();
      }
      block = system_allocate(capacity);
      if (block == nullptr) {
        release_free_blocks();
        block = system_allocate(capacity);
      }
      if (block == nullptr) {
        report_lack("the system", bytes, "");
      }
    }
    enter(block, bytes, capacity);
    return poisoned(static_cast<char*>(block) + kHeaderBytes, bytes);
  }

  void free(Header* header) {
    bool last = false;
    {
      const std::lock_guard lock(mutex);
      leave(header);
      if (abandoned) {
        std::free(header);
      } else {
        free_blocks[header->capacity].push_back(header);
        free_bytes += static_cast<std::int64_t>(header->capacity);
      }
      last = abandoned && blocks == nullptr;
    }
    if (last) {
      delete this;
    }
  }
};

Accountant::Accountant(std::string name, std::int64_t budget_bytes, c10::Device device)
    : state_(new State) {
  state_->name = std::move(name);
  state_->budget = budget_bytes;
  state_->device = device.type();
}

Accountant::~Accountant() {
  bool last = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->release_free_blocks();
    state_->abandoned = true;
    last = state_->blocks == nullptr;
  }
  if (last) {
    delete state_;
  }
}

std::int64_t Accountant::live_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->live;
}

std::int64_t Accountant::live_bytes(Category category) const {
  const std::lock_guard lock(state_->mutex);
  return state_->live_by_category[idx(category)];
}

std::int64_t Accountant::peak_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->peak;
}

std::int64_t Accountant::budget_bytes() const { return state_->budget; }

std::array<std::int64_t, kCategories> Accountant::at_peak() const {
  const std::lock_guard lock(state_->mutex);
  return state_->at_peak;
}

void Accountant::reset_peak() {
  const std::lock_guard lock(state_->mutex);
  state_->peak = state_->live;
  state_->at_peak = state_->live_by_category;
}

namespace {

// The accountant that counts what this thread allocates; or none.
Accountant::State* counting() { return current_counted ? current_state : nullptr; }

[[noreturn]] void report_lack(
    const std::string& whose, std::size_t bytes, const std::string& said) {
  if (current_state != nullptr) {
    const std::lock_guard lock(current_state->mutex);
    current_state->report_lack(whose, bytes, said);
  }
  throw OutOfMemory(fmt::format(
      "{} has no {} left{}",
      whose,
      bytes > 0 ? bytes_text(static_cast<std::int64_t>(bytes)) : std::string("memory"),
      said.empty() ? "" : ". It says: " + said));
}

void free_block(void* data) {
  if (data == nullptr) {
    return;
  }
  Header* header = header_of(data);
  if (header->state == nullptr) {
    std::free(header);
  } else {
    header->state->free(header);
  }
}

// The context of the DataPtr is the data itself: torch's resize and clone of raw storage rely on
// it.
class AccountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (bytes > 0) {
      if (counting() != nullptr && counting()->device == c10::kCPU) {
        data = counting()->allocate(bytes);
      } else {
        void* block = system_allocate(bytes);
        if (block == nullptr) {
          report_lack("the system", bytes, "");
        }
        new (block) Header{.bytes = bytes, .capacity = bytes};
        data = poisoned(static_cast<char*>(block) + kHeaderBytes, bytes);
      }
    }
    return {data, data, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }
};

// The headers of blocks on devices, which the host cannot write in front of them.
struct DeviceBlocks {
  std::mutex mutex;
  std::unordered_map<const void*, Header*> headers;

  Header* find(const void* data) {
    const std::lock_guard lock(mutex);
    const auto found = headers.find(data);
    return found == headers.end() ? nullptr : found->second;
  }
};
DeviceBlocks& device_blocks() {
  static auto* const blocks = new DeviceBlocks;  // tensors may die after what is static
  return *blocks;
}

}  // namespace

const char* allocation_label() { return current_label; }

void naming_lack(const std::function<void()>& body, std::size_t bytes) {
  constexpr int kCudaErrorMemoryAllocation = 2;
  try {
    body();
  } catch (const c10::OutOfMemoryError& error) {
    report_lack("the device", bytes, error.what_without_backtrace());
  } catch (const c10::AcceleratorError& error) {
    if (error.get_error_code() != kCudaErrorMemoryAllocation) {
      throw;
    }
    report_lack("CUDA", bytes, error.what_without_backtrace());
  } catch (const c10::Error& error) {  // of a library that found none left for itself
    if (!tells_lack(error.what_without_backtrace())) {
      throw;
    }
    report_lack("the device", 0, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    report_lack("the system", bytes, "");
  }
}

void* device_allocate(
    c10::DeviceType device, std::size_t bytes, const std::function<void*()>& allocate) {
  void* data = nullptr;
  Accountant::State* const state = counting();
  if (state == nullptr || state->device != device || bytes == 0) {
    naming_lack([&] { data = allocate(); }, bytes);
    return data;
  }
  auto place = std::make_unique_for_overwrite<std::byte[]>(sizeof(Header));
  Header* header = nullptr;
  {
    const std::lock_guard lock(state->mutex);
    state->expect_room(bytes);
    header = state->enter(place.get(), bytes, bytes);
  }
  naming_lack(
      [&] {
        try {
          data = allocate();
        } catch (...) {
          const std::lock_guard lock(state->mutex);
          state->leave(header);
          throw;
        }
      },
      bytes);
  place.release();
  const std::lock_guard lock(device_blocks().mutex);
  device_blocks().headers[data] = header;
  return data;
}

void device_free(const void* data) {
  Header* header = nullptr;
  {
    const std::lock_guard lock(device_blocks().mutex);
    auto node = device_blocks().headers.extract(data);
    if (node.empty()) {
      return;
    }
    header = node.mapped();
  }
  Accountant::State* const state = header->state;
  bool last = false;
  {
    const std::lock_guard lock(state->mutex);
    state->leave(header);
    last = state->abandoned && state->blocks == nullptr;
  }
  delete[] reinterpret_cast<std::byte*>(header);
  if (last) {
    delete state;
  }
}

void Accountant::recategorize(const at::Tensor& tensor, Category category) {
  if (!tensor.defined() || tensor.storage().nbytes() == 0) {
    return;
  }
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  Header* const header = !tensor.is_cpu() ? device_blocks().find(memory.get())
                         : memory.get_deleter() == &free_block
                             ? header_of(tensor.storage().mutable_data())
                             : nullptr;
  if (header == nullptr || header->state == nullptr) {
    return;
  }
  const std::lock_guard lock(header->state->mutex);
  const auto bytes = static_cast<std::int64_t>(header->bytes);
  auto& held = header->state->live_by_category;
  held[idx(header->category)] -= bytes;
  held[idx(category)] += bytes;
  header->category = category;
}

MemoryScope::MemoryScope(Accountant& accountant, Category category, const char* label)
    : state_before_(current_state),
      counted_before_(current_counted),
      category_before_(current_category),
      label_before_(current_label) {
  current_state = accountant.state_;
  current_counted = true;
  current_category = category;
  current_label = label;
}

MemoryScope::MemoryScope(Category category, const char* label)
    : state_before_(current_state),
      counted_before_(current_counted),
      category_before_(current_category),
      label_before_(current_label) {
  current_category = category;
  current_label = label;
}

MemoryScope::~MemoryScope() {
  current_state = state_before_;
  current_counted = counted_before_;
  current_category = category_before_;
  current_label = label_before_;
}

HostScope::HostScope() : counted_before_(current_counted) { current_counted = false; }
HostScope::~HostScope() { current_counted = counted_before_; }

void install_accounting_allocator(c10::Device device) {
  if (device.is_cuda()) {
    install_cuda_accounting();
  }
  static AccountingAllocator allocator;
  static std::once_flag once;
  std::call_once(once, [] {
    // Large blocks come from the system and go back to it: in glibc's per-thread arenas, blocks of
    // ever new sizes would leave gigabytes of holes.
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    c10::SetCPUAllocator(&allocator, /*priority=*/100);
  });
}

}  // namespace paradyse
