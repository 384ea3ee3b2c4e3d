#include "src/run/comm/gloo/watch.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "paradyse/communicator.h"

namespace paradyse::gloo {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Json = nlohmann::json;

constexpr milliseconds kPatience{1500};  // for word from the store, once something is wrong
constexpr milliseconds kLeavingTick{20};

std::string key(const char* name, int rank) { return fmt::format("{}/{}", name, rank); }

// What is known of another rank.
struct Sight {
  std::string text;           // its last state
  Clock::time_point changed;  // when that was news
  std::optional<Wait> wait;
};

}  // namespace

// The thread keeps it alive, which may outlive the Watch.
struct Watch::Shared {
  std::shared_ptr<Store> store;
  int rank = 0;
  int size = 1;
  milliseconds deadline{0};
  milliseconds tick{0};
  std::string rendezvous;

  mutable std::mutex mutex;  // of what follows
  std::condition_variable changed;
  bool stop = false;
  bool hurry = false;              // the next round shall not wait for its tick
  bool ended = false;              // the thread
  std::optional<std::string> ask;  // a failure of this rank that is to be told
  std::string reason;              // the first failure of all ranks
  bool failed = false;
  bool found_here = false;  // this rank's watch found it
  bool told = false;        // the store has it
  Message* message = nullptr;
  std::optional<Wait> wait;
  Clock::time_point since;  // it waits
  std::vector<Sight> sights;
  bool leaving = false;
  bool all_done = false;
  std::int64_t beat = 0;
  Clock::time_point heard = Clock::now();  // the store answered

  // With the mutex held.
  void note_failure(const std::string& why, bool here) {
    if (!failed) {
      failed = true;
      found_here = here;
      reason = why;
    }
    if (message != nullptr) {
      message->abort();
    }
    changed.notify_all();
  }

  [[noreturn]] void throw_failure() const {  // with the mutex held
    if (found_here) {
      throw CommunicatorError(reason);
    }
    throw Aborted(reason);
  }

  // One round with the store; what it says may take long, so the mutex is free then.
  void round() {
    std::optional<std::string> asked;
    Json state;
    bool look = false;
    {
      const std::lock_guard lock(mutex);
      asked = ask;
      hurry = false;
      state["beat"] = ++beat;
      if (wait) {
        state["for"] = wait->rank;
        state["where"] = wait->where;
        state["what"] = wait->what;
        look = Clock::now() - since > tick;
      }
      look = look || leaving;
    }
    if (asked) {
      const std::string first = store->set_once("failed", *asked);
      const std::lock_guard lock(mutex);
      told = true;
      note_failure(first, first == *asked);
      return;
    }
    store->set(key("state", rank), state.dump());
    if (const auto first = store->get("failed")) {
      const std::lock_guard lock(mutex);
      told = true;
      note_failure(*first, false);
      return;
    }
    if (look) {
      std::vector<std::string> keys;
      for (int r = 0; r < size; ++r) {
        keys.push_back(key("state", r));
      }
      const auto states = store->get_all(keys);
      const std::lock_guard lock(mutex);
      heard = Clock::now();
      see(states);
    }
    bool is_leaving = false;
    {
      const std::lock_guard lock(mutex);
      is_leaving = leaving;
    }
    if (is_leaving) {
      store->set(key("done", rank), "");
      for (int r = 0; r < size; ++r) {
        if (!store->get(key("done", r))) {
          return;
        }
      }
      const std::lock_guard lock(mutex);
      all_done = true;
      changed.notify_all();
    }
  }

  // With the mutex held.
  void see(const std::vector<std::string>& states) {
    for (std::size_t r = 0; r < states.size(); ++r) {
      Sight& sight = sights[r];
      if (sight.text == states[r]) {
        continue;
      }
      sight.text = states[r];
      sight.changed = Clock::now();
      sight.wait.reset();
      const Json state = Json::parse(states[r]);
      if (state.contains("for")) {
        sight.wait = Wait{state["for"], state["where"], state["what"]};
      }
      // Ranks in the same operation that call it by different names wait for each other for ever.
      if (wait && sight.wait && sight.wait->where == wait->where &&
          sight.wait->what != wait->what) {
        const bool first = rank < static_cast<int>(r);
        ask = fmt::format(
            "ranks disagree about {}: rank {} is in {}, rank {} in {}",
            wait->where,
            first ? rank : static_cast<int>(r),
            first ? wait->what : sight.wait->what,
            first ? static_cast<int>(r) : rank,
            first ? sight.wait->what : wait->what);
        hurry = true;
      }
    }
  }

  [[nodiscard]] bool silent(int r) const {
    return Clock::now() - sights[static_cast<std::size_t>(r)].changed >
           std::max(6 * tick, milliseconds(1000));
  }

  // With the mutex held: from the rank that is waited for to the one that all wait for.
  [[nodiscard]] std::string late(const Wait& w) const {
    std::string text = fmt::format(
        "rank {} waited {} ms in {} for rank {}", rank, deadline.count(), w.what, w.rank);
    int r = w.rank;
    std::set<int> passed = {rank};
    while (passed.insert(r).second) {
      const auto& sight = sights[static_cast<std::size_t>(r)];
      if (silent(r) || !sight.wait) {
        break;
      }
      text += fmt::format(", which waits in {} for rank {}", sight.wait->what, sight.wait->rank);
      r = sight.wait->rank;
    }
    if (Clock::now() - heard > deadline / 2) {
      return fmt::format("{}; the rendezvous at {} does not answer either", text, rendezvous);
    }
    return fmt::format(
        "{}; rank {} {}. A longer deadline is set with --deadline",
        text,
        r,
        silent(r) ? "gives no sign of life: it is stopped, gone or out of reach"
                  : "is stuck or slow");
  }

  void run() {
    bool open = true;
    while (open) {
      try {
        round();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        told = true;
        note_failure(
            fmt::format("rank {} lost the rendezvous at {}: {}", rank, rendezvous, error.what()),
            true);
        open = false;
      }
      std::unique_lock lock(mutex);
      changed.wait_for(
          lock, leaving ? std::min(tick, kLeavingTick) : tick, [&] { return stop || hurry; });
      open = open && !stop && !(failed && told);
    }
    try {
      store->set(key("left", rank), "");
    } catch (const std::exception&) {  // there is nobody left to tell
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }
};

Watch::Watch(
    std::shared_ptr<Store> store, int rank, int size, milliseconds deadline, std::string rendezvous)
    : shared_(std::make_shared<Shared>()) {
  shared_->store = std::move(store);
  shared_->rank = rank;
  shared_->size = size;
  shared_->deadline = deadline;
  shared_->tick = std::clamp(deadline / 10, milliseconds(20), milliseconds(250));
  shared_->rendezvous = std::move(rendezvous);
  shared_->sights.assign(
      static_cast<std::size_t>(size), Sight{.text = "", .changed = Clock::now(), .wait = {}});
  shared_->store->set(key("state", rank), "{}");  // peers may look before the first round
  thread_ = std::thread([shared = shared_] { shared->run(); });
}

Watch::~Watch() {
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, kPatience, [&] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Watch::check() const {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->failed) {
    throw Aborted(shared_->reason);
  }
}

void Watch::await(Message& message, const Wait& wait) {
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->failed) {
      shared_->throw_failure();
    }
    shared_->message = &message;
    shared_->wait = wait;
    shared_->since = Clock::now();
  }
  const auto over = [&] {
    const std::lock_guard lock(shared_->mutex);
    shared_->message = nullptr;
    shared_->wait.reset();
  };
  const auto begin = Clock::now();
  try {
    const bool through = message.wait(shared_->deadline);
    over();
    if (through) {
      return;
    }
  } catch (const std::exception& error) {
    over();
    if (Clock::now() - begin < shared_->deadline) {
      lost(wait, error.what());
    }
  }
  std::string why;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->failed) {
      shared_->throw_failure();
    }
    why = shared_->late(wait);
  }
  if (const std::string first = fail(why); first != why) {
    throw Aborted(first);
  }
  throw CommunicatorError(why);
}

bool Watch::failed_first() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->failed && shared_->found_here;
}

std::string Watch::fail(const std::string& reason) {
  std::unique_lock lock(shared_->mutex);
  if (!shared_->failed) {
    shared_->ask = reason;
    shared_->hurry = true;
    shared_->changed.notify_all();
    shared_->changed.wait_for(lock, kPatience, [&] { return shared_->told || shared_->ended; });
    shared_->note_failure(reason, true);  // when the store does not answer
  }
  return shared_->reason;
}

void Watch::lost(const Wait& wait, const std::string& error) {
  // A rank that fails says so before it closes its connections: its word comes first.
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, kPatience, [&] { return shared_->failed; });
  if (shared_->failed) {
    shared_->throw_failure();
  }
  lock.unlock();
  const std::string why = fmt::format(
      "rank {} is gone, killed or crashed: its connection broke while rank {} was in {} ({})",
      wait.rank,
      shared_->rank,
      wait.what,
      error);
  if (const std::string first = fail(why); first != why) {
    throw Aborted(first);
  }
  throw CommunicatorError(why);
}

void Watch::leave() {
  std::unique_lock lock(shared_->mutex);
  shared_->leaving = true;
  shared_->hurry = true;
  shared_->changed.notify_all();
  const auto begin = Clock::now();
  while (!shared_->changed.wait_for(
      lock, shared_->tick, [&] { return shared_->failed || shared_->all_done; })) {
    for (int r = 0; r < shared_->size; ++r) {
      const auto seen = std::max(begin, shared_->sights[static_cast<std::size_t>(r)].changed);
      if (Clock::now() - seen > shared_->deadline) {
        shared_->note_failure(
            fmt::format(
                "rank {} was through, but rank {} gave no sign of life for {} ms",
                shared_->rank,
                r,
                shared_->deadline.count()),
            true);
        break;
      }
    }
  }
  if (shared_->failed) {
    shared_->throw_failure();
  }
}

}  // namespace paradyse::gloo
