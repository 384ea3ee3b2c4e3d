// paradyse launch: starts a command as several processes of this machine, each of them a rank, with
// the environment that torchrun would give them.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "paradyse/plan/config.h"
#include "paradyse/run/backend.h"
#include "src/cli/backend_options.h"
#include "src/cli/commands.h"
#include "src/cli/environment.h"
#include "src/cli/interrupt.h"
#include "src/cli/run_options.h"
#include "src/cli/tell.h"
#include "src/run/comm/rendezvous/address.h"
#include "src/run/comm/rendezvous/client.h"
#include "src/run/comm/rendezvous/launchers.h"
#include "src/run/comm/rendezvous/secret.h"

extern "C" char** environ;

namespace paradyse::cli {
namespace {

struct LaunchOptions {
  int processes = 0;
  std::string nodes = "1";  // NUMBER, or MIN:MAX
  int least_nodes = 1;      // of `nodes`
  int most_nodes = 1;
  int node = 0;
  int restarts = 0;
  double join_timeout = 60;  // seconds

  // A restart goes on without nodes that are gone.
  [[nodiscard]] bool elastic() const { return least_nodes < most_nodes; }
  std::string rendezvous;
  std::string secret_file;
  std::string interface;
  std::vector<std::string> command;
};

// After a rank has failed the others hear of it and end by themselves, in this time; SIGKILL then
// ends those that cannot, since they are stopped.
constexpr std::chrono::seconds kGrace{10};

// Ranks that are interrupted wait for one another and then end together: after the first one the
// others have the time of such a wait, as far as the command says it, and no less than kGrace.
std::chrono::duration<double> grace_of_interrupted(const std::vector<std::string>& command) {
  const std::optional<LoadedConfig> said = configuration_said(command);
  const RunConfig config = said ? said->config : RunConfig{};
  return std::max<std::chrono::duration<double>>(
      kGrace, std::chrono::duration<double>(config.parallel.timeout_seconds));
}

// The signals that are to be forwarded: one that ends ranks, and SIGUSR1, which shall not hide it.
std::atomic<int> to_forward{0};
std::atomic<bool> to_save{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

extern "C" void ask_to_forward(int signal) {
  if (signal == SIGUSR1) {
    to_save.store(true);
  } else {  // a terminal that is closed ends what runs in it
    to_forward.store(signal == SIGHUP ? SIGTERM : signal);
  }
}

void on_signals(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) {  // nohup
    sigaction(SIGHUP, &action, nullptr);
  }
}

// As long as it lives, signals wait: one shall not reach a process that is not yet what it will be.
class SignalsWait {
 public:
  SignalsWait() {
    sigset_t all;
    sigemptyset(&all);
    sigaddset(&all, SIGINT);
    sigaddset(&all, SIGTERM);
    sigaddset(&all, SIGUSR1);
    sigaddset(&all, SIGHUP);
    sigprocmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsWait() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;

 private:
  sigset_t before_{};
};

// Of the run, and what else of the environment says where one is.
constexpr const char* kSecret = "PARADYSE_SECRET";
constexpr const char* kSecretFile = "PARADYSE_SECRET_FILE";

// This environment with `changes` over it; the secret is said once.
std::vector<std::string> environment(
    const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string name = std::string(*variable).substr(0, std::strcspn(*variable, "="));
    const bool changed =
        name == kSecretFile || std::any_of(changes.begin(), changes.end(), [&](const auto& change) {
          return change.first == name;
        });
    if (!changed) {
      variables.emplace_back(*variable);
    }
  }
  for (const auto& [name, value] : changes) {
    variables.push_back(name + "=" + value);
  }
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) {
    all.push_back(text.data());
  }
  all.push_back(nullptr);
  return all;
}

// A process group of its own: Ctrl-C reaches the launcher alone, which hands it on once.
pid_t start(std::vector<std::string> arguments, std::vector<std::string> variables) {
  const auto argv = pointers(arguments);
  const auto envp = pointers(variables);
  const pid_t parent = getpid();
  const SignalsWait wait;
  const pid_t pid = fork();
  if (pid < 0) {
    throw std::runtime_error(
        fmt::format("launch: a process could not be started: {}", std::strerror(errno)));
  }
  if (pid == 0) {  // only what is safe after a fork: the rendezvous has threads
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    on_signals(SIG_DFL);
    std::signal(SIGPIPE, SIG_DFL);
    sigset_t waits;
    sigemptyset(&waits);
    sigaddset(&waits, SIGUSR1);  // until train catches it: it would end the process, or be lost
    sigprocmask(SIG_SETMASK, &waits, nullptr);
    if (getppid() == parent) {
      execve("/proc/self/exe", argv.data(), envp.data());
    }
    _exit(127);
  }
  setpgid(pid, pid);  // here, too: before the first signal
  return pid;
}

// What ranks of a restarted command call their attempt; "": the first.
std::string name_of(int attempt) { return attempt == 0 ? "" : std::to_string(attempt); }

// A start of the command: how often it was started before, and on which nodes it is now.
struct Attempt {
  int number = 0;
  std::vector<int> nodes;

  [[nodiscard]] int ranks(const LaunchOptions& options) const {
    return static_cast<int>(nodes.size()) * options.processes;
  }
};

class Ranks {
 public:
  Ranks(const LaunchOptions& options, Attempt attempt)
      : options_(options), attempt_(std::move(attempt)) {}

  ~Ranks() {  // none outlives its launcher
    signal_all(SIGKILL);
    for (const pid_t pid : pids_) {
      if (pid != 0) {
        waitpid(pid, nullptr, 0);
      }
    }
  }

  void start_all(const std::string& host, int port, const std::string& secret) {
    for (int i = 0; i < options_.processes; ++i) {
      std::vector<std::string> arguments = {"paradyse"};
      arguments.insert(arguments.end(), options_.command.begin(), options_.command.end());
      std::vector<std::pair<std::string, std::string>> changes = {
          {"RANK", std::to_string(first() + i)},
          {"LOCAL_RANK", std::to_string(i)},
          {"WORLD_SIZE", std::to_string(attempt_.ranks(options_))},
          {"LOCAL_WORLD_SIZE", std::to_string(options_.processes)},
          {"MASTER_ADDR", host},
          {"MASTER_PORT", std::to_string(port)},
          {kLaunched, "True"}};  // the rendezvous is the launcher's
      if (!secret.empty()) {
        changes.emplace_back(kSecret, secret);
      }
      // Ranks of another attempt do not meet these.
      changes.emplace_back("TORCHELASTIC_RESTART_COUNT", name_of(attempt_.number));
      if (!options_.interface.empty()) {
        changes.emplace_back("GLOO_SOCKET_IFNAME", options_.interface);
      }
      pids_.push_back(start(std::move(arguments), environment(changes)));
    }
  }

  // Until all are over; the exit code of the first that failed.
  int wait_all() {
    using Clock = std::chrono::steady_clock;
    std::optional<Clock::time_point> failed;
    std::optional<Clock::time_point> saved_first;
    const auto grace = grace_of_interrupted(options_.command);
    int code = kOk;
    std::size_t running = pids_.size();
    while (running > 0) {
      if (const int signal = to_forward.exchange(0); signal != 0) {
        forwarded_ = signal;
        signal_all(signal);
      }
      if (to_save.exchange(false)) {
        signal_all(SIGUSR1);
      }
      int status = 0;
      const pid_t pid = waitpid(-1, &status, WNOHANG);
      if (pid <= 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        if (failed && Clock::now() - *failed > kGrace) {
          signal_all(SIGKILL);
        } else if (saved_first && Clock::now() - *saved_first > grace) {
          tell(
              "paradyse launch: {} of {} ranks did not end within {:.0f} s after another was "
              "interrupted, and are killed\n",
              running,
              pids_.size(),
              grace.count());
          signal_all(SIGKILL);
          failed = Clock::now();
        }
        continue;
      }
      const auto found = std::find(pids_.begin(), pids_.end(), pid);
      if (found == pids_.end()) {
        continue;
      }
      *found = 0;
      --running;
      const int its_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {  // before its first step
        stopped_ = true;
      }
      if (WIFEXITED(status) && its_code > 128) {  // it has saved, and others still may
        stopped_ = true;
        code = code == kOk ? its_code : code;
        saved_first = saved_first ? saved_first : Clock::now();
      } else if (its_code != kOk && !failed) {
        code = its_code;
        failed = Clock::now();
        if (signal != 0 && signal == forwarded_) {
          continue;  // as it was asked to
        }
        report(first() + static_cast<int>(found - pids_.begin()), status);
      }
    }
    return code;
  }

  // A signal that ends ranks came to the launcher, or to some rank that stopped all of them.
  [[nodiscard]] bool interrupted() const { return forwarded_ != 0 || stopped_; }

 private:
  [[nodiscard]] int first() const {
    const auto place = std::ranges::find(attempt_.nodes, options_.node) - attempt_.nodes.begin();
    return static_cast<int>(place) * options_.processes;
  }

  void signal_all(int signal) const {
    for (const pid_t pid : pids_) {
      if (pid != 0) {
        kill(pid, signal);
      }
    }
  }

  static void report(int rank, int status) {
    if (WIFSIGNALED(status)) {
      tell(
          "paradyse launch: rank {} was ended by signal {} ({})\n",
          rank,
          WTERMSIG(status),
          strsignal(WTERMSIG(status)));
    } else {
      tell("paradyse launch: rank {} ended with exit code {}\n", rank, WEXITSTATUS(status));
    }
  }

  const LaunchOptions& options_;
  Attempt attempt_;
  int forwarded_ = 0;        // the signal that was handed on last, but for SIGUSR1
  bool stopped_ = false;     // a signal ended a rank, or it saved and says so by its exit code
  std::vector<pid_t> pids_;  // [rank of this machine]; 0: over
};

// A run that is started again has to go on, not to begin again.
void expect_resuming(const LaunchOptions& options) {
  if (options.restarts == 0 || options.command.front() != "train") {
    return;
  }
  const bool resumes = std::ranges::any_of(options.command, [](const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    return name == "--auto-resume" || name == "--resume";
  });
  if (!resumes) {
    throw std::invalid_argument(
        "launch --restarts: the command starts a new run each time; add --auto-resume NAME to it, "
        "so that it resumes the run of that name once there is a checkpoint");
  }
}

// Where the launchers of all nodes meet.
struct MeetingPlace {
  std::string host;
  int port = 0;
  std::string secret;
};

std::string nodes_text(const std::vector<int>& nodes) {
  return fmt::format("node{} {}", nodes.size() == 1 ? "" : "s", fmt::join(nodes, ", "));
}

// What follows `before`, as the launchers of its nodes agree; none, and why is said: the command is
// not started again here.
std::optional<Attempt> agreed(
    const LaunchOptions& options, const Attempt& before, const MeetingPlace& place) {
  Attempt next{.number = before.number + 1, .nodes = before.nodes};
  if (!options.elastic()) {
    return next;
  }
  const auto patience = std::chrono::milliseconds(std::llround(1e3 * options.join_timeout));
  std::optional<std::vector<int>> nodes;
  try {
    const auto store = rendezvous::reach_store(
        {.host = place.host,
         .port = place.port,
         .secret = place.secret,
         .claim =
             {.attempt = name_of(next.number),
              .rank = -1,
              .process = fmt::format("the launcher of node {}", options.node)},
         .patience = patience,
         .answer = patience});
    nodes = rendezvous::nodes_that_go_on(
        *store,
        {.attempt = next.number,
         .node = options.node,
         .before = before.nodes,
         .patience = patience},
        [] { return to_forward.load() != 0; });
  } catch (const std::runtime_error& error) {
    tell(
        "paradyse launch: the command is not started again: node 0, whose launcher keeps the "
        "rendezvous at {}, is gone or cannot be reached ({}). Start it again on the nodes that are "
        "left, with another --rdzv-endpoint\n",
        rendezvous::endpoint(place.host, place.port),
        error.what());
    return std::nullopt;
  }
  if (!nodes) {  // a signal that ends it
    return std::nullopt;
  }
  next.nodes = *nodes;
  if (!std::ranges::binary_search(next.nodes, options.node)) {
    tell(
        "paradyse launch: the others went on without node {}, which came later than --join-timeout "
        "({} s): it ends here\n",
        options.node,
        options.join_timeout);
    return std::nullopt;
  }
  std::vector<int> lost;
  std::ranges::set_difference(before.nodes, next.nodes, std::back_inserter(lost));
  if (!lost.empty()) {
    tell(
        "paradyse launch: {} did not come within --join-timeout ({} s) and {} lost: {} of {} ranks "
        "are left\n",
        nodes_text(lost),
        options.join_timeout,
        lost.size() == 1 ? "is" : "are",
        next.ranks(options),
        before.ranks(options));
  }
  if (std::cmp_less(next.nodes.size(), options.least_nodes)) {
    tell(
        "paradyse launch: the command is not started again: {} of --nnodes {} are left\n",
        next.nodes.size(),
        options.nodes);
    return std::nullopt;
  }
  return next;
}

// Until the command is through, or was interrupted, or no restart is left or will help.  `attempt`:
// the last one.
int run_attempts(const LaunchOptions& options, const MeetingPlace& place, Attempt& attempt) {
  while (true) {
    Ranks ranks(options, attempt);
    ranks.start_all(place.host, place.port, place.secret);
    const int code = ranks.wait_all();
    if (code == kOk || code == kUsage || ranks.interrupted() ||
        attempt.number == options.restarts) {
      return code;
    }
    std::optional<Attempt> next = agreed(options, attempt, place);
    if (!next) {
      return code;
    }
    attempt = *std::move(next);
    tell(
        "paradyse launch: starting the command again (restart {} of {}) as {} ranks\n",
        attempt.number,
        options.restarts,
        attempt.ranks(options));
  }
}

// What --nnodes says.
void read_nodes(LaunchOptions& options) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument(fmt::format(
        "launch: --nnodes {}: {}; accepted are a number of machines from 1, and MIN:MAX: a run has "
        "MAX at the start, and a restart at least MIN",
        options.nodes,
        why));
  };
  const auto number = [&](const std::string& text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < 1) {
      refuse("is no number of machines");
    }
    return value;
  };
  const std::size_t colon = options.nodes.find(':');
  options.least_nodes = number(options.nodes.substr(0, colon));
  options.most_nodes =
      colon == std::string::npos ? options.least_nodes : number(options.nodes.substr(colon + 1));
  if (options.least_nodes > options.most_nodes) {
    refuse("MIN is more than MAX");
  }
  if (!options.elastic()) {
    return;
  }
  if (options.restarts == 0) {
    refuse("MIN:MAX is for restarts: give --restarts N with it");
  }
  const auto refuse_ranks = [&](const std::string& where) {
    refuse(
        "the command says how many ranks there are (" + where +
        "), which a restart may have fewer of: leave that out, also in the run file");
  };
  bool resumes = false;  // whose file has all keys, and may have had other ranks
  for (const std::string& word : options.command) {
    resumes = resumes || word == "--resume" || word.starts_with("--resume=");
    if (word == "--ranks" || word.starts_with("--ranks=") || word.starts_with("parallel.ranks=") ||
        word.starts_with("--set=parallel.ranks=")) {
      refuse_ranks(word);
    }
  }
  if (const auto said = configuration_said(options.command); said && !resumes) {
    const ConfigEntry& ranks =
        *std::ranges::find(said->entries, "parallel.ranks", &ConfigEntry::key);
    if (ranks.origin != "default") {
      refuse_ranks("parallel.ranks, " + ranks.origin);
    }
  }
}

// The processes get the launcher's, whatever they are told themselves.
void expect_secret_before(const LaunchOptions& options) {
  const bool behind = std::ranges::any_of(options.command, [](const std::string& word) {
    return word.substr(0, word.find('=')) == "--secret-file";
  });
  if (behind) {
    throw std::invalid_argument(
        "launch: --secret-file is an option of launch: put it before --; launch passes it on to "
        "the processes");
  }
}

// What each of several processes would do again, and write to the same files.
void expect_ranks_in(const LaunchOptions& options) {
  constexpr std::array kAlone = {"config", "export", "fit", "generate", "plan", "report"};
  const std::string& command = options.command.front();
  if (options.processes * options.most_nodes > 1 && std::ranges::count(kAlone, command) > 0) {
    throw std::invalid_argument(fmt::format(
        "launch: '{}' runs in one process: run paradyse {} without launch", command, command));
  }
}

int run_launch(const LaunchOptions& given, const Common& /*common*/) {
  LaunchOptions options = given;
  read_nodes(options);
  expect_ranks_in(options);
  expect_resuming(options);
  expect_secret_before(options);
  if (options.node >= options.most_nodes) {
    throw std::invalid_argument(fmt::format(
        "launch: --node-rank {} of --nnodes {}: nodes are numbered from 0",
        options.node,
        options.nodes));
  }
  if (options.most_nodes > 1 && options.rendezvous.empty()) {
    throw std::invalid_argument(
        "launch: several nodes meet at an address of node 0: give each of them the same "
        "--rdzv-endpoint HOST:PORT");
  }
  std::string host = "127.0.0.1";
  int port = options.most_nodes > 1 ? 29500 : 0;
  if (!options.rendezvous.empty()) {
    parse_rendezvous(options.rendezvous, host, port);
  }
  std::string secret = run_secret(options.secret_file);
  if (secret.empty() && options.most_nodes == 1) {
    secret = rendezvous::made_secret();
  }
  if (secret.empty() && !rendezvous::is_loopback(host)) {
    throw std::invalid_argument(
        "launch: " + rendezvous::without_secret(rendezvous::endpoint(host, port)));
  }
  std::unique_ptr<Rendezvous> kept;
  if (options.node == 0) {
    try {
      kept = serve_rendezvous(host, port, secret, options.interface);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(fmt::format(
          "launch: the rendezvous at {} cannot be opened: check that the address belongs to "
          "this machine and that the port is free; set another one with --rdzv-endpoint, or, if "
          "this machine is behind NAT, its interface with --interface ({})",
          rendezvous::endpoint(host, port),
          error.what()));
    }
    port = kept->port();
  }
  outlive_readers();
  on_signals(ask_to_forward);
  on_save_wish(ask_to_forward);
  Attempt attempt;
  for (int node = 0; node < options.most_nodes; ++node) {
    attempt.nodes.push_back(node);
  }
  const int code = run_attempts(options, {.host = host, .port = port, .secret = secret}, attempt);
  on_signals(SIG_DFL);  // a wish to save comes too late, and ends nothing
  if (kept != nullptr && options.most_nodes > 1) {
    kept->await_leaving(attempt.ranks(options), name_of(attempt.number));
  }
  return code;
}

}  // namespace

void add_launch(CLI::App& app, Common& common) {
  auto [command, options] = add_command<LaunchOptions>(
      app,
      common,
      "launch",
      "Start a command as several processes, one for each rank (backend gloo), as in: paradyse "
      "launch -n 4 -- train --config run.toml",
      run_launch);
  command
      ->add_option(
          "-n,--nproc-per-node,--nproc_per_node,--processes",
          options->processes,
          "Number of processes on this machine")
      ->transform(whole_numbers(1))
      ->required();
  command
      ->add_option(
          "--nnodes,--nodes",
          options->nodes,
          "Number of machines; each runs as many processes. MIN:MAX: a restart goes on without "
          "machines that are gone, as long as MIN are left; that of node 0 has to stay")
      ->option_text("N|MIN:MAX [1]");
  command
      ->add_option(
          "--join-timeout,--join_timeout",
          options->join_timeout,
          "With --nnodes MIN:MAX: seconds that a restart waits for the launcher of each machine")
      ->check(seconds())
      ->capture_default_str();
  command
      ->add_option(
          "--node-rank,--node_rank,--node", options->node, "Number of this machine, from 0")
      ->transform(whole_numbers(0))
      ->capture_default_str();
  command->add_option(
      "--rdzv-endpoint,--rdzv_endpoint,--rendezvous",
      options->rendezvous,
      "HOST[:PORT] of node 0, where all processes meet (default: this machine, any free port)");
  command
      ->add_option(
          "--secret-file",
          options->secret_file,
          "File of mode 600 with the run's secret, the same on each machine (default: "
          "PARADYSE_SECRET, or the file that PARADYSE_SECRET_FILE names; on one machine one is "
          "made)")
      ->option_text("FILE");
  command->add_option(
      "--interface",
      options->interface,
      "Network interface (default: the one that reaches the rendezvous)");
  command
      ->add_option(
          "--restarts,--max-restarts,--max_restarts",
          options->restarts,
          "How often the command is started again after a failure, on every machine; not after "
          "exit "
          "code 2 or a signal that stops the run. train needs --auto-resume with it")
      ->transform(whole_numbers(0))
      ->capture_default_str();
  command->add_option("command", options->command, "After --: the command and its options")
      ->required();
}

}  // namespace paradyse::cli
