// A thread of each process that looks after its rank: it tells the others that the rank lives and
// what it waits in, and hears when one of them has failed.
//
// All goes through the rendezvous' store, never over the connections that carry data: those are
// what may be stuck.  Keys: "state/RANK" changes with every tick, "failed" is set once, by the
// first rank that fails; "done/RANK" and "left/RANK" are set at the end.
//
// A failure is for good.  What ranks go on from is an *interruption*, of an *epoch*: the time from
// a run's begin or a recovery to the next.  "interrupted/EPOCH" is set once, by the first rank that
// interrupts it; "met/PLACE/RANK" says that a rank has come to a place where some meet.
//
// Who writes there knows the run's secret.  What is written is read all the same as if anybody had
// written it, and printed without its control characters.
#pragma once

#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "src/run/comm/gloo/wait_state.h"
#include "src/run/comm/gloo/wire.h"

namespace paradyse::gloo {

class Watch {
 public:
  // `rendezvous`: for messages, what the store is and who keeps it.
  Watch(
      std::shared_ptr<Store> store,
      int rank,
      int size,
      std::chrono::milliseconds deadline,
      std::string rendezvous);
  // Ends the thread; one that hangs in a store that does not answer is left to the process's end.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Returns when the message is through.  Throws Aborted when another rank failed or the epoch is
  // interrupted, and, as the first to know, CommunicatorError when ranks disagree, the deadline is
  // over or a peer is gone; one that the message throws (of NCCL) in its own words.
  void await(Message& message, const Wait& wait);
  // As Communicators::allow().
  void allow(std::chrono::milliseconds least);
  // Throws Aborted when some rank has failed, or the epoch is interrupted.
  void check() const;
  // The first failure of all ranks; this one's unless another was first.  `bad_input`: what others
  // then throw says so.
  std::string fail(const std::string& reason, bool bad_input = false);
  // The first failure of all ranks was this one's.
  [[nodiscard]] bool failed_first() const;
  // Says that a connection broke while this rank was in `wait`, or why.  Always throws.
  [[noreturn]] void lost(const Wait& wait, const std::string& error);
  // Returns when all ranks are here; throws as await() does.  No message may follow.
  void leave();

  // From here on this rank is in `epoch`, named alike by those that share it; "": in none.  What
  // interrupted another is no matter any more.
  void enter(const std::string& epoch);
  // Interrupts the epoch: all ranks in it that wait, now or later, throw Aborted with the first
  // reason.
  void interrupt(const std::string& reason);
  // "" where nothing is known to have interrupted the epoch.
  [[nodiscard]] std::string interruption() const;
  // Returns when ranks 0 to `ranks` - 1 have come to `place`, where they meet once, with what
  // interrupted the epoch ("": nothing), which does not end it.  Throws Aborted when some rank has
  // failed; CommunicatorError, past the deadline: what it waited for, `purpose`, and who did not
  // come.
  std::string meet(const std::string& place, int ranks, const std::string& purpose);
  // What `connecting` gives, in which this rank connects with the others of `ranks`.  Throws
  // Aborted when some rank has failed; CommunicatorError, with those that give no sign of life,
  // when it throws or takes longer than `patience` and the deadline allow.
  std::unique_ptr<Wire> await_wire(
      std::future<std::unique_ptr<Wire>> connecting, int ranks, std::chrono::milliseconds patience);

 private:
  struct Shared;
  class Stay;

  // As the first to know, or Aborted when another was.
  [[noreturn]] void fail_with(const std::string& why);
  // The same, once others have had the time to say what they failed of.
  [[noreturn]] void fail_unless_told(const std::string& why);

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace paradyse::gloo
