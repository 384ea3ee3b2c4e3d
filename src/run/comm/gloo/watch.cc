#include "src/run/comm/gloo/watch.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/communicator.h"
#include "src/run/comm/rendezvous/printable.h"

namespace paradyse::gloo {
namespace {

using Clock = std::chrono::steady_clock;
using rendezvous::printable;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{1500};  // for word from the store, once something is wrong
constexpr milliseconds kMeetingTick{20};

std::string key(std::string_view name, int rank) { return fmt::format("{}/{}", name, rank); }
// Before the reason of a failure in the store: what a rank was given was wrong.
constexpr char kBadInput = '\x02';
std::string interruption_key(const std::string& epoch) { return "interrupted/" + epoch; }

// Where this rank meets others.
struct Assembly {
  std::string place;
  std::vector<int> missing;
  std::optional<std::string> word;  // all have come; what interrupted the epoch, or ""
};

// "rank 2", "ranks 0, 2"
std::string named(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

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
  std::atomic<milliseconds> allowed{};  // for a rank, where that is more
  milliseconds tick{0};
  std::string rendezvous;

  mutable std::mutex mutex;  // of what follows
  std::condition_variable changed;
  bool stop = false;
  bool hurry = false;              // the next round shall not wait for its tick
  bool ended = false;              // the thread
  std::optional<std::string> ask;  // a failure of this rank that is to be told
  std::string reason;              // the first failure of all ranks
  bool bad_input = false;          // and whether it was of what a rank was given
  bool failed = false;
  bool found_here = false;  // this rank's watch found it
  bool told = false;        // the store has it
  std::string epoch;
  std::optional<std::string> ask_interruption;  // of this epoch, by this rank
  std::optional<std::string> interruption;      // the first
  std::optional<Assembly> meeting;
  Message* message = nullptr;
  std::optional<Wait> wait;
  Clock::time_point since;  // it waits
  std::vector<Sight> sights;
  bool leaving = false;
  bool all_done = false;
  std::int64_t beat = 0;
  Clock::time_point heard = Clock::now();  // the store answered

  // With the mutex held; `why` as it stands in the store.
  void note_failure(const std::string& why, bool here) {
    if (!failed) {
      failed = true;
      found_here = here;
      bad_input = why.starts_with(kBadInput);
      const std::string said = why.substr(bad_input ? 1 : 0);
      reason = here ? said : printable(said);
    }
    if (message != nullptr) {
      message->abort();
    }
    changed.notify_all();
  }

  // With the mutex held.
  void note_interruption(const std::string& of, const std::string& why) {
    if (of != epoch) {  // that one is over
      return;
    }
    ask_interruption.reset();
    if (!interruption) {
      interruption = printable(why);
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
    throw Aborted(reason, bad_input);
  }

  // With the mutex held.
  void throw_if_over() const {
    if (failed) {
      throw_failure();
    }
    if (interruption) {
      throw Aborted(*interruption);
    }
  }

  // One round with the store; what it says may take long, so the mutex is free then.
  void round() {
    std::optional<std::string> asked;
    std::optional<std::string> asked_interruption;
    std::string now;  // the epoch
    bool interrupted = false;
    std::optional<Assembly> met;
    std::string state;
    bool look = false;
    {
      const std::lock_guard lock(mutex);
      asked = ask;
      asked_interruption = ask_interruption;
      now = epoch;
      interrupted = interruption.has_value();
      met = meeting;
      hurry = false;
      state = state_text(++beat, wait);
      look = (wait && Clock::now() - since > tick) || leaving || met.has_value();
    }
    if (asked) {
      const std::string first = store->set_once("failed", *asked);
      const std::lock_guard lock(mutex);
      told = true;
      note_failure(first, first == *asked);
      return;
    }
    store->set(key("state", rank), state);
    if (const auto first = store->get("failed")) {
      const std::lock_guard lock(mutex);
      told = true;
      note_failure(*first, false);
      return;
    }
    if (!now.empty() && (asked_interruption || !interrupted)) {
      const auto first = asked_interruption
                             ? store->set_once(interruption_key(now), *asked_interruption)
                             : store->get(interruption_key(now));
      if (first) {
        const std::lock_guard lock(mutex);
        note_interruption(now, *first);
      }
    }
    if (met) {
      look_around(*std::move(met), now);
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

  // Says that this rank has come to where it meets others, and looks for them.
  void look_around(Assembly met, const std::string& now) {
    const std::string name = "met/" + met.place;
    store->set(key(name, rank), "");
    std::erase_if(met.missing, [&](int r) { return store->get(key(name, r)).has_value(); });
    if (met.missing.empty()) {
      // Who interrupts says so before it comes: the store has the first word of all.
      met.word = now.empty() ? "" : store->get(interruption_key(now)).value_or("");
    }
    const std::lock_guard lock(mutex);
    heard = Clock::now();
    if (!meeting || meeting->place != met.place) {  // it has been given up
      return;
    }
    if (wait && !met.missing.empty()) {
      wait->rank = met.missing.front();
    }
    meeting = std::move(met);
    changed.notify_all();
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
      try {
        sight.wait = wait_in(states[r], static_cast<int>(r), size);
      } catch (const std::runtime_error& error) {  // the store is well: who writes there is not
        ask = error.what();
        hurry = true;
        continue;
      }
      // Ranks in the same operation that call it by different names wait for each other for ever.
      if (wait && sight.wait && sight.wait->where == wait->where &&
          sight.wait->what != wait->what) {
        const bool first = rank < static_cast<int>(r);
        ask = fmt::format(
            "ranks disagree about {}: rank {} is in {}, rank {} in {}",
            wait->where,
            first ? rank : static_cast<int>(r),
            first ? wait->what : printable(sight.wait->what),
            first ? static_cast<int>(r) : rank,
            first ? printable(sight.wait->what) : wait->what);
        hurry = true;
      }
    }
  }

  [[nodiscard]] bool silent(int r) const {
    return Clock::now() - sights[idx(r)].changed > silence();
  }
  [[nodiscard]] milliseconds longest() const { return std::max(deadline, allowed.load()); }
  [[nodiscard]] milliseconds silence() const { return std::max(6 * tick, milliseconds(1000)); }

  // With the mutex held: those of `ranks` without a sign of life; it has been looked for since
  // `begin`.
  [[nodiscard]] std::vector<int> silent_of(
      const std::vector<int>& ranks, Clock::time_point begin) const {
    std::vector<int> found;
    if (Clock::now() - begin > silence()) {
      std::copy_if(
          ranks.begin(), ranks.end(), std::back_inserter(found), [&](int r) { return silent(r); });
    }
    return found;
  }

  // With the mutex held: from the rank that is waited for to the one that all wait for.
  [[nodiscard]] std::string late(const Wait& w) const {
    std::string text = fmt::format(
        "rank {} waited {} ms in {} for rank {}", rank, longest().count(), w.what, w.rank);
    int r = w.rank;
    std::set<int> passed = {rank};
    while (passed.insert(r).second) {
      const auto& sight = sights[idx(r)];
      if (silent(r) || !sight.wait) {
        break;
      }
      text += fmt::format(
          ", which waits in {} for rank {}", printable(sight.wait->what), sight.wait->rank);
      r = sight.wait->rank;
    }
    if (Clock::now() - heard > deadline / 2) {
      return fmt::format("{}; the rendezvous at {} does not answer either", text, rendezvous);
    }
    return fmt::format(
        "{}; rank {} {}. Give --timeout more seconds to wait longer",
        text,
        r,
        silent(r) ? "gives no sign of life: it is stopped, gone or unreachable"
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
      changed.wait_for(lock, leaving || meeting ? std::min(tick, kMeetingTick) : tick, [&] {
        return stop || hurry;
      });
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

// What this rank waits in other than a message; the mutex is held when it begins and ends.
class Watch::Stay {
 public:
  Stay(Shared& shared, Wait wait) : shared_(shared) {
    shared_.wait = std::move(wait);
    shared_.since = Clock::now();
  }
  ~Stay() { shared_.wait.reset(); }
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;

 private:
  Shared& shared_;
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
  shared_->sights.assign(idx(size), Sight{.text = "", .changed = Clock::now(), .wait = {}});
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

void Watch::allow(milliseconds least) { shared_->allowed.store(least); }

void Watch::check() const {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->failed) {
    throw Aborted(shared_->reason, shared_->bad_input);
  }
  shared_->throw_if_over();
}

void Watch::await(Message& message, const Wait& wait) {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->throw_if_over();
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
    const bool through = message.wait(shared_->longest());
    over();
    if (through) {
      return;
    }
  } catch (const CommunicatorError& error) {  // no connection: it says itself what is wrong
    over();
    fail_unless_told(fmt::format("rank {} in {}: {}", shared_->rank, wait.what, error.what()));
  } catch (const std::exception& error) {
    over();
    if (Clock::now() - begin < shared_->longest()) {
      lost(wait, error.what());
    }
  }
  std::string why;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->throw_if_over();
    why = shared_->late(wait);
  }
  fail_with(why);
}

void Watch::fail_with(const std::string& why) {
  if (const std::string first = fail(why); first != why) {
    const std::lock_guard lock(shared_->mutex);
    throw Aborted(first, shared_->bad_input);
  }
  throw CommunicatorError(why);
}

bool Watch::failed_first() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->failed && shared_->found_here;
}

std::string Watch::fail(const std::string& reason, bool bad_input) {
  std::unique_lock lock(shared_->mutex);
  if (!shared_->failed) {
    const std::string word = (bad_input ? std::string(1, kBadInput) : "") + reason;
    shared_->ask = word;
    shared_->hurry = true;
    shared_->changed.notify_all();
    shared_->changed.wait_for(lock, kPatience, [&] { return shared_->told || shared_->ended; });
    shared_->note_failure(word, true);  // when the store does not answer
  }
  return shared_->reason;
}

void Watch::lost(const Wait& wait, const std::string& error) {
  fail_unless_told(fmt::format(
      "rank {} is gone, killed or crashed: its connection broke while rank {} was in {} ({})",
      wait.rank,
      shared_->rank,
      wait.what,
      error));
}

void Watch::fail_unless_told(const std::string& why) {
  // A rank that fails says so before it closes its connections: its word comes first.
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(
      lock, kPatience, [&] { return shared_->failed || shared_->interruption; });
  shared_->throw_if_over();
  lock.unlock();
  fail_with(why);
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
      const auto seen = std::max(begin, shared_->sights[idx(r)].changed);
      if (Clock::now() - seen > shared_->deadline) {
        shared_->note_failure(
            fmt::format(
                "rank {} had finished, but rank {} gave no sign of life for {} ms",
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

void Watch::enter(const std::string& epoch) {
  const std::lock_guard lock(shared_->mutex);
  shared_->epoch = epoch;
  shared_->ask_interruption.reset();
  shared_->interruption.reset();
}

void Watch::interrupt(const std::string& reason) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->failed || shared_->interruption || shared_->epoch.empty()) {
    return;
  }
  shared_->ask_interruption = reason;
  shared_->hurry = true;
  shared_->changed.notify_all();
  shared_->changed.wait_for(
      lock, kPatience, [&] { return shared_->failed || shared_->interruption || shared_->ended; });
  if (!shared_->interruption) {  // when the store does not answer; it shall be asked all the same
    shared_->interruption = reason;
  }
}

std::string Watch::interruption() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->interruption.value_or("");
}

std::string Watch::meet(const std::string& place, int ranks, const std::string& purpose) {
  std::string why;
  {
    std::unique_lock lock(shared_->mutex);
    const auto begin = Clock::now();
    Assembly meeting{.place = place, .missing = {}, .word = {}};
    for (int r = 0; r < ranks; ++r) {
      if (r != shared_->rank) {
        meeting.missing.push_back(r);
      }
    }
    const Stay stay(*shared_, {.rank = shared_->rank, .where = place, .what = "meeting"});
    shared_->meeting = std::move(meeting);
    shared_->hurry = true;
    shared_->changed.notify_all();
    shared_->changed.wait_for(
        lock, shared_->longest(), [&] { return shared_->failed || shared_->meeting->word; });
    const Assembly over = *std::exchange(shared_->meeting, std::nullopt);
    if (shared_->failed) {
      shared_->throw_failure();
    }
    if (over.word) {
      return *over.word;
    }
    why = fmt::format(
        "rank {} waited {} ms {}: ", shared_->rank, shared_->longest().count(), purpose);
    if (Clock::now() - std::max(begin, shared_->heard) > shared_->deadline / 2) {
      why += fmt::format("the rendezvous at {} does not answer", shared_->rendezvous);
    } else {
      const std::vector<int> silent = shared_->silent_of(over.missing, begin);
      why += fmt::format(
          "{} did not arrive{}. Give --timeout more seconds to wait longer",
          named(over.missing),
          silent.empty() ? "" : fmt::format(", no sign of life from {}", named(silent)));
    }
  }
  fail_with(why);
}

std::unique_ptr<Wire> Watch::await_wire(
    std::future<std::unique_ptr<Wire>> connecting, int ranks, milliseconds patience) {
  std::string why;
  {
    std::unique_lock lock(shared_->mutex);
    const auto begin = Clock::now();
    const Stay stay(*shared_, {.rank = shared_->rank, .where = "", .what = "connecting"});
    std::vector<int> all;
    for (int r = 0; r < ranks; ++r) {
      all.push_back(r);
    }
    const milliseconds time = std::min(patience, shared_->deadline);
    bool over = false;
    while (!over && !shared_->failed && Clock::now() - begin < time) {
      lock.unlock();
      over = connecting.wait_for(kMeetingTick) == std::future_status::ready;
      lock.lock();
      // For those that wait for this rank meanwhile, having connected before.
      if (const std::vector<int> silent = shared_->silent_of(all, begin); !silent.empty()) {
        shared_->wait->rank = silent.front();
      }
    }
    std::string error;
    if (over && !shared_->failed) {
      try {
        return connecting.get();
      } catch (const std::exception& failure) {
        error = fmt::format(" ({})", failure.what());
      }
    }
    // A rank that fails says so, and it takes time to know that one is gone.
    const auto word = std::max(kPatience, shared_->silence() + 2 * shared_->tick);
    shared_->changed.wait_for(lock, word, [&] { return shared_->failed; });
    if (shared_->failed) {
      shared_->throw_failure();
    }
    const std::vector<int> silent = shared_->silent_of(all, begin);
    why = fmt::format(
        "rank {} could not connect with the others of {} ranks within {} ms{}{}",
        shared_->rank,
        ranks,
        time.count(),
        silent.empty() ? "" : fmt::format(", no sign of life from {}", named(silent)),
        error);
  }
  fail_with(why);
}

}  // namespace paradyse::gloo
