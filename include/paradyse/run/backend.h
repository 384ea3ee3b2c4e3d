// Where ranks come from: threads of this process (`local`), or processes of which this is one
// (`gloo`, and `nccl` with a GPU for each).
//
// Whoever needs ranks says backend.run(ranks, body) and does not ask which it is.  Only what a run
// gives back differs: it is known to the process of rank 0, which alone prints and writes files.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "paradyse/run/communicator.h"

namespace paradyse {

class Backend {
 public:
  using Body = std::function<void(Communicators& communicators)>;

  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string name() const = 0;
  // The lowest rank of this process; each process counts what it uses as that rank's.
  [[nodiscard]] virtual int first_rank() const = 0;
  [[nodiscard]] bool leads() const { return first_rank() == 0; }
  // Of the first `ranks` ranks those of a node (machine), one after the other, as many on each; all
  // of them where there is one node, or nodes have unequal numbers or other orders.
  [[nodiscard]] virtual int ranks_per_node(int ranks) const = 0;

  // Runs body(communicators) on ranks 0 to ranks - 1, those of this process here, and returns when
  // they are done; every process calls it with the same number.  Throws what the first failing rank
  // of this process threw: Aborted where a rank of another process failed first.
  // Throws std::invalid_argument for fewer than one rank, or more than there are processes.
  virtual void run(int ranks, const Body& body) = 0;

  // Waits until every process is through.  Nothing is run after it.
  virtual void leave() = 0;
  // Frees all ranks of all processes with this message; `bad_input`: Aborted::bad_input() of what
  // they throw.  Whether it was the first failure.
  virtual bool fail(const std::string& message, bool bad_input) = 0;
};

// Threads of this process.
std::shared_ptr<Backend> local_backend(const LocalOptions& options = {});

struct GlooOptions {
  int rank = 0;
  int size = 1;  // processes
  std::string host = "127.0.0.1";
  int port = 29500;
  bool kept_elsewhere = false;  // the rendezvous: by a launcher, not by rank 0's process
  // Of the run, alike in all its processes, by which they know one another; "": none, and `host` is
  // of the loopback interface.
  std::string secret;
  std::string attempt;    // ranks of one attempt meet; a restart of a job is another
  std::string interface;  // "": the one that leads to `host`
  // Where torchrun keeps a store of its own, in which rank 0 says at which port the rendezvous is;
  // port 0: nowhere, and the rendezvous is at `port`.
  std::string agent_host = {};
  int agent_port = 0;
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  std::chrono::milliseconds patience = std::chrono::seconds(10);  // to reach the rendezvous, a peer
};

// This process as one rank of many.  Throws CommunicatorError, naming the address, when the
// rendezvous or a peer is not reached within the patience, or naming the ranks that did not come
// within the deadline, or the process that has this one's rank already; std::invalid_argument for
// an interface that is not there, and for a rendezvous that other machines reach where there is no
// secret.
std::shared_ptr<Backend> gloo_backend(const GlooOptions& options);

// As gloo_backend, each process with a GPU of its own: tensors on it go over NCCL, those of the
// host and all control over gloo.  Throws std::invalid_argument saying what to do in a build
// without CUDA, and where this process has no GPU.
std::shared_ptr<Backend> nccl_backend(const GlooOptions& options);

// A rendezvous for the ranks of a run that know its secret, at `host` alone, or at the interface
// where `host` is not this machine's, and `port` (0: any that is free), as long as it lives. Throws
// as gloo_backend.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  [[nodiscard]] virtual int port() const = 0;
  // Returns when `ranks` ranks have had their last word, or some seconds have passed: those of
  // another machine may be through later than this one's.
  virtual void await_leaving(int ranks, const std::string& attempt) = 0;
};
std::unique_ptr<Rendezvous> serve_rendezvous(
    const std::string& host,
    int port,
    const std::string& secret,
    const std::string& interface = "");

}  // namespace paradyse
