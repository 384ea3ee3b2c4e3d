#include "paradyse/plan/simulate.h"

#include <algorithm>
#include <ios>
#include <map>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "src/plan/cost/memory_signature.h"
#include "src/plan/cost/whole_weights.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/simulate/additive_sums.h"
#include "src/plan/simulate/core_sharing.h"
#include "src/plan/simulate/simulations.h"
#include "src/plan/simulate/timetable.h"

namespace paradyse {

double Simulation::tokens_per_second() const {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

double Simulation::model_utilisation() const {
  return seconds > 0 ? model_flops / seconds / peak_flops_per_second : 0;
}

TimeShares Simulation::shares() const {
  TimeShares shares;
  const double all = seconds * static_cast<double>(ranks.size());
  for (const SimulatedRank& rank : ranks) {
    shares.compute += (rank.compute_seconds + optimizer_seconds) / all;
    shares.communication += (rank.communication_seconds + gradient_seconds) / all;
    shares.exposed += (rank.exposed_seconds + gradient_seconds) / all;
  }
  shares.idle = std::max(0.0, 1 - shares.compute - shares.exposed);  // sums round
  return shares;
}

std::int64_t Simulation::bytes_sent() const {
  std::int64_t bytes = 0;
  for (const SimulatedRank& rank : ranks) {
    bytes += rank.traffic.bytes;
  }
  return bytes;
}

bool Simulation::fits() const {
  return std::ranges::all_of(
      ranks, [](const SimulatedRank& rank) { return rank.missing_bytes == 0; });
}

std::size_t SimulatedMicroBatch::slowest() const {
  return idx(std::ranges::max_element(group_seconds) - group_seconds.begin());
}

std::size_t Simulation::fullest() const {
  const auto found = std::ranges::max_element(ranks, {}, [](const SimulatedRank& rank) {
    return std::pair(rank.missing_bytes, rank.peak_bytes());
  });
  return idx(found - ranks.begin());
}

LinkBytes link_bytes(const Simulation& simulation, const Cluster& cluster) {
  const int nodes = simulation.ranks.empty()
                        ? 0
                        : cluster.node(static_cast<int>(simulation.ranks.size()) - 1) + 1;
  LinkBytes found{
      .by_node = std::vector<std::vector<std::int64_t>>(
          idx(nodes), std::vector<std::int64_t>(idx(nodes), 0))};
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const int from = cluster.node(static_cast<int>(r));
    for (const auto& [to, bytes] : simulation.ranks[r].bytes_to_node) {
      (from == to ? found.inside_nodes : found.between_nodes) += bytes;
      found.by_node[idx(from)][idx(to)] += bytes;
    }
  }
  return found;
}

namespace {

// Copy tables have a block for each pair of ranks: some hundred MiB.
constexpr int kMostRanksOfADomain = 512;

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("simulate: " + what);
}

void expect_playable(const Plan& plan, const Model& model, const Cluster& cluster) {
  if (plan.ranks != cluster.ranks()) {
    refuse(
        "the plan is for " + std::to_string(plan.ranks) + " ranks, the cluster " + cluster.name +
        " has " + std::to_string(cluster.ranks()) + ": plan for this cluster, or describe another");
  }
  if (plan.layers != model.layers) {
    refuse(
        "the plan has " + std::to_string(plan.layers) + " layers, the model " +
        std::to_string(model.layers) + ": it is for '" + plan.model_name + "', here is a " +
        model.name + "; plan for this model");
  }
  if (!plan.model_sha256.empty() && plan.model_sha256 != model.sha256) {
    refuse(
        "the plan is for a model '" + plan.model_name + "' " + plan.model_sha256 +
        ", not for this one, a " + model.name + " " + model.sha256 + ": plan for it");
  }
  if (plan.weight_domain > kMostRanksOfADomain) {
    refuse(
        "a sharding group (weight_domain) of " + std::to_string(plan.weight_domain) +
        " ranks; the simulation supports at most " + std::to_string(kMostRanksOfADomain) +
        ": shard weights over fewer ranks (HSDP)");
  }
  const std::vector<std::string> found = problems(plan);
  if (!found.empty()) {
    refuse(
        "the plan is invalid: " + found.front() +
        (found.size() > 1 ? " (and " + std::to_string(found.size() - 1) + " more)" : "") +
        "; see plan check");
  }
  const LengthLimit longest = model.limits.longest;
  for (const std::int64_t n : plan.lengths) {
    if (!longest.allows(n)) {
      refuse(
          "a document of " + std::to_string(n) + " tokens, but " + longest.why +
          ": cut the document, or give the model more");
    }
  }
}

std::vector<std::int64_t> lengths_of(const Plan& plan, const PlanGroup& group) {
  std::vector<std::int64_t> lengths;
  lengths.reserve(group.documents.size());
  for (const std::int64_t document : group.documents) {
    lengths.push_back(plan.lengths[idx(document)]);
  }
  return lengths;
}

bool in_domain(const PlanGroup& group, int first, const Plan& plan) {
  return group.ranks.front() >= first && group.ranks.front() < first + ranks_that_meet(plan);
}

// All that the result of a weight domain depends on, as text: its groups with ranks counted from
// the domain's first, documents, shares, meshes, dims and programs, and each rank's device and
// place in its node.
std::string domain_key(const Plan& plan, const Cluster& cluster, int first) {
  std::ostringstream key;
  key << std::hexfloat;  // of shares every bit
  const auto add = [&](const auto& number) { key << number << " "; };
  const int last = first + ranks_that_meet(plan);
  for (int rank = first; rank < last; ++rank) {
    add(&cluster.device(rank) - cluster.devices.data());
    add(cluster.node(rank) - cluster.node(first));
  }
  for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
    key << "|";
    for (const PlanGroup& group : micro_batch.groups) {
      if (!in_domain(group, first, plan)) {
        continue;
      }
      key << "(";
      for (const int rank : group.ranks) {
        add(rank - first);
      }
      key << ":";
      for (const std::int64_t n : lengths_of(plan, group)) {
        add(n);
      }
      key << ":";
      for (const double share : group.shares) {
        add(share);
      }
      key << ":";
      for (const int axis : group.mesh) {
        add(axis);
      }
      for (const auto& [dim, size] : group.dims) {
        key << dim << "=" << size << " ";
      }
      key << ":" << group.program << ")";
    }
  }
  return key.str();
}

class Player {
 public:
  Player(
      const Plan& plan,
      const Model& model,
      const Cluster& cluster,
      const SimulationOptions& options,
      ExchangeCosts& exchange_costs)
      : plan_(plan),
        model_(model),
        cluster_(cluster),
        options_(options),
        exchange_costs_(exchange_costs) {
    for (int r = 0; r < ranks_that_meet(plan); ++r) {
      static_bytes_.push_back(static_bytes(
          model_,
          plan.weight_domain,
          r % plan.weight_domain,
          options.precision,
          options.keeps(),
          plan.messages));
    }
  }

  // What ranks that meet did, and when.
  struct Played {
    std::vector<SimulatedRank> ranks;
    std::vector<double> ends = {};                        // [micro-batch] of the last rank
    std::vector<std::vector<double>> group_seconds = {};  // [micro-batch][group of the domain]
  };

  // The domain that begins at `first`.
  Played domain(int first) const {
    const int ranks_here = ranks_that_meet(plan_);
    std::vector<SimulatedRank> held(idx(ranks_here));
    Timetable timetable(cluster_, options_, first, ranks_here, exchange_costs_);
    AdditiveSums sums(cluster_, options_, first, ranks_here);
    AdditiveCosts costs(cluster_, options_);
    Played played{.ranks = timetable.ranks()};
    for (std::size_t m = 0; m < plan_.micro_batches.size(); ++m) {
      std::vector<GroupRun> groups;
      for (const PlanGroup& group : plan_.micro_batches[m].groups) {
        if (in_domain(group, first, plan_)) {
          groups.push_back(ready(group, first, held));
        }
      }
      if (options_.additive) {
        sums.run(groups);
      } else {
        timetable.run(m, groups, speeds_of(groups, costs));
      }
      note(groups, first, options_.additive ? sums.ranks() : timetable.ranks(), played);
    }
    std::vector<SimulatedRank>& ranks = played.ranks;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ranks[r].bytes = held[r].bytes;
      ranks[r].offloaded_bytes = held[r].offloaded_bytes;
      ranks[r].bytes.static_bytes = static_bytes_[r];
      ranks[r].missing_bytes = std::max<std::int64_t>(
          0, ranks[r].peak_bytes() - cluster_.device(first + static_cast<int>(r)).memory_bytes);
    }
    return played;
  }

 private:
  // [group] Of its ranks, times those of their devices.
  [[nodiscard]] std::vector<double> speeds_of(
      const std::vector<GroupRun>& groups, AdditiveCosts& costs) const {
    if (!cluster_.shares_cores()) {
      return std::vector<double>(groups.size(), 1);
    }
    std::vector<GroupLoad> loads;
    loads.reserve(groups.size());
    for (const GroupRun& group : groups) {
      loads.push_back(
          {.ranks = group.seats.ranks,
           .seconds = costs.group(group.timeline, group.seats).seconds().group});
    }
    return speeds_beside_others(cluster_, loads);
  }

  // After a micro-batch: `now` in place of `played.ranks`, and what came between.
  static void note(
      const std::vector<GroupRun>& groups,
      int first,
      std::vector<SimulatedRank> now,
      Played& played) {
    double end = 0;
    for (const SimulatedRank& rank : now) {
      end = std::max(end, rank.seconds);
    }
    std::vector<double>& busiest = played.group_seconds.emplace_back();
    for (const GroupRun& group : groups) {
      double most = 0;
      for (const int world_rank : group.seats.ranks) {
        const auto r = idx(world_rank - first);
        const auto busy = [](const SimulatedRank& rank) {
          return rank.compute_seconds + rank.exposed_seconds;
        };
        most = std::max(most, busy(now[r]) - busy(played.ranks[r]));
      }
      busiest.push_back(most);
    }
    played.ends.push_back(end);
    played.ranks = std::move(now);
  }

  // Counts what the group's ranks hold into `held`.
  GroupRun ready(const PlanGroup& group, int first, std::vector<SimulatedRank>& held) const {
    GroupRun run{
        .timeline = group_timeline(plan_, group, model_, options_.training).parts,
        .seats = {.ranks = group.ranks, .domain_first = first, .domain = gathers_from(plan_)},
        .instructions = {},
        .memory = {}};
    run.instructions = instructions(run.timeline);
    std::map<std::vector<std::int64_t>, std::shared_ptr<const MemoryTrail>> alike;
    for (std::size_t r = 0; r < group.ranks.size(); ++r) {
      const Seat seat = run.seats.seat(r);
      const auto d = idx(seat.domain_rank);
      std::vector<std::int64_t> key = memory_signature(run.timeline, seat, options_.precision);
      key.push_back(static_bytes_[d]);
      std::shared_ptr<const MemoryTrail>& trail = alike[key];
      if (trail == nullptr) {
        trail = std::make_shared<MemoryTrail>(
            memory_trail(run.timeline, seat, options_.precision, static_bytes_[d]));
      }
      run.memory.push_back(trail);
      const Footprint& foot = trail->footprint;
      SimulatedRank& rank = held[d];
      rank.offloaded_bytes = std::max(rank.offloaded_bytes, foot.offloaded_bytes);
      rank.bytes.static_bytes = static_bytes_[d];
      if (foot.peak_bytes > rank.peak_bytes()) {
        rank.bytes.saved = foot.saved_bytes;
        rank.bytes.transient = foot.peak_bytes - static_bytes_[d] - foot.saved_bytes;
      }
    }
    return run;
  }

  const Plan& plan_;
  const Model model_;
  const Cluster& cluster_;
  const SimulationOptions& options_;
  ExchangeCosts& exchange_costs_;
  std::vector<std::int64_t> static_bytes_;  // [domain rank]
};

// Seconds of all-reducing so many bytes over every `stride`-th rank: each sends and receives them
// twice, but for its own part.
double all_reduce_seconds(const Cluster& cluster, int stride, double bytes) {
  const int members = cluster.ranks() / stride;
  const bool several_nodes = cluster.ranks() > cluster.ranks_per_node;
  Link link = several_nodes ? cluster.between_nodes : cluster.inside_node;
  if (several_nodes && cluster.node_shares_link) {  // each place of a node all-reduces at once
    link.bytes_per_second /= std::min(stride, cluster.ranks_per_node);
  } else if (several_nodes && stride == 1) {  // a node's links work together
    link.bytes_per_second *= cluster.ranks_per_node;
  }
  if (several_nodes && stride == 1) {
    link.bytes_per_second = std::min(link.bytes_per_second, cluster.inside_node.bytes_per_second);
  }
  return collective_seconds(
      link, members, 2 * bytes * (members - 1) / members / link.bytes_per_second);
}

// Where weights are whole while a step lasts, what the ranks of each sharding group exchange for
// that; their seconds.
double add_step_exchanges(
    const Plan& plan,
    const Model& model,
    const SimulationOptions& options,
    ExchangeCosts& exchange_costs,
    Simulation& simulation) {
  double slowest = 0;
  for (int first = 0; first < plan.ranks && whole_weights(plan); first += plan.weight_domain) {
    std::vector<int> ranks(idx(plan.weight_domain));
    std::iota(ranks.begin(), ranks.end(), first);
    double seconds = 0;
    const auto add = [&](const Exchange& exchange, std::int64_t times) {
      seconds += static_cast<double>(times) * exchange_costs.together(exchange, ranks);
      const std::vector<SentByNode> sent = exchange_costs.sent(exchange, ranks);
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        SimulatedRank& rank = simulation.ranks[idx(ranks[r])];
        const std::int64_t bytes = times * exchange.element_bytes;
        rank.traffic +=
            {.bytes = sent[r].elements * bytes,
             .messages = times * sent[r].messages,
             .collectives = times};
        for (const auto& [node, elements] : sent[r].to_node) {
          rank.bytes_to_node[node] += elements * bytes;
        }
      }
    };
    for (const StepExchanges& part : step_exchanges(model, plan.weight_domain)) {
      add(part.weights(options.precision), part.parts);
      if (options.training && !part.frozen) {
        add(part.gradients(options.precision), part.parts);
      }
    }
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

// Gradients of vectors are summed over all ranks, those of matrices between replicas of a domain;
// then each rank updates what it stores.
void add_step(
    const Plan& plan,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options,
    Simulation& simulation) {
  const std::int64_t vectors = trained_vector_elements(model);
  std::int64_t most = 0;
  for (int rank = 0; rank < cluster.ranks(); ++rank) {
    const DeviceClass& device = cluster.device(rank);
    const int domain = plan.weight_domain;
    const std::int64_t stored =
        static_bytes(model, domain, rank % domain, options.precision, options.keeps());
    most = std::max(most, trained_elements(model, domain, rank % domain) - vectors);
    // all that is stored is read and written
    simulation.optimizer_seconds = std::max(
        simulation.optimizer_seconds,
        2 * static_cast<double>(stored) / device.memory_bytes_per_second + device.launch_seconds);
  }
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<double>(elements * options.precision.statistic);
  };
  simulation.gradient_seconds += all_reduce_seconds(cluster, 1, bytes(vectors));
  if (plan.weight_domain < cluster.ranks()) {
    simulation.gradient_seconds += all_reduce_seconds(cluster, plan.weight_domain, bytes(most));
  }
  if (options.observer.span) {
    const double begin = simulation.seconds;
    const double middle = begin + simulation.gradient_seconds;
    for (const SimulatedRank& rank : simulation.ranks) {
      if (&rank - simulation.ranks.data() != rank.as) {
        continue;
      }
      Span span{
          .rank = rank.as, .micro_batch = plan.micro_batches.size(), .what = Span::What::step};
      span.lane = Lane::communication;
      span.begin = begin;
      span.end = middle;
      span.name = "gradients";
      options.observer.span(span);
      span.lane = Lane::compute;
      span.begin = middle;
      span.end = middle + simulation.optimizer_seconds;
      span.name = "optimizer";
      options.observer.span(span);
    }
  }
  simulation.seconds += simulation.gradient_seconds + simulation.optimizer_seconds;
}

// Adds what a domain did, whose groups stand at these places of the micro-batches.
class MicroBatches {
 public:
  explicit MicroBatches(const Plan& plan) : plan_(plan), ends_(plan.micro_batches.size(), 0.0) {
    for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
      found_.push_back(
          {.seconds = 0, .group_seconds = std::vector<double>(micro_batch.groups.size())});
    }
  }

  void add(const Player::Played& played, int first) {
    for (std::size_t m = 0; m < found_.size(); ++m) {
      ends_[m] = std::max(ends_[m], played.ends[m]);
      std::size_t next = 0;
      for (std::size_t g = 0; g < found_[m].group_seconds.size(); ++g) {
        if (in_domain(plan_.micro_batches[m].groups[g], first, plan_)) {
          found_[m].group_seconds[g] = played.group_seconds[m][next++];
        }
      }
    }
  }
  [[nodiscard]] std::vector<SimulatedMicroBatch> found() && {
    for (std::size_t m = 0; m < found_.size(); ++m) {
      found_[m].seconds = ends_[m] - (m > 0 ? ends_[m - 1] : 0);
    }
    return std::move(found_);
  }

 private:
  const Plan& plan_;
  std::vector<double> ends_;  // of all domains so far
  std::vector<SimulatedMicroBatch> found_;
};

// What a domain's ranks miss and how long they take; less is better.
std::pair<std::int64_t, double> worth(const std::vector<SimulatedRank>& ranks) {
  std::pair<std::int64_t, double> worst{0, 0.0};
  for (const SimulatedRank& rank : ranks) {
    worst.first = std::max(worst.first, rank.missing_bytes);
    worst.second = std::max(worst.second, rank.seconds);
  }
  return worst;
}

// The groups of a domain, in their order.
std::vector<PlanGroup*> groups_of(Plan& plan, int first) {
  std::vector<PlanGroup*> groups;
  for (PlanMicroBatch& micro_batch : plan.micro_batches) {
    for (PlanGroup& group : micro_batch.groups) {
      if (in_domain(group, first, plan)) {
        groups.push_back(&group);
      }
    }
  }
  return groups;
}

// With shares for the groups of a domain that have none.
Plan with_shares(
    Plan plan,
    int first,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options) {
  const Model planned = with_tiles(model, plan.tiles);  // computed as the plan says
  for (PlanGroup* group : groups_of(plan, first)) {
    if (group->shares.empty()) {
      group->shares = proportional_shares(
          group->ranks,
          lengths_of(plan, *group),
          choices(plan.programs.at(group->program)),
          plan.weight_domain,
          planned,
          cluster,
          options,
          plan.messages);
    }
  }
  return plan;
}

}  // namespace

Plan with_proportional_shares(
    const Plan& plan,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options,
    ExchangeCosts& exchange_costs) {
  expect_playable(plan, model, cluster);
  if (model.of_samples()) {
    return plan;  // dims are cut evenly
  }
  Plan found = plan;
  SimulationOptions quiet = options;
  quiet.observer = {};
  std::map<std::string, int> first_alike;  // domain
  for (int first = 0; first < plan.ranks; first += ranks_that_meet(plan)) {
    const auto [same, fresh] = first_alike.emplace(domain_key(plan, cluster, first), first);
    if (fresh) {
      Plan shared = with_shares(found, first, model, cluster, quiet);
      const auto ranks = [&](const Plan& one) {
        return Player(one, model, cluster, quiet, exchange_costs).domain(first).ranks;
      };
      if (shared != found && worth(ranks(shared)) < worth(ranks(found))) {
        found = std::move(shared);
      }
      continue;
    }
    const std::vector<PlanGroup*> from = groups_of(found, same->second);
    const std::vector<PlanGroup*> to = groups_of(found, first);
    for (std::size_t g = 0; g < to.size(); ++g) {
      to[g]->shares = from[g]->shares;
    }
  }
  return found;
}

Simulation simulate(
    const Plan& plan,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options,
    ExchangeCosts& exchange_costs) {
  if (options.proportional_tokens && !cluster.uniform()) {
    SimulationOptions as_it_is = options;
    as_it_is.proportional_tokens = false;
    return simulate(
        with_proportional_shares(plan, model, cluster, options, exchange_costs),
        model,
        cluster,
        as_it_is,
        exchange_costs);
  }
  expect_playable(plan, model, cluster);
  Simulation simulation;
  simulation.tokens = std::accumulate(plan.lengths.begin(), plan.lengths.end(), std::int64_t{0});
  const Player player(plan, model, cluster, options, exchange_costs);
  MicroBatches micro_batches(plan);
  std::map<std::string, Player::Played> alike;
  for (int first = 0; first < plan.ranks; first += ranks_that_meet(plan)) {
    const auto [found, fresh] = alike.try_emplace(domain_key(plan, cluster, first));
    Player::Played& played = found->second;
    if (fresh) {
      played = player.domain(first);
    }
    for (SimulatedRank rank : played.ranks) {
      const int moved = cluster.node(first) - cluster.node(played.ranks.front().as);
      std::map<int, std::int64_t> bytes_to_node;
      for (const auto& [node, bytes] : rank.bytes_to_node) {
        bytes_to_node[node + moved] = bytes;
      }
      rank.bytes_to_node = std::move(bytes_to_node);
      simulation.ranks.push_back(std::move(rank));
    }
    micro_batches.add(played, first);
  }
  simulation.micro_batches = std::move(micro_batches).found();
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const SimulatedRank& one = simulation.ranks[idx(rank)];
    simulation.seconds = std::max(simulation.seconds, one.seconds);
    simulation.model_flops += one.model_flops;
    const DeviceClass& device = cluster.device(rank);
    simulation.peak_flops_per_second += options.precision.activation <= 2
                                            ? device.matmul_flops_per_second
                                            : device.float32_flops_per_second;
  }
  simulation.gradient_seconds =
      add_step_exchanges(plan, model, options, exchange_costs, simulation);
  if (options.training) {
    add_step(plan, model, cluster, options, simulation);
  } else {
    simulation.seconds += simulation.gradient_seconds;
  }
  return simulation;
}

Plan with_proportional_shares(
    const Plan& plan,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options) {
  ExchangeCosts exchange_costs(cluster);
  return with_proportional_shares(plan, model, cluster, options, exchange_costs);
}

Simulation simulate(
    const Plan& plan,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options) {
  ExchangeCosts exchange_costs(cluster);
  return simulate(plan, model, cluster, options, exchange_costs);
}

}  // namespace paradyse
