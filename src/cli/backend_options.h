// --backend and what belongs to it, for the commands that start ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "paradyse/run/backend.h"
#include "src/cli/commands.h"
#include "src/run/train/agreement.h"

namespace paradyse::cli {

struct BackendOptions {
  // auto: where a launcher started several processes gloo, or nccl for GPUs; else local.
  std::string backend = "auto";
  std::string device = "cpu";    // or "cuda"
  std::string rendezvous;        // "": what the launcher says
  std::string secret_file;       // "": PARADYSE_SECRET, or the file that PARADYSE_SECRET_FILE names
  std::string interface;         // "": GLOO_SOCKET_IFNAME, or the one that leads to the rendezvous
  double deadline_seconds = 60;  // of a wait for another rank
};

void add_backend_options(Command& command, BackendOptions& options);
void add_secret_option(Command& command, std::string& secret_file);
// For commands that compute.
void add_device_option(Command& command, BackendOptions& options);

// How many ranks there shall be: over gloo as many as processes, else those asked for (0: not
// said), or `otherwise`.  Throws std::invalid_argument where what was asked for is another number
// than that of the processes, for a backend or a device that this program or machine lacks, and for
// two that do not go together.
int ranks_of(const BackendOptions& options, int asked, int otherwise);

// What a command that takes no configuration was given: its options, but for names of files and how
// processes find one another.
std::vector<Given> given_by(const Common& common);

// Runs main on the backend and gives its exit code.  Processes compare `given` and their program
// first (agreement.h).  Ranks end together and with one code: when one fails, the others hear of
// it.  Rank 0 throws what went wrong; others print it where they were the first to fail, or where
// ranks were given different things.
int on_backend(
    const BackendOptions& options,
    const std::vector<Given>& given,
    const std::function<int(const std::shared_ptr<Backend>& backend)>& main);

// Where this process is one of several, `command` has ranks and on_backend() was not come to: tells
// the others, which wait for this rank, what went wrong here.
void tell_other_ranks(const CLI::App& command, const Failure& failure, int argc, char** argv);

// The secret of this run: that of the file, where one is named, else of the environment; "" where
// neither says one.  Throws std::invalid_argument for one that cannot be taken.
std::string run_secret(const std::string& secret_file);

// "HOST", "HOST:PORT" or "[ADDRESS]:PORT"; a port that is not there leaves `port` as it is.  Throws
// std::invalid_argument.
void parse_rendezvous(const std::string& text, std::string& host, int& port);

}  // namespace paradyse::cli
