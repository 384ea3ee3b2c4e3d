// What the `nccl` backend takes from `gloo`: rendezvous, watch, messages of the host.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "paradyse/run/backend.h"
#include "src/run/comm/gloo/communicator.h"

namespace paradyse::gloo {

// Puts communicators before those of gloo, in every run.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::unique_ptr<RankCommunicators> over(
      std::unique_ptr<RankCommunicators> gloo, int ranks) = 0;
};
// Called once all processes are connected.
using MakeLayer = std::function<std::unique_ptr<Layer>(Store& store, Watch& watch)>;

// gloo_backend with a layer; `name` is what it is called.
std::shared_ptr<Backend> layered_backend(
    const GlooOptions& options, const std::string& name, const MakeLayer& make);

// For a process that fails before it is a rank: tells the others at the rendezvous why, as
// Backend::fail does.  Takes at most `patience`; rank 0, where it keeps the rendezvous, keeps it
// until the others know, or so long.  Nothing where nobody can be reached.
void tell_failure(
    const GlooOptions& options,
    const std::string& message,
    bool bad_input,
    std::chrono::milliseconds patience);

}  // namespace paradyse::gloo
