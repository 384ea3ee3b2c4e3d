#include "src/cli/backend_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/version.h>

#include "src/cli/environment.h"
#include "src/cli/run_options.h"
#include "src/cli/tell.h"
#include "src/cli/version.h"
#include "src/plan/base/text_match.h"
#include "src/run/comm/gloo/backend.h"
#include "src/run/comm/rendezvous/address.h"
#include "src/run/comm/rendezvous/secret.h"
#include "src/run/device/device.h"

namespace paradyse::cli {
namespace {

// The processes this one belongs to; none for `local`.
std::optional<Membership> processes(const BackendOptions& options) {
  expect_one_of("--backend", options.backend, {"auto", "local", "gloo", "nccl"});
  if (options.backend == "nccl" && !cuda_is_built()) {
    throw std::invalid_argument(
        "--backend nccl: this program was built without CUDA; build the preset `cuda` with `make "
        "build-cuda` (it takes a CUDA 13 toolkit) and run build/cuda/paradyse. Accepted here: "
        "local, gloo");
  }
  const c10::Device device = device_named(options.device);
  if (options.backend == "nccl" && device.is_cpu()) {
    throw std::invalid_argument(
        "--backend nccl moves tensors between GPUs; give --device cuda with it, or take --backend "
        "local or gloo");
  }
  if (options.backend == "gloo" && !device.is_cpu()) {
    throw std::invalid_argument(
        "--backend gloo moves tensors of the host; with --device cuda take --backend nccl, which "
        "has a GPU for each rank, or local, whose ranks share one");
  }
  if (options.backend == "local") {
    return std::nullopt;
  }
  auto member = membership();
  if ((options.backend == "gloo" || options.backend == "nccl") && !member) {
    throw std::invalid_argument(
        "--backend " + options.backend +
        ": no environment variable gives the rank and the number of processes; start it with "
        "`paradyse launch -n 4 -- ...`, torchrun, srun or mpirun");
  }
  // Many a shell has the variables of a job of one process; a launched one is one rank.
  return options.backend == "auto" && member && member->size == 1 && !member->kept_elsewhere
             ? std::nullopt
             : member;
}

GlooOptions gloo_options(const BackendOptions& options, const Membership& member) {
  GlooOptions gloo{
      .rank = member.rank,
      .size = member.size,
      .host = member.host,
      .port = member.port,
      .kept_elsewhere = member.kept_elsewhere,
      .secret = run_secret(options.secret_file),
      .attempt = member.attempt,
      .interface = options.interface,
      .deadline = local_options(options.deadline_seconds).deadline,
      .patience = local_options(options.deadline_seconds).deadline};
  if (!options.rendezvous.empty()) {
    parse_rendezvous(options.rendezvous, gloo.host, gloo.port);
    gloo.kept_elsewhere = false;  // the launcher's own is somewhere else
  } else if (member.agent) {
    gloo.agent_host = member.host;
    gloo.agent_port = member.port;
  }
  // The launcher named this machine's address; no other process needs to reach it.
  if (options.rendezvous.empty() && member.one_machine && gloo.secret.empty()) {
    gloo.host = "127.0.0.1";
  }
  if (gloo.host.empty()) {
    throw std::invalid_argument(
        "gloo: " + member.launcher +
        " does not say where rank 0 runs; give --rendezvous HOST:PORT, or set MASTER_ADDR");
  }
  // Without a secret processes meet on loopback alone, whatever interface a cluster's environment
  // names for all jobs.
  const bool alone = gloo.secret.empty() && rendezvous::is_loopback(gloo.host);
  if (const char* named = std::getenv("GLOO_SOCKET_IFNAME");
      gloo.interface.empty() && named != nullptr && !alone) {
    gloo.interface = named;
  }
  return gloo;
}

}  // namespace

void add_backend_options(Command& command, BackendOptions& options) {
  command
      .add_option(
          "--backend",
          options.backend,
          "local: ranks are threads; gloo: ranks are processes started by a launcher; nccl: the "
          "same, with a GPU each; auto (default): gloo or nccl if a launcher started several "
          "processes, else local")
      ->option_text("NAME");
  command
      .add_option(
          "--rendezvous",
          options.rendezvous,
          "Address on rank 0's machine where the gloo processes meet (default: the launcher's)")
      ->option_text("HOST[:PORT]");
  add_secret_option(command, options.secret_file);
  command
      .add_option(
          "--interface",
          options.interface,
          "Network interface for gloo, and for nccl unless NCCL_SOCKET_IFNAME is set (default: "
          "GLOO_SOCKET_IFNAME, or the one that reaches the rendezvous)")
      ->option_text("NAME");
  command
      .add_option(
          "--timeout,--deadline",
          options.deadline_seconds,
          "Longest wait for another rank in seconds; after it all ranks end with an error")
      ->check(seconds())
      ->capture_default_str();
}

void add_secret_option(Command& command, std::string& secret_file) {
  command
      .add_option(
          "--secret-file",
          secret_file,
          "File of mode 600 with the run's secret, the same for all gloo processes; required on "
          "several machines (default: PARADYSE_SECRET, or the file that "
          "PARADYSE_SECRET_FILE names)")
      ->option_text("FILE");
}

void add_device_option(Command& command, BackendOptions& options) {
  command
      .add_option(
          "--device",
          options.device,
          "cpu (default) or cuda; with cuda, threads share one GPU and each process has its own")
      ->option_text("NAME");
}

int ranks_of(const BackendOptions& options, int asked, int otherwise) {
  const auto member = processes(options);
  if (!member) {
    return asked == 0 ? otherwise : asked;
  }
  if (asked != 0 && asked != member->size) {
    throw std::invalid_argument(fmt::format(
        "{} ranks were requested (--ranks, or parallel.ranks), but {} started {}, and each process "
        "is a rank; leave the number out, or start as many",
        asked,
        member->launcher,
        member->size == 1 ? "1 process" : fmt::format("{} processes", member->size)));
  }
  return member->size;
}

namespace {

// Options that name files, where something is found, or how long to wait for it.
constexpr std::array kMayDiffer = {
    "--json",
    "--model",
    "--data",
    "--plan",
    "--cluster",
    "--out",
    "--save-plan",
    "--save-cluster",
    "--trace",
    "--backend",
    "--rendezvous",
    "--secret-file",
    "--interface",
    "--timeout"};

// Variables that choose other kernels, whose sums differ in the last bits.
constexpr std::array kKernels = {
    "PARADYSE_ATEN_KERNELS", "PARADYSE_CUDA_KERNELS", "PARADYSE_FLASH", "PARADYSE_CUDNN_ATTENTION"};

bool met = false;  // this process has come to on_backend(), which tells the others what fails

std::vector<Given> with_program(std::vector<Given> given) {
  given.push_back({"the program", fmt::format("paradyse {} {}", version(), commit())});
  given.push_back({"the version of torch", TORCH_VERSION});
  for (const char* const name : kKernels) {
    const char* const value = std::getenv(name);
    given.push_back({std::string("the variable ") + name, value == nullptr ? "not set" : value});
  }
  return given;
}

}  // namespace

std::vector<Given> given_by(const Common& common) {
  std::vector<Given> given;
  for (const auto& [option, value] : common.given) {
    if (std::ranges::find(kMayDiffer, option) == kMayDiffer.end()) {
      given.push_back({option, value.empty() ? "given" : value});
    }
  }
  return given;
}

void tell_other_ranks(const CLI::App& command, const Failure& failure, int argc, char** argv) {
  if (met || command.get_name() == "launch" ||  // its --rendezvous is one to be
      command.get_option_no_throw("--rendezvous") == nullptr) {
    return;
  }
  // As far as the command says: it may be what is wrong.
  const std::vector<std::string> words(argv + 1, argv + argc);
  BackendOptions options;
  read_known(
      [&](Command& line) {
        line.add_option("--backend", options.backend);
        line.add_option("--rendezvous", options.rendezvous);
        line.add_option("--secret-file", options.secret_file);
      },
      words);
  if (const auto said = configuration_said(words)) {
    options.backend = said->config.parallel.backend;
    options.rendezvous = said->config.parallel.rendezvous;
  }
  options.deadline_seconds = 10;
  constexpr std::chrono::milliseconds kPatience{5000};  // others may still be starting
  try {
    const auto member = membership();
    if (!member || member->size == 1 || options.backend == "local") {
      return;
    }
    gloo::tell_failure(
        gloo_options(options, *member),
        fmt::format("rank {} failed: {}", member->rank, failure.message),
        failure.code == kUsage,
        kPatience);
  } catch (const std::invalid_argument&) {  // nobody knows where the others are
    return;
  }
}

int on_backend(
    const BackendOptions& options,
    const std::vector<Given>& given,
    const std::function<int(const std::shared_ptr<Backend>& backend)>& main) {
  const auto member = processes(options);
  if (!member) {
    return main(local_backend(local_options(options.deadline_seconds)));
  }
  met = true;
  std::shared_ptr<Backend> backend;
  try {
    const GlooOptions gloo = gloo_options(options, *member);
    backend = options.device == "cuda" ? nccl_backend(gloo) : gloo_backend(gloo);
    expect_same_on_ranks(with_program(given), member->size, *backend);
    const int code = main(backend);
    backend->leave();
    return code;
  } catch (const RanksDiffer& differ) {  // all ranks say so, and none fails before another has it
    backend->leave();
    if (member->rank == 0) {
      throw;
    }
    tell("paradyse: error: rank {}: {}\n", member->rank, differ.what());
    return failure_of(differ).code;
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    const bool first =
        backend == nullptr || backend->fail(
                                  fmt::format("rank {} failed: {}", member->rank, failure.message),
                                  failure.code == kUsage);
    if (member->rank == 0) {
      throw;
    }
    if (first) {
      const std::string& what = failure.message;
      const std::string whose =
          what.starts_with("rank ") ? "" : "rank " + std::to_string(member->rank) + ": ";
      tell("paradyse: error: {}{}\n", whose, what);
    }
    return failure.code;
  }
}

std::string run_secret(const std::string& secret_file) {
  constexpr const char* kText = "PARADYSE_SECRET";
  constexpr const char* kFile = "PARADYSE_SECRET_FILE";
  if (!secret_file.empty()) {
    return rendezvous::secret_in(secret_file);
  }
  const char* const text = std::getenv(kText);
  const char* const file = std::getenv(kFile);
  if (text != nullptr && file != nullptr) {
    throw std::invalid_argument(fmt::format(
        "environment: both {} and {} are set, and either gives the run's secret; unset one",
        kText,
        kFile));
  }
  if (file != nullptr) {
    return rendezvous::secret_in(file);
  }
  if (text == nullptr) {
    return "";
  }
  rendezvous::expect_secret(text, fmt::format("environment: {}", kText));
  return text;
}

void parse_rendezvous(const std::string& text, std::string& host, int& port) {
  const std::size_t bracket = text.find(']');
  const std::size_t colon = text.find(':', bracket == std::string::npos ? 0 : bracket);
  host = text.substr(0, colon);
  if (bracket != std::string::npos) {
    host = text.substr(1, bracket - 1);
  }
  bool fine = !host.empty() &&
              (bracket == std::string::npos ||
               (text.front() == '[' && (bracket + 1 == text.size() || colon == bracket + 1)));
  if (colon != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto [parsed, error] = std::from_chars(text.data() + colon + 1, end, port);
    fine = fine && error == std::errc{} && parsed == end && port > 0 && port <= 65535;
  }
  if (!fine) {
    throw std::invalid_argument(
        "rendezvous '" + text + "'" +
        ": accepted is HOST or HOST:PORT, as in 10.0.0.1:29500, or "
        "[ADDRESS]:PORT");
  }
}

}  // namespace paradyse::cli
