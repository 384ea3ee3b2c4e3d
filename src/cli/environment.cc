#include "src/cli/environment.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>

namespace paradyse::cli {
namespace {

using Variables = std::function<const char*(const char* name)>;

std::string text(const Variables& variable, const char* name) {
  const char* value = variable(name);
  return value == nullptr ? "" : value;
}

// `most`: the largest that is accepted.
int number(const Variables& variable, const char* name, int most) {
  const std::string value = text(variable, name);
  int parsed = -1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (error != std::errc{} || end != value.data() + value.size() || parsed < 0 || parsed > most) {
    throw std::invalid_argument(
        "environment: " + std::string(name) + " is '" + value +
        "'; accepted is a number from 0 to " + std::to_string(most));
  }
  return parsed;
}

// "node[03-07,9],other" -> "node03"
std::string first_of(const std::string& nodes) {
  const std::size_t end = nodes.find_first_of("[,");
  if (end == std::string::npos || nodes[end] == ',') {
    return nodes.substr(0, end);
  }
  const std::size_t digits_end = nodes.find_first_of("-,]", end);
  return nodes.substr(0, end) + nodes.substr(end + 1, digits_end - end - 1);
}

}  // namespace

std::optional<Membership> membership(const Variables& variable) {
  constexpr int kMostProcesses = 1 << 20;
  constexpr int kMostPort = 65535;
  const auto has = [&](const char* name) { return variable(name) != nullptr; };
  const auto of = [&](const char* launcher, const char* rank, const char* size) {
    Membership m;
    m.launcher = launcher;
    m.rank = number(variable, rank, kMostProcesses);
    m.size = number(variable, size, kMostProcesses);
    if (m.rank >= m.size) {
      throw std::invalid_argument(
          "environment: " + std::string(rank) + " is " + std::to_string(m.rank) + ", not below " +
          size + ", which is " + std::to_string(m.size));
    }
    return m;
  };
  Membership m;
  if (has("RANK") && has("WORLD_SIZE")) {
    m = of("torchrun", "RANK", "WORLD_SIZE");
    m.kept_elsewhere = text(variable, kLaunched) == "True";
    m.launcher = m.kept_elsewhere ? "paradyse launch" : m.launcher;
    m.agent = !m.kept_elsewhere && text(variable, "TORCHELASTIC_USE_AGENT_STORE") == "True";
    m.one_machine = m.agent && text(variable, "LOCAL_WORLD_SIZE") == text(variable, "WORLD_SIZE");
    m.attempt = text(variable, "TORCHELASTIC_RESTART_COUNT");
  } else if (has("OMPI_COMM_WORLD_RANK") && has("OMPI_COMM_WORLD_SIZE")) {
    m = of("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    if (text(variable, "OMPI_COMM_WORLD_LOCAL_SIZE") == text(variable, "OMPI_COMM_WORLD_SIZE")) {
      m.host = "127.0.0.1";
    }
  } else if (has("SLURM_PROCID") && has("SLURM_NTASKS")) {
    m = of("SLURM", "SLURM_PROCID", "SLURM_NTASKS");
    // Rank 0 runs on the first node of the list; the node that launched need not be of it.
    m.host = first_of(
        text(variable, has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_NODELIST"));
    if (m.host.empty()) {
      m.host = text(variable, "SLURM_LAUNCH_NODE_IPADDR");
    }
    m.one_machine =
        text(variable, has("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES") ==
        "1";
    if (has("SLURM_JOB_ID")) {  // jobs that share a node
      m.port = 20000 + number(variable, "SLURM_JOB_ID", 1 << 30) % 10000;
    }
  } else if (has("PMI_RANK") && has("PMI_SIZE")) {
    m = of("mpirun", "PMI_RANK", "PMI_SIZE");
    if (text(variable, "MPI_LOCALNRANKS") == text(variable, "PMI_SIZE")) {
      m.host = "127.0.0.1";
    }
  } else {
    return std::nullopt;
  }
  if (has("MASTER_ADDR")) {
    m.host = text(variable, "MASTER_ADDR");
    m.one_machine = m.one_machine && m.agent;  // else a user said where to meet
  }
  if (has("MASTER_PORT")) {
    m.port = number(variable, "MASTER_PORT", kMostPort);
  }
  return m;
}

}  // namespace paradyse::cli
