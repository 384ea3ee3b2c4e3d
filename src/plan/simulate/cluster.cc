// Cluster files.  All that is known of a key stands in one line of a table: its name, where it
// goes, and what it accepts.
#include "paradyse/plan/cluster.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <variant>

#include <fmt/format.h>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/base/text_match.h"
#include "src/plan/base/toml_text.h"

namespace paradyse {

int Cluster::ranks() const {
  int sum = 0;
  for (const DeviceClass& device : devices) {
    sum += device.count;
  }
  return sum;
}

const DeviceClass& Cluster::device(int rank) const {
  int left = rank;
  for (const DeviceClass& device : devices) {
    if (left < device.count) {
      return device;
    }
    left -= device.count;
  }
  throw std::logic_error(
      "Cluster: there is no rank " + std::to_string(rank) + " of " + std::to_string(ranks()));
}

bool Cluster::uniform() const {
  return std::ranges::all_of(devices, [&](DeviceClass device) {
    device.count = devices.front().count;
    device.name = devices.front().name;
    return device == devices.front();
  });
}

Cluster with_ranks(Cluster cluster, int ranks, const std::string& source) {
  if (ranks < 1 || ranks > kMostPlannedRanks) {
    throw std::invalid_argument(
        fmt::format("--ranks {}: accepted are 1 to {} ranks", ranks, kMostPlannedRanks));
  }
  if (!cluster.uniform() ||
      (ranks > cluster.ranks_per_node && ranks % cluster.ranks_per_node != 0)) {
    throw std::invalid_argument(fmt::format(
        "--ranks {}: {} has {} ranks a node{}; give whole nodes with one kind of device",
        ranks,
        source,
        cluster.ranks_per_node,
        cluster.uniform() ? "" : " on several kinds of devices"));
  }
  if (ranks > cluster.ranks_per_node && cluster.between_nodes.bytes_per_second == 0) {
    throw std::invalid_argument(fmt::format(
        "--ranks {}: {} has one node of {} ranks and says nothing of links between nodes: give it "
        "a "
        "section [between_nodes] with bytes_per_second and latency_seconds",
        ranks,
        source,
        cluster.ranks_per_node));
  }
  cluster.devices.resize(1);
  DeviceClass& device = cluster.devices.front();
  if (cluster.shares_cores() && ranks < cluster.ranks_on_node()) {
    const double faster =
        static_cast<double>(cluster.ranks_on_node()) / std::max(cluster.cores_per_node, ranks);
    device.matmul_flops_per_second *= faster;
    device.float32_flops_per_second *= faster;
    device.memory_bytes_per_second *= faster;
    device.host_bytes_per_second *= faster;
    device.launch_seconds /= faster;
  }
  device.count = ranks;
  cluster.cores_per_node = std::min(cluster.cores_per_node, ranks);
  cluster.ranks_per_node = std::min(cluster.ranks_per_node, ranks);
  return cluster;
}

Cluster with_memory(Cluster cluster, std::int64_t bytes) {
  for (DeviceClass& device : cluster.devices) {
    device.memory_bytes = bytes;
  }
  return cluster;
}

std::vector<std::int64_t> memory_of_ranks(const Cluster& cluster) {
  std::vector<std::int64_t> memory;
  for (const DeviceClass& device : cluster.devices) {
    memory.insert(memory.end(), static_cast<std::size_t>(device.count), device.memory_bytes);
  }
  return memory;
}

Tiles tiles_of(const Cluster& cluster, const Model& model, std::int64_t element_bytes) {
  const bool gpus = std::ranges::all_of(
      cluster.devices, [](const DeviceClass& one) { return one.kind == DeviceKind::gpu; });
  return gpus ? gpu_tiles(model, element_bytes) : Tiles{};
}

namespace {

// More than any machine has, so that no sum of seconds or bytes overflows; and so little that it
// is a slip of a unit.
constexpr double kMostFlops = 1e18;  // a second
constexpr double kMostBytes = 1e18;  // of memory, or a second
constexpr double kMostSeconds = 60;  // of a latency
constexpr double kLeastFraction = 1e-4;

struct Key {
  const char* name;
  std::variant<std::string*, int*, std::int64_t*, double*> value;
  double low = 1;
  double high = std::numeric_limits<double>::max();
};

// Reads one table of a file.
class Section {
 public:
  // `path`: of the table in messages, as in "device[0].", or empty.
  Section(const toml::table& table, std::string source, std::string path)
      : table_(table), source_(std::move(source)), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    throw std::invalid_argument(source_ + ": " + path_ + key + ": " + what);
  }

  // A key that may be left out: nothing.
  [[nodiscard]] std::optional<std::string> text(const char* key) const {
    std::string found;
    return read_if_there({.name = key, .value = &found}) ? std::optional(found) : std::nullopt;
  }

  // The same: whether it is there.
  bool read_if_there(const Key& key) const {
    const toml::node* node = table_.get(key.name);
    if (node != nullptr) {
      read(key, *node);
    }
    return node != nullptr;
  }

  // `others`: keys of the table that are tables themselves, or may be left out.
  void read(std::span<const Key> keys, std::vector<std::string> others = {}) const {
    std::vector<std::string> known;
    for (const Key& key : keys) {
      known.emplace_back(key.name);
    }
    known.insert(known.end(), others.begin(), others.end());
    std::string list;
    for (const std::string& name : known) {
      list += (list.empty() ? "" : ", ") + name;
    }
    for (const auto& [name, value] : table_) {
      const std::string found(name.str());
      if (std::ranges::find(known, found) == known.end()) {
        refuse(found, "is not known" + did_you_mean(found, known) + "; keys are " + list);
      }
    }
    for (const Key& key : keys) {
      const toml::node* node = table_.get(key.name);
      if (node == nullptr) {
        refuse(key.name, "is missing; " + accepted(key) + " is needed");
      }
      read(key, *node);
    }
  }

 private:
  static std::string accepted(const Key& key) {
    if (std::holds_alternative<std::string*>(key.value)) {
      return "a name in quotes";
    }
    std::ostringstream text;
    text << (std::holds_alternative<double*>(key.value) ? "a number " : "a whole number ")
         << "from " << key.low << " to ";
    if (std::holds_alternative<int*>(key.value)) {
      text << static_cast<std::int64_t>(key.high);
    } else {
      text << key.high;
    }
    return text.str();
  }

  void read(const Key& key, const toml::node& node) const {
    std::ostringstream found;
    found << toml::default_formatter(node);
    const auto fail = [&] {
      refuse(key.name, "expected " + accepted(key) + ", found " + found.str());
    };
    if (auto* const* text = std::get_if<std::string*>(&key.value)) {
      **text = node.value_exact<std::string>().value_or("");
      if ((*text)->empty()) {
        fail();
      }
      return;
    }
    // 40e9 is a whole number, too
    const double none = std::numeric_limits<double>::quiet_NaN();
    const double number = node.is_number() ? node.value<double>().value_or(none) : none;
    const bool whole = !std::holds_alternative<double*>(key.value);
    if (!std::isfinite(number) || number > key.high || number < key.low ||
        (whole && number != std::floor(number))) {
      fail();
    }
    if (auto* const* value = std::get_if<double*>(&key.value)) {
      **value = number;
    } else if (auto* const* count = std::get_if<int*>(&key.value)) {
      **count = static_cast<int>(number);
    } else {
      *std::get<std::int64_t*>(key.value) = static_cast<std::int64_t>(number);
    }
  }

  const toml::table& table_;
  std::string source_;
  std::string path_;
};

const char* kind_name(DeviceKind kind) { return kind == DeviceKind::gpu ? "gpu" : "cpu"; }

DeviceClass read_device(const Section& section) {
  DeviceClass d;
  constexpr const char* kKind = "kind";
  const Key keys[] = {
      {.name = "name", .value = &d.name},
      {.name = "count", .value = &d.count, .high = kMostClusterRanks},
      {.name = "matmul_flops_per_second", .value = &d.matmul_flops_per_second, .high = kMostFlops},
      {.name = "float32_flops_per_second",
       .value = &d.float32_flops_per_second,
       .high = kMostFlops},
      {.name = "matmul_fraction", .value = &d.matmul_fraction, .low = kLeastFraction, .high = 1},
      {.name = "attention_fraction",
       .value = &d.attention_fraction,
       .low = kLeastFraction,
       .high = 1},
      {.name = "memory_bytes_per_second", .value = &d.memory_bytes_per_second, .high = kMostBytes},
      {.name = "memory_bytes", .value = &d.memory_bytes, .high = kMostBytes},
      {.name = "launch_seconds", .value = &d.launch_seconds, .low = 0, .high = kMostSeconds},
      {.name = "host_bytes_per_second", .value = &d.host_bytes_per_second, .high = kMostBytes}};
  section.read(keys, {kKind});
  d.kind =
      d.matmul_flops_per_second > d.float32_flops_per_second ? DeviceKind::gpu : DeviceKind::cpu;
  if (const std::optional<std::string> kind = section.text(kKind)) {
    if (*kind != kind_name(DeviceKind::cpu) && *kind != kind_name(DeviceKind::gpu)) {
      section.refuse(kKind, "expected \"cpu\" or \"gpu\", found \"" + *kind + "\"");
    }
    d.kind = *kind == kind_name(DeviceKind::gpu) ? DeviceKind::gpu : DeviceKind::cpu;
  }
  return d;
}

constexpr const char* kCores = "cores_per_node";
constexpr const char* kCopies = "copies";  // of what several ranks of a node want
constexpr const char* kBandwidthOf = "bandwidth_of";
constexpr const char* kOfNode = "node";
constexpr const char* kOfRank = "rank";

Link read_link(const Section& section, const std::vector<std::string>& others) {
  Link link;
  const Key keys[] = {
      {.name = "bytes_per_second", .value = &link.bytes_per_second, .high = kMostBytes},
      {.name = "latency_seconds", .value = &link.latency_seconds, .low = 0, .high = kMostSeconds}};
  section.read(keys, others);
  return link;
}

// Whether the key says "rank", not "node".
bool is_of_rank(const Section& section, const char* key, const char* absent) {
  const std::string whose = section.text(key).value_or(absent);
  if (whose != kOfNode && whose != kOfRank) {
    section.refuse(key, "expected \"node\" or \"rank\", found \"" + whose + "\"");
  }
  return whose == kOfRank;
}

}  // namespace

Cluster cluster_from_toml(const std::string& text, const std::string& source) {
  const toml::table table = toml_in(text, source);
  Cluster cluster;
  const Section top(table, source, "");
  const Key keys[] = {
      {.name = "name", .value = &cluster.name},
      {.name = "ranks_per_node", .value = &cluster.ranks_per_node, .high = kMostClusterRanks}};
  top.read(keys, {kCores, "device", "inside_node", "between_nodes"});
  top.read_if_there(
      {.name = kCores,
       .value = &cluster.cores_per_node,
       .high = static_cast<double>(cluster.ranks_per_node)});

  const toml::array* devices = table["device"].as_array();
  if (devices == nullptr || devices->empty() || !devices->is_array_of_tables()) {
    top.refuse("device", "at least one section [[device]] is needed");
  }
  double ranks = 0;
  for (std::size_t i = 0; i < devices->size(); ++i) {
    cluster.devices.push_back(read_device(
        Section(*(*devices)[i].as_table(), source, "device[" + std::to_string(i) + "].")));
    ranks += cluster.devices.back().count;
  }
  if (ranks > kMostClusterRanks) {
    top.refuse(
        "device", "the counts add up to more than " + std::to_string(kMostClusterRanks) + " ranks");
  }
  if (cluster.ranks() > cluster.ranks_per_node && cluster.ranks() % cluster.ranks_per_node != 0) {
    top.refuse(
        "ranks_per_node",
        std::to_string(cluster.ranks_per_node) + " does not divide the " +
            std::to_string(cluster.ranks()) + " ranks: nodes are equal runs of neighbouring ranks");
  }
  constexpr const char* kBetween = "between_nodes";
  const auto link = [&](const std::string& name, bool needed) {
    const toml::table* section = table[name].as_table();
    if (section == nullptr && (needed || table.contains(name))) {
      top.refuse(name, "a section with bytes_per_second and latency_seconds is needed");
    }
    if (section == nullptr) {
      return Link();
    }
    const Section of_link(*section, source, std::string(name) + ".");
    if (name != kBetween) {
      return read_link(of_link, {});
    }
    cluster.copy_for_each_rank = is_of_rank(of_link, kCopies, kOfNode);
    cluster.node_shares_link = !is_of_rank(of_link, kBandwidthOf, kOfRank);
    return read_link(of_link, {kCopies, kBandwidthOf});
  };
  cluster.inside_node = link("inside_node", true);
  cluster.between_nodes = link(kBetween, cluster.ranks() > cluster.ranks_per_node);
  return cluster;
}

std::string to_toml(const Cluster& cluster, const std::string& note) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  if (!note.empty()) {
    text << "# " << note << "\n";
  }
  const auto quoted = [](const std::string& name) {
    std::ostringstream out;
    out << toml::value<std::string>(name);
    return out.str();
  };
  text << "name = " << quoted(cluster.name) << "\nranks_per_node = " << cluster.ranks_per_node
       << "\n";
  if (cluster.cores_per_node > 0) {
    text << kCores << " = " << cluster.cores_per_node << "\n";
  }
  for (const DeviceClass& d : cluster.devices) {
    text << "\n[[device]]\nname = " << quoted(d.name) << "\ncount = " << d.count
         << "\nmatmul_flops_per_second = " << d.matmul_flops_per_second
         << "\nfloat32_flops_per_second = " << d.float32_flops_per_second
         << "\nmatmul_fraction = " << d.matmul_fraction
         << "\nattention_fraction = " << d.attention_fraction
         << "\nmemory_bytes_per_second = " << d.memory_bytes_per_second
         << "\nmemory_bytes = " << d.memory_bytes << "\nlaunch_seconds = " << d.launch_seconds
         << "\nhost_bytes_per_second = " << d.host_bytes_per_second
         << "\nkind = " << quoted(kind_name(d.kind)) << "\n";
  }
  const auto link = [&](const char* name, const Link& one) {
    text << "\n[" << name << "]\nbytes_per_second = " << one.bytes_per_second
         << "\nlatency_seconds = " << one.latency_seconds << "\n";
  };
  link("inside_node", cluster.inside_node);
  if (cluster.between_nodes.bytes_per_second > 0) {
    link("between_nodes", cluster.between_nodes);
  }
  if (cluster.copy_for_each_rank) {
    text << kCopies << " = " << quoted(kOfRank) << "\n";
  }
  if (cluster.node_shares_link) {
    text << kBandwidthOf << " = " << quoted(kOfNode) << "\n";
  }
  if (!(cluster_from_toml(text.str(), cluster.name) == cluster)) {
    throw std::logic_error("to_toml: the written text is read as another cluster:\n" + text.str());
  }
  return text.str();
}

Cluster read_cluster(const std::filesystem::path& file) {
  return cluster_from_toml(
      content_of_named(
          file, "give a cluster file, as those in configs/clusters/ (docs/internals/simulate.md)"),
      file.string());
}

}  // namespace paradyse
