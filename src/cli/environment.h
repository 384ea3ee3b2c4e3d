// Which of several processes this one is, by what its launcher says.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace paradyse::cli {

// "True": `paradyse launch` keeps the rendezvous.
inline constexpr const char* kLaunched = "PARADYSE_LAUNCHED";

struct Membership {
  std::string launcher;  // "paradyse launch", "torchrun", "SLURM", "mpirun": for messages
  int rank = 0;
  int size = 1;
  std::string host;             // where rank 0's process keeps the rendezvous; "": not said
  int port = 29500;             // torchrun's own default
  bool kept_elsewhere = false;  // the rendezvous is kept by `paradyse launch`
  bool agent = false;           // at host and port torchrun keeps a store of its own
  bool one_machine = false;     // the launcher says that all processes are on this one
  std::string attempt;          // of a job that the launcher restarts
};

// From the environment of `paradyse launch`, torchrun, SLURM or an MPI launcher (Open MPI, and
// those with PMI); none where there is no sign of one.  MASTER_ADDR and MASTER_PORT come before
// what a launcher says.  Throws std::invalid_argument for numbers that are none.
std::optional<Membership> membership(
    const std::function<const char*(const char* name)>& variable = ::getenv);

}  // namespace paradyse::cli
