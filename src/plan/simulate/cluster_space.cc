#include "src/plan/simulate/cluster_space.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/cost/memory_signature.h"
#include "src/plan/search/batch/micro_batches.h"
#include "src/plan/simulate/additive.h"
#include "src/plan/simulate/cluster_groups.h"

namespace paradyse {
namespace {

// Of the ladder of lengths, times the rung before; documents of the first rung that fill a group.
constexpr std::int64_t kRung = 4;

// Seconds of a document of n tokens beside what every group takes, in a group that is full.
struct Curve {
  double fixed = 0;
  std::vector<double> lengths;
  std::vector<double> rates;  // seconds a token

  [[nodiscard]] double at(double n) const {
    if (lengths.size() == 1) {
      return n * rates.front();
    }
    std::size_t above = 1;
    while (above + 1 < lengths.size() && lengths[above] < n) {
      ++above;
    }
    const double part = (n - lengths[above - 1]) / (lengths[above] - lengths[above - 1]);
    const double rate = rates[above - 1] + part * (rates[above] - rates[above - 1]);
    return n * std::max(rate, 0.0);
  }
};

// Ranks of a cluster whose devices are taken for alike.
struct Devices {
  int pool = -1;    // of the task; -1: all ranks
  int ranks = 0;    // neighbours
  Cluster cluster;  // all of it has these devices
  std::int64_t memory = 0;
  AdditiveCosts costs;

  Devices(int of_pool, int count, Cluster alike, const ClusterSpaceOptions& options)
      : pool(of_pool),
        ranks(count),
        cluster(std::move(alike)),
        memory(static_cast<std::int64_t>(
            static_cast<double>(cluster.devices.front().memory_bytes) * (1 - options.reserve))),
        costs(cluster, options.simulation) {}
};

// Runs of like devices, none with a part of a node and more.
struct Run {
  DeviceClass device;
  int ranks = 0;
};
std::vector<Run> runs(const Cluster& cluster) {
  std::vector<Run> found;
  int begin = 0;
  for (const DeviceClass& device : cluster.devices) {
    for (int left = device.count; left > 0;) {
      const int inside = begin % cluster.ranks_per_node;
      const int ranks = inside == 0 ? left : std::min(left, cluster.ranks_per_node - inside);
      found.push_back({.device = device, .ranks = ranks});
      begin += ranks;
      left -= ranks;
    }
  }
  return found;
}

class Space {
 public:
  Space(const Model& model, const Cluster& cluster, const ClusterSpaceOptions& options)
      : model_(
            with_tiles(model, tiles_of(cluster, model, options.simulation.precision.activation))),
        cluster_(cluster),
        options_(options),
        domain_(options.weight_domain == 0 ? cluster.ranks() : options.weight_domain) {
    devices_.push_back(std::make_unique<Devices>(-1, cluster.ranks(), alike(cluster), options));
    if (!cluster.uniform() && !options.flexsp) {
      for (const Run& run : runs(cluster)) {
        devices_.push_back(std::make_unique<Devices>(
            static_cast<int>(devices_.size()) - 1,
            run.ranks,
            all_of(cluster, run.device),
            options));
      }
    }
    expect_group_sizes(options.group_sizes, all_sizes(cluster.ranks()));
    const Precision& precision = options.simulation.precision;
    for (int rank = 0; rank < domain_; ++rank) {
      const std::int64_t held =
          static_bytes(model_, domain_, rank, precision, options.simulation.keeps());
      if (held > held_) {
        fullest_ = rank;
        held_ = held;
      }
    }
  }

  [[nodiscard]] std::int64_t memory_for(std::int64_t tokens) const {
    const int size = sizes(cluster_.ranks()).back();
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const LayerRuns& program : ways(size)) {
      least = std::min(least, peak(program, size, tokens + std::int64_t{2} * size, all(size)));
    }
    // capacity() gives up to a hundred and twenty-eighth for being found fast
    return static_cast<std::int64_t>(
        std::ceil(static_cast<double>(least) / (1 - options_.reserve) * (1 + 1.0 / 128)));
  }

  // The types, with what a document of up to `longest` tokens takes.
  GroupSpace make(std::vector<std::int64_t> lengths) {
    GroupSpace space{
        .name = options_.flexsp ? "flexsp" : "full",
        .task =
            {.ranks = cluster_.ranks(),
             .lengths = std::move(lengths),
             .types = {},
             .seconds = {},
             .overlapped = options_.overlapped,
             .node = options_.flexsp ? 0 : std::min(cluster_.ranks_per_node, cluster_.ranks())},
        .programs = {},
        .idle = uniform_program(model_.layers, "DataZ", "gather", Recompute::none),
        .weight_domain = domain_,
        .model_name = model_.name,
        .model_sha256 = model_.sha256,
        .layers = model_.layers,
        .cluster_name = cluster_.name,
        .cluster_sha256 = {},
        .tiles = model_.tiles(),
        .messages = {.overlap = options_.overlapped}};
    for (const std::int64_t n : space.task.lengths) {
      longest_ = std::max(longest_, n);
      tokens_ += n;
    }
    for (const std::unique_ptr<Devices>& devices : devices_) {
      if (devices->pool >= 0) {
        space.task.pools.push_back(devices->ranks);
      }
      for (const int size : sizes(devices->ranks)) {
        const std::size_t first = space.task.types.size();
        for (const LayerRuns& program : ways(size)) {
          add(space, *devices, size, program);
        }
        drop_beaten(space, first);
      }
    }
    // ranks without documents gather weights like the others
    const bool idle_fits = peak(space.idle, 1, 0, all(1)) <= devices_.front()->memory;
    if (space.task.types.empty() || !idle_fits) {
      throw std::invalid_argument(
          model_.name + " leaves no memory for a token on " + std::to_string(domain_) +
          " ranks of " + cluster_.name + ": each needs " + bytes_text(memory_for(1)) +
          ", and has " + bytes_text(devices_.front()->cluster.devices.front().memory_bytes) +
          "; give more ranks or memory, or a larger sharding group (weight_domain)");
    }
    price_pools(space.task);
    space.task.micro_batch_seconds =
        devices_.front()->costs.seconds(group(space.idle, 1, 0), {0}, model_).weights;
    space.batch_seconds = end_of_step(space, model_, cluster_, options_.simulation, 1);
    check(space.task);
    return space;
  }

 private:
  // Of groups that lie in so many ranks, of those that are asked for.
  [[nodiscard]] std::vector<int> sizes(int ranks) const {
    return wanted_of(all_sizes(ranks), options_.group_sizes);
  }

  [[nodiscard]] std::vector<int> all_sizes(int ranks) const {
    const int most = std::min(ranks, domain_);
    if (!options_.flexsp) {
      return sizes_in_nodes(most, std::min(cluster_.ranks_per_node, cluster_.ranks()));
    }
    std::vector<int> found;
    for (int size = 1; size <= most; size *= 2) {
      found.push_back(size);
    }
    return found;
  }

  [[nodiscard]] std::vector<LayerRuns> ways(int size) const {
    std::vector<std::string> cores = {size == 1 ? "DataZ" : "UlyssesZ"};
    if (!options_.flexsp && size > 1) {
      cores.emplace_back("MegatronCZ");
    }
    std::vector<LayerRuns> found;
    for (const Recompute level : kRecomputeLevels) {
      if (options_.flexsp && level != Recompute::none) {
        break;
      }
      for (const std::string& core : cores) {
        found.push_back(uniform_program(model_.layers, core, "gather", level));
      }
      if (!options_.flexsp && size > cluster_.ranks_per_node) {
        LayerRuns usp = uniform_program(model_.layers, "USP", "gather", level);
        usp.front().choice.front().options = {{"ulysses_degree", cluster_.ranks_per_node}};
        found.push_back(std::move(usp));
      }
    }
    return found;
  }

  [[nodiscard]] GroupTask group(const LayerRuns& program, int size, std::int64_t tokens) const {
    return {
        .layers = program,
        .lengths = tokens > 0 ? std::vector<std::int64_t>{tokens} : std::vector<std::int64_t>{},
        .ranks = size,
        .shares = {},
        .weight_domain = domain_,
        .keep = options_.simulation.training,
        .messages = {.overlap = options_.overlapped},
        .tiles = model_.tiles()};
  }

  static std::vector<int> all(int size) {
    std::vector<int> ranks(idx(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  // Groups are asked about as full as they will be, of their room or a rank's share of the batch:
  // few tokens take as long as reading weights does, which is nothing beside many.
  Curve curve(Devices& devices, const LayerRuns& program, int size, std::int64_t room) {
    const std::vector<int> ranks = all(size);
    // exchanges of lengths that all ranks share evenly are remembered
    const std::int64_t even = std::int64_t{2} * size;
    const std::int64_t full = std::min(room, tokens_ / cluster_.ranks() * size);
    const std::int64_t first = std::max(even, full / (kRung * even) * even);
    const auto seconds = [&](std::int64_t n, std::int64_t documents) {
      GroupTask task = group(program, size, 0);
      task.lengths.assign(idx(documents), n);
      return devices.costs.seconds(task, ranks, model_).group;
    };
    Curve found;
    std::int64_t documents = kRung;
    for (std::int64_t n = first;; n *= kRung) {
      const double all = seconds(n, documents);
      if (n == first) {
        found.fixed = std::max(0.0, 2 * seconds(n, documents / 2) - all);
      }
      found.lengths.push_back(static_cast<double>(n));
      found.rates.push_back((all - found.fixed) / static_cast<double>(n * documents));
      if (n >= longest_ && documents == 1) {
        break;
      }
      documents = 1;
    }
    return found;
  }

  // Of these ranks of a group the fullest, wherever it lies in the domain.
  [[nodiscard]] std::int64_t peak(
      const LayerRuns& program, int size, std::int64_t tokens, std::span<const int> ranks) const {
    const Timeline parts = timeline(group(program, size, tokens), model_);
    const Precision& precision = options_.simulation.precision;
    std::set<std::vector<std::int64_t>> seen;  // ranks that hold alike count once
    std::int64_t most = 0;
    for (const int rank : ranks) {
      const Seat seat{.group_rank = rank, .domain_rank = fullest_};
      if (ranks.size() == 1 || seen.insert(memory_signature(parts, seat, precision)).second) {
        most = std::max(most, footprint(parts, seat, precision, held_).peak_bytes);
      }
    }
    return most;
  }

  // Tokens that find room, in documents of any length: bytes grow by so much a token beyond what is
  // there without; 0: none.
  [[nodiscard]] std::int64_t capacity(
      std::int64_t memory, const LayerRuns& program, int size) const {
    const int last[] = {size - 1};  // has the most heads where ranks have unequally many
    std::int64_t low = std::int64_t{size} * 64;
    std::int64_t high = low * 64;
    std::int64_t found = 0;
    for (int i = 0; i < 6; ++i) {
      const std::int64_t at_low = peak(program, size, low, last);
      const std::int64_t at_high = peak(program, size, high, last);
      const double slope = static_cast<double>(at_high - at_low) / static_cast<double>(high - low);
      if (slope <= 0) {
        found = at_high <= memory ? high : 0;
        break;
      }
      const double tokens = static_cast<double>(low) + static_cast<double>(memory - at_low) / slope;
      if (tokens < 1) {
        return 0;
      }
      found = static_cast<std::int64_t>(tokens);
      if (std::abs(tokens - static_cast<double>(high)) < 0.05 * tokens) {
        break;  // near enough to trust the line
      }
      low = std::max<std::int64_t>(1, found / 2);
      high = std::max(low + 1, found);
    }
    // documents are cut to within two tokens a rank
    while (found > 0 && peak(program, size, found + std::int64_t{2} * size, all(size)) > memory) {
      found -= std::max<std::int64_t>(1, found / 256);
    }
    return found;
  }

  void add(GroupSpace& space, Devices& devices, int size, const LayerRuns& program) {
    const std::int64_t room = capacity(devices.memory, program, size);
    if (room < 1) {
      return;
    }
    const Curve seconds = curve(devices, program, size, room);
    space.task.types.push_back(
        {.name = std::to_string(size) + " x " + name(program) +
                 (devices.pool < 0 ? "" : " on " + devices.cluster.devices.front().name),
         .ranks = size,
         .capacity = room,
         .fixed_seconds = seconds.fixed,
         .pool = devices.pool});
    space.programs.push_back(program);
    for (const std::int64_t n : space.task.lengths) {
      space.task.seconds.push_back(seconds.at(static_cast<double>(n)));
    }
  }

  // A rank second counts as much of the documents that fit everywhere as is done in it, to the mean
  // of all ranks.
  static void price_pools(GroupingTask& task) {
    const std::size_t pools = task.pools.size();
    std::vector<double> area(pools, 0);  // of those documents
    for (int k = 0; k < task.documents(); ++k) {
      std::vector<double> least(pools, std::numeric_limits<double>::infinity());
      for (int t = 0; t < std::ssize(task.types); ++t) {
        if (const GroupType& type = task.types[idx(t)];
            type.pool >= 0 && task.fits(t, task.lengths[idx(k)])) {
          double& mine = least[idx(type.pool)];
          mine = std::min(mine, type.ranks * task.at(t, k));
        }
      }
      if (std::ranges::all_of(least, [](double seconds) { return std::isfinite(seconds); })) {
        std::ranges::transform(area, least, area.begin(), std::plus());
      }
    }
    double all = 0;
    for (std::size_t pool = 0; pool < pools; ++pool) {
      if (area[pool] == 0) {
        return;  // none fits everywhere: all count the same
      }
      all += task.pools[pool] / area[pool];
    }
    double least = 1;
    for (GroupType& type : task.types) {
      if (type.pool >= 0) {
        type.price = task.ranks / (area[idx(type.pool)] * all);
        least = std::min(least, type.price);
      }
    }
    for (GroupType& type : task.types) {
      type.price = type.pool < 0 ? least : type.price;
    }
  }

  // Of types from `first` on, as large as one another, those go than which another has at least the
  // room and takes no longer for anything.
  static void drop_beaten(GroupSpace& space, std::size_t first) {
    GroupingTask& task = space.task;
    const std::size_t documents = task.lengths.size();
    const auto row = [&](std::size_t type) {
      return std::span(task.seconds).subspan(type * documents, documents);
    };
    const auto beats = [&](std::size_t a, std::size_t b) {
      return task.types[a].capacity >= task.types[b].capacity &&
             task.types[a].fixed_seconds <= task.types[b].fixed_seconds &&
             std::ranges::equal(row(a), row(b), std::ranges::less_equal());
    };
    for (std::size_t b = task.types.size(); b-- > first;) {
      bool beaten = false;
      for (std::size_t a = first; a < task.types.size() && !beaten; ++a) {
        beaten = a != b && beats(a, b);
      }
      if (beaten) {
        const auto at = static_cast<std::ptrdiff_t>(b);
        const auto begin = task.seconds.begin() + at * std::ssize(task.lengths);
        task.seconds.erase(begin, begin + std::ssize(task.lengths));
        task.types.erase(task.types.begin() + at);
        space.programs.erase(space.programs.begin() + at);
      }
    }
  }

  Model model_;
  const Cluster& cluster_;
  const ClusterSpaceOptions& options_;
  std::vector<std::unique_ptr<Devices>> devices_;  // all ranks, then the pools
  int domain_;
  int fullest_ = 0;        // rank of the domain that stores most,
  std::int64_t held_ = 0;  // and what it always holds
  std::int64_t longest_ = 0;
  std::int64_t tokens_ = 0;  // of the batch
};

}  // namespace

std::int64_t memory_for(
    const Model& model,
    const Cluster& cluster,
    const ClusterSpaceOptions& options,
    std::int64_t tokens) {
  expect_weight_domain(cluster, options.weight_domain);
  return Space(model, cluster, options).memory_for(tokens);
}

GroupSpace cluster_space(
    const Model& model,
    const Cluster& cluster,
    const ClusterSpaceOptions& options,
    std::vector<std::int64_t> lengths) {
  expect_weight_domain(cluster, options.weight_domain);
  const LengthLimit longest = model.limits.longest;
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    if (!longest.allows(lengths[k])) {
      throw std::invalid_argument(
          "document " + std::to_string(k) + " has " + std::to_string(lengths[k]) +
          " tokens: " + longest.why + "; leave longer documents out (--context " +
          std::to_string(longest.tokens) + ")");
    }
  }
  return Space(model, cluster, options).make(std::move(lengths));
}

}  // namespace paradyse
