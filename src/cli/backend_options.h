// --backend and what belongs to it, for the commands that start ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "paradyse/backend.h"
#include "src/cli/commands.h"

namespace paradyse::cli {

struct BackendOptions {
  std::string backend = "auto";  // gloo where a launcher started several processes, else local
  std::string rendezvous;        // "": what the launcher says
  std::string interface;         // "": GLOO_SOCKET_IFNAME, or the one that leads to the rendezvous
};

void add_backend_options(CLI::App& command, BackendOptions& options);

// How many ranks there shall be: over gloo as many as processes, else those asked for (0: not
// said), or `otherwise`.  Throws std::invalid_argument where what was asked for is another number
// than that of the processes, and for nccl.
int ranks_of(const BackendOptions& options, int asked, int otherwise);

// Runs main on the backend and gives its exit code.  Ranks end together: when one fails, the others
// hear of it.  Rank 0 throws what went wrong; others print it where they were the first to fail.
int on_backend(
    const BackendOptions& options,
    double deadline_seconds,
    const std::function<int(const std::shared_ptr<Backend>& backend)>& main);

// "HOST", "HOST:PORT" or "[ADDRESS]:PORT"; a port that is not there leaves `port` as it is.  Throws
// std::invalid_argument.
void parse_rendezvous(const std::string& text, std::string& host, int& port);

}  // namespace paradyse::cli
