// A cluster as far as planning goes: devices with their speeds and memory, and the links between
// them.
//
// Read from a TOML file (configs/clusters/, docs/internals/simulate.md).  Ranks are numbered
// through the device classes in the order of the file, and nodes are equal runs of neighbouring
// ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "paradyse/plan/detail/tiles.h"

namespace paradyse {

// What computes: plans for GPUs have other tiles (tiles.h).
enum class DeviceKind { cpu, gpu };

struct DeviceClass {
  std::string name;
  int count = 0;                        // ranks, one after the other
  double matmul_flops_per_second = 0;   // peak of dense products of two-byte numbers
  double float32_flops_per_second = 0;  // the same of four-byte numbers
  double matmul_fraction = 0;           // of the peak that large products reach
  double attention_fraction = 0;        // of the peak that fused attention reaches
  double memory_bytes_per_second = 0;
  std::int64_t memory_bytes = 0;
  double launch_seconds = 0;         // of one kernel
  double host_bytes_per_second = 0;  // to the host's memory or back
  // A file that does not say it: a GPU, if products of two-byte numbers are faster than of four.
  DeviceKind kind = DeviceKind::cpu;

  friend bool operator==(const DeviceClass&, const DeviceClass&) = default;
};

struct Link {
  double bytes_per_second = 0;  // of one rank, each way (or of a node: node_shares_link)
  double latency_seconds = 0;

  friend bool operator==(const Link&, const Link&) = default;
};

struct Cluster {
  std::string name;
  int ranks_per_node = 1;
  // That the ranks of a node share, where these are more: a device's speeds are those while all of
  // them are at work, and one that others have left has up to a core.  0: each has its own.
  int cores_per_node = 0;
  std::vector<DeviceClass> devices;
  Link inside_node;
  Link between_nodes;  // 0 bytes a second: one node, and nothing is known of others
  // What several ranks of a node want of another node crosses once for each of them (Gloo sends
  // every rank its own), not once for all (NCCL's rings and trees).
  bool copy_for_each_rank = false;
  // `between_nodes` is what a node has (one network card): ranks that send at the same time share
  // it, and one that sends alone has all of it.  Else each rank has as much of its own.
  bool node_shares_link = false;

  [[nodiscard]] int ranks() const;
  [[nodiscard]] const DeviceClass& device(int rank) const;
  [[nodiscard]] int node(int rank) const { return rank / ranks_per_node; }
  [[nodiscard]] const Link& link(int a, int b) const {
    return node(a) == node(b) ? inside_node : between_nodes;
  }
  [[nodiscard]] int ranks_on_node() const { return std::min(ranks_per_node, ranks()); }
  [[nodiscard]] bool shares_cores() const {
    return cores_per_node > 0 && cores_per_node < ranks_on_node();
  }
  // All ranks have the same device.
  [[nodiscard]] bool uniform() const;

  friend bool operator==(const Cluster&, const Cluster&) = default;
};

// Throws std::invalid_argument that names the file, the key, what stands there and what would be
// accepted: no TOML, a missing or unknown key (with the nearest name), a number out of its range,
// no device, several nodes without a link between them or of unequal numbers of ranks.
Cluster cluster_from_toml(const std::string& text, const std::string& source);
Cluster read_cluster(const std::filesystem::path& file);
// The tiles of a plan for a cluster: a GPU's where all of its devices are that, else a CPU's, which
// any device has room for.
Tiles tiles_of(const Cluster& cluster, const Model& model, std::int64_t element_bytes);
// The same cluster of `ranks` ranks: whole nodes, or a part of one.  Throws std::invalid_argument,
// naming `source`, for others, and where devices are unlike.  Ranks of a part of a node that shares
// cores have as much more of these.
Cluster with_ranks(Cluster cluster, int ranks, const std::string& source);
// The same with so much memory on every device.
Cluster with_memory(Cluster cluster, std::int64_t bytes);
// The ranks of a cluster and what each has.
std::vector<std::int64_t> memory_of_ranks(const Cluster& cluster);
// As such a file, which is read as the same cluster; `note` stands at its head.  Throws
// std::invalid_argument for one that no file may describe.
std::string to_toml(const Cluster& cluster, const std::string& note = "");

}  // namespace paradyse
