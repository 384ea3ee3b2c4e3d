// How ranks exchange tensors: one interface, several backends.
//
// `exchange` runs a copy table (transfer.h): it is all-gather, all-to-all and slice, even or not.
// `exchange_sum` runs its transpose: reduce-scatter and the adjoint of the others.  Every rank of
// the communicator calls the same operations in the same order with the same table; each operation
// carries a name and peers compare names, so a rank that took another path is found, not waited
// for.
//
// All ranks wait for operations under way in the same order; for those with a stable source (Call),
// which need nothing of other ranks but that they have issued them, in any.  A backend has room for
// at least 8; to issue one more than it has completes the oldest first.
//
// Every wait has a deadline; past it CommunicatorError names the operation and the ranks that did
// not come.  When a rank fails, abort() frees all that wait for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/detail/transfer.h"

namespace paradyse {

// A deadline passed, or ranks disagree about what comes next.
class CommunicatorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Another rank failed first; the message is that rank's.
class Aborted : public std::runtime_error {
 public:
  explicit Aborted(const std::string& message, bool bad_input = false)
      : std::runtime_error(message), bad_input_(bad_input) {}
  // What that rank was given was wrong: all end as it does.
  [[nodiscard]] bool bad_input() const { return bad_input_; }

 private:
  bool bad_input_;
};

// Names an operation in messages, traces and the check that all ranks do the same.
struct Call {
  std::string_view op;    // what it is for: "gather_weights"; a literal
  std::string_view part;  // "attention"; outlives the communicator's use of it
  std::int64_t layer = -1;
  // The caller promises not to change the source before all ranks meet again in some later
  // operation of this communicator that waits for them (parameters: they change in the optimizer).
  bool stable_source = false;

  friend bool operator==(const Call&, const Call&) = default;
};
std::string to_string(const Call& call);

// An operation under way.
class Pending {
 public:
  virtual ~Pending() = default;
  // Post: results are there, and the source may be changed (but for Call::stable_source).
  virtual void wait() = 0;
};

struct Counters {
  std::int64_t bytes_sent = 0;  // to other ranks
  std::int64_t messages = 0;    // to other ranks that got any bytes
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // `to` = C `from`.  Both are contiguous, of the table's numbers of elements; `to` is there.
  virtual std::unique_ptr<Pending> exchange(
      const at::Tensor& from, const at::Tensor& to, const Transfer& table, const Call& call) = 0;
  // `to` = C^T `from`, or added to `to`.  `to` may be wider (float32 sums of bfloat16).  Adds in
  // the order of ranks: the same bits every time.
  virtual std::unique_ptr<Pending> exchange_sum(
      const at::Tensor& from,
      const at::Tensor& to,
      const Transfer& table,
      bool accumulate,
      const Call& call) = 0;
  // Everybody's `tensor` becomes the sum, the same bits on every rank.  Contiguous.
  virtual void all_reduce(const at::Tensor& tensor, const Call& call);
  // Everybody's `tensor` becomes root's; root's becomes the sum.
  virtual void broadcast(const at::Tensor& tensor, int root, const Call& call) = 0;
  virtual void reduce(const at::Tensor& tensor, int root, const Call& call) = 0;
  // `to` = what rank - hops (modulo size) has in `from`; of its shape.
  virtual std::unique_ptr<Pending> shift(
      const at::Tensor& from, const at::Tensor& to, int hops, const Call& call) = 0;
  virtual void barrier(const Call& call) = 0;
};

// The communicators of one rank: the world and groups inside it, each made once for its set of
// ranks and kept.
class Communicators {
 public:
  virtual ~Communicators() = default;

  [[nodiscard]] virtual int rank() const = 0;  // in the world
  [[nodiscard]] virtual int size() const = 0;
  virtual Communicator& world() = 0;
  // `ranks`: ascending world ranks, this one among them.
  virtual Communicator& group(const std::vector<int>& ranks) = 0;
  // Sent by this rank since the start, over all of its communicators.  Exact once all ranks are
  // through with an operation.
  [[nodiscard]] virtual Counters counters() const = 0;
  // Until it is called again, this rank waits at least so long for another, and no less than its
  // deadline: what the others do before they meet may take long.
  virtual void allow(std::chrono::milliseconds least) = 0;
  // Frees every rank that waits, now or later: they throw Aborted with this message.
  virtual void abort(const std::string& message) = 0;

  // A failure that all ranks go on from, as of memory.  The rank that fails calls interrupt(): all
  // that wait, now or later, throw Aborted with its message.  Then every rank, having left all
  // operations and dropped what they gave it, calls recover(): it returns when all have, with the
  // first message, and all communicators are as new (what world() and group() gave before is gone).
  // Throws Aborted when another rank failed for good, CommunicatorError naming the ranks that did
  // not come before the deadline.  Where recovers() is false, interrupt() is abort().
  [[nodiscard]] virtual bool recovers() const { return false; }
  virtual void interrupt(const std::string& message) { abort(message); }
  virtual std::string recover();
};

struct LocalOptions {
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  // How long after a failure ranks may take to notice; then the process ends with the failure's
  // message and exit status 70, since a thread cannot be stopped.
  std::chrono::milliseconds grace = std::chrono::seconds(60);
};

// With a deadline in seconds.  Throws std::invalid_argument naming --deadline unless it is more
// than 0 and at most a million.
LocalOptions local_options(double deadline_seconds);

// Runs body(communicators) on `ranks` threads of this process that exchange through shared memory.
// torch runs one thread in each.  Returns when all are done; throws what the first failing rank
// threw.
void run_local_ranks(
    int ranks,
    const LocalOptions& options,
    const std::function<void(Communicators& communicators)>& body);

}  // namespace paradyse
