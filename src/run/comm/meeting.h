// Where ranks that are threads of one process meet and wait for each other.
//
// Words.  An *operation* has a number, counted by each rank of a group; all ranks issue the same
// ones in the same order.  To *issue* is to publish a pointer to the source in the operation's
// slot; to *complete* is to wait until all have issued, read what the table says straight from the
// peers' memory, and *depart*.  A source may be changed once all have departed.  Slots are reused
// in turn; an operation waits for its slot to be free.
//
// On a device a rank is done when its stream is, which threads do not wait for: beside the pointer
// it publishes a mark (streams.h) after which the source is there, and, when it departs, one after
// which it has been read.
//
// Waiting yields a few times, then sleeps on a condition variable with a deadline: pure spinning is
// ruinous with more ranks than cores.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/communicator.h"
#include "src/run/device/streams.h"

namespace paradyse::local {

enum class CollectiveKind { exchange, exchange_sum, broadcast, reduce, shift, barrier };

inline const char* name(CollectiveKind kind) {
  static const char* const kNames[] = {
      "exchange", "exchange_sum", "broadcast", "reduce", "shift", "barrier"};
  return kNames[static_cast<int>(kind)];
}

// What a rank shows its peers during an operation.
struct Published {
  CollectiveKind kind = CollectiveKind::barrier;
  Call call;
  at::Tensor source;  // kept alive while peers may read, also when its rank fails
  MarkPtr ready;      // after what made the source
  std::string what;   // kind and call as text, made at once: views die with their program
};

// Shared by all ranks.
struct LocalWorld {
  explicit LocalWorld(int ranks, LocalOptions given) : options(given), counters(idx(ranks)) {}

  struct AtomicCounters {
    std::atomic<std::int64_t> bytes{0};
    std::atomic<std::int64_t> messages{0};
  };

  [[nodiscard]] std::chrono::milliseconds deadline() const {
    return std::max(options.deadline, allowed.load());
  }

  LocalOptions options;
  std::atomic<std::chrono::milliseconds> allowed{};
  std::vector<AtomicCounters> counters;
  std::atomic<bool> aborted{false};  // or interrupted
  std::mutex mutex;                  // of what follows
  std::string reason;
  bool for_good = false;  // aborted, not to be recovered from
  std::vector<int> recovering;
  std::int64_t recoveries = 0;
  std::string recovered_from;  // the reason of the last
  std::condition_variable changed;
  std::map<std::vector<int>, std::shared_ptr<struct Meeting>> meetings;
};

// Where the ranks of one group meet.
struct Meeting {
  static constexpr std::int64_t kSlots = 8;  // operations under way at once

  Meeting(LocalWorld& its_world, std::vector<int> group_ranks)
      : world(its_world), ranks(std::move(group_ranks)), issued(ranks.size()) {
    for (Slot& slot : slots) {
      slot.published.resize(ranks.size());
      slot.read.resize(ranks.size());
      slot.departed = std::vector<std::atomic<std::int64_t>>(ranks.size());
    }
  }

  struct Slot {
    std::vector<Published> published;                 // [rank]
    std::vector<MarkPtr> read;                        // [rank] after what it read
    std::vector<std::atomic<std::int64_t>> departed;  // [rank] 1 + the last operation it left here

    [[nodiscard]] bool left_by_all(std::int64_t number) const {
      return std::all_of(departed.begin(), departed.end(), [&](const auto& of_rank) {
        return of_rank.load() > number;
      });
    }
  };

  LocalWorld& world;
  const std::vector<int> ranks;                   // world ranks
  std::vector<std::atomic<std::int64_t>> issued;  // operations of each rank
  std::array<Slot, kSlots> slots;
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<int> sleepers{0};

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }

  void announce() {
    if (sleepers.load() > 0) {
      {
        const std::lock_guard lock(mutex);
      }
      changed.notify_all();
    }
  }

  // Returns once ready() holds; throws when a rank has failed, or past the deadline with late().
  template <typename Ready, typename Late>
  void await(Ready ready, Late late) {
    for (int i = 0; i < 16; ++i) {
      if (ready()) {
        return;
      }
      std::this_thread::yield();
    }
    const auto deadline = std::chrono::steady_clock::now() + world.deadline();
    std::unique_lock lock(mutex);
    sleepers.fetch_add(1);
    const bool came =
        changed.wait_until(lock, deadline, [&] { return ready() || world.aborted.load(); });
    sleepers.fetch_sub(1);
    lock.unlock();
    if (ready()) {
      return;
    }
    if (world.aborted.load()) {
      const std::lock_guard world_lock(world.mutex);
      throw Aborted(world.reason);
    }
    if (!came) {
      throw CommunicatorError(late());
    }
  }

  void check_not_aborted() const {
    if (world.aborted.load()) {
      const std::lock_guard lock(world.mutex);
      throw Aborted(world.reason);
    }
  }
};

// The communicators of one rank.
std::unique_ptr<Communicators> communicators(LocalWorld& world, int rank, int size);

}  // namespace paradyse::local
