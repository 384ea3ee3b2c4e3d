#include "src/plan/search/batch/micro_batches.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/search/layers/layer_planner.h"

namespace paradyse {

std::int64_t fullest(const Plan& plan, const PlanMicroBatch& micro) {
  std::int64_t most = 0;
  for (const PlanGroup& group : micro.groups) {
    std::int64_t tokens = 0;
    for (const std::int64_t d : group.documents) {
      tokens += plan.lengths[idx(d)];
    }
    most = std::max(most, tokens);
  }
  return most;
}

std::int64_t longest_of(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

Plan empty_plan(
    const PlanningTask& task, const std::vector<std::int64_t>& lengths, const std::string& space) {
  Plan plan;
  plan.model_name = task.model.name;
  plan.model_sha256 = task.model.sha256;
  plan.layers = task.model.layers;
  plan.cluster_name = "local-" + std::to_string(task.ranks);
  plan.ranks = task.ranks;
  plan.weight_domain = task.domain();
  plan.tiles = task.model.tiles();
  plan.lengths = lengths;
  plan.planner_name = layer_planner(task.planner).name;
  plan.planner_space = space;
  return plan;
}

bool all_fit(const Planning& planning, const Plan& plan, Caps caps) {
  return std::ranges::all_of(plan.micro_batches, [&](const PlanMicroBatch& micro) {
    return std::ranges::all_of(micro.groups, [&](const PlanGroup& group) {
      return planning.fits(group.predicted.bytes->total(), fullest(plan, micro), caps);
    });
  });
}

namespace {

// Where a group of so many ranks may begin: at steps that leave the others room side by side.
std::vector<int> begins(int ranks, int node, int size) {
  const int unit = size > node ? node : 1;  // whole nodes, or a part of one
  const int all = size > node ? ranks : node;
  const bool aligned = all % size == 0 || std::has_single_bit(static_cast<unsigned>(size / unit));
  std::vector<int> found;
  for (int from = 0; from < ranks; from += all) {
    for (int first = from; first + size <= std::min(from + all, ranks);
         first += aligned ? size : unit) {
      found.push_back(first);
    }
  }
  return found;
}

// Of those whose nodes' cores are done first, the ranks that are.  `busy`: of cores that are
// shared.
std::optional<int> free_first(
    const std::vector<double>& clocks,
    const BusyCores* busy,
    const std::vector<bool>& taken,
    int node,
    int size) {
  std::optional<int> best;
  std::pair<double, double> least;
  for (const int first : begins(static_cast<int>(clocks.size()), node, size)) {
    double clock = 0;
    double begin = 0;
    bool free = true;
    for (int r = first; r < first + size; ++r) {
      clock = std::max(clock, clocks[idx(r)]);
      begin = std::max({begin, clock, busy == nullptr ? 0 : busy->seconds({&r, 1})});
      free = free && !taken[idx(r)];
    }
    if (free && (!best || std::pair(begin, clock) < least)) {
      best = first;
      least = {begin, clock};
    }
  }
  return best;
}

// Whether groups lie on one node, or have whole nodes.
bool keeps_to_nodes(const NodeCores& cores, const Plan& plan) {
  const auto keeps = [&](const PlanGroup& group) {
    const int size = static_cast<int>(group.ranks.size());
    return size <= cores.ranks_per_node
               ? cores.node(group.ranks.front()) == cores.node(group.ranks.back())
               : size % cores.ranks_per_node == 0 &&
                     group.ranks.front() % cores.ranks_per_node == 0;
  };
  return std::ranges::all_of(plan.micro_batches, [&](const PlanMicroBatch& micro) {
    return std::ranges::all_of(micro.groups, keeps);
  });
}

}  // namespace

bool spread_over_ranks(const NodeCores& cores, Plan& plan) {
  const int node = keeps_to_nodes(cores, plan) ? cores.ranks_per_node : plan.ranks;
  std::vector<double> clocks(idx(plan.ranks));
  BusyCores busy(cores);
  for (PlanMicroBatch& micro : plan.micro_batches) {
    std::ranges::stable_sort(micro.groups, std::greater(), [](const PlanGroup& group) {
      return std::pair(group.ranks.size(), group.predicted.seconds.value_or(0));
    });
    std::vector<bool> taken(idx(plan.ranks));
    for (PlanGroup& group : micro.groups) {
      const std::optional<int> first = free_first(
          clocks,
          cores.shared() ? &busy : nullptr,
          taken,
          node,
          static_cast<int>(group.ranks.size()));
      if (!first) {
        return false;
      }
      std::iota(group.ranks.begin(), group.ranks.end(), *first);
      double begin = 0;
      for (const int rank : group.ranks) {
        begin = std::max(begin, clocks[idx(rank)]);
      }
      for (const int rank : group.ranks) {
        clocks[idx(rank)] = begin + group.predicted.seconds.value_or(0);
        taken[idx(rank)] = true;
      }
      busy.add(group.ranks, group.predicted.seconds.value_or(0));
    }
    std::ranges::sort(micro.groups, {}, [](const PlanGroup& group) { return group.ranks.front(); });
  }
  return true;
}

bool spread_over_nodes(const NodeCores& cores, Plan& plan) {
  if (cores.nodes() == 1 || !cores.shared()) {
    return false;
  }
  const auto on_one_node = [&](const PlanGroup& group) {
    return cores.node(group.ranks.front()) == cores.node(group.ranks.back());
  };
  const auto seconds = [](const PlanGroup& group) { return group.predicted.seconds.value_or(0); };
  // with the cores of a node to itself a group keeps so many of them busy
  const auto work = [&](const PlanGroup* group) {
    return seconds(*group) * std::min(static_cast<int>(group->ranks.size()), cores.on_a_node());
  };
  bool changed = false;
  for (PlanMicroBatch& micro : plan.micro_batches) {
    std::map<std::size_t, std::vector<std::vector<int>>> places;  // [size] on one node each
    std::vector<PlanGroup*> movable;
    for (PlanGroup& group : micro.groups) {
      if (on_one_node(group)) {
        places[group.ranks.size()].push_back(group.ranks);
        movable.push_back(&group);
      }
    }
    std::ranges::stable_sort(movable, std::greater(), work);
    BusyCores busy(cores);  // ranks that cross keep all nodes as busy
    for (PlanGroup* group : movable) {
      std::vector<std::vector<int>>& free = places[group->ranks.size()];
      const auto place = std::ranges::min_element(free, {}, [&](const std::vector<int>& ranks) {
        return std::pair(busy.seconds({ranks.data(), 1}), ranks.front());
      });
      changed = changed || group->ranks != *place;
      group->ranks = std::move(*place);
      free.erase(place);
      busy.add(group->ranks, seconds(*group));
    }
    std::ranges::sort(micro.groups, {}, [](const PlanGroup& group) { return group.ranks.front(); });
  }
  return changed;
}

double until_last_rank(const Plan& plan) {
  std::vector<double> clocks(idx(plan.ranks));
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      double end = 0;
      for (const int rank : group.ranks) {
        end = std::max(end, clocks[idx(rank)]);
      }
      end += group.predicted.seconds.value_or(0);
      for (const int rank : group.ranks) {
        clocks[idx(rank)] = end;
      }
    }
  }
  return std::ranges::max(clocks);
}

namespace {

// Where ranks of a group compute at unlike speeds its documents are cut by these, else evenly.
// `speeds` [world rank]; empty: all are alike.
void cut_by_speed(const std::vector<double>& speeds, Plan& plan) {
  for (PlanMicroBatch& micro : plan.micro_batches) {
    for (PlanGroup& group : micro.groups) {
      group.shares.clear();
      if (speeds.empty()) {
        continue;
      }
      std::vector<double> shares;
      shares.reserve(group.ranks.size());
      for (const int rank : group.ranks) {
        shares.push_back(speeds[idx(rank)]);
      }
      if (std::ranges::adjacent_find(shares, std::not_equal_to()) != shares.end()) {
        group.shares = std::move(shares);
      }
    }
  }
}

bool fits_cut_by(const std::vector<double>& speeds, Planning& planning, Plan& plan, Caps caps) {
  cut_by_speed(speeds, plan);
  const PlanningTask& task = planning.task();
  const std::int64_t memory = task.training ? task.memory_per_rank : 0;  // else nothing to keep for
  const auto fits = [&] {
    planning.prediction().predict(plan);
    return all_fit(planning, plan, caps);
  };
  const bool whole = planning.weights_whole();
  const bool found = whole ? std::ranges::any_of(
                                 std::array{true, false},
                                 [&](bool overlap) {
                                   plan.messages = planning.messages();
                                   plan.messages.overlap = overlap;
                                   return fits();
                                 })
                           : let_messages_travel(plan, memory, fits);
  Plan spread = plan;
  if (found && (whole ? spread_over_ranks(node_cores(task), spread)
                      : spread_over_nodes(node_cores(task), spread))) {
    cut_by_speed(speeds, spread);
    planning.prediction().predict(spread);
    if (spread.predicted.seconds < plan.predicted.seconds && all_fit(planning, spread, caps)) {
      plan = std::move(spread);
    }
  }
  return found;
}

}  // namespace

bool predicted_to_fit(Planning& planning, Plan& plan, Caps caps) {
  const std::vector<double>& speeds = planning.speeds().speeds();
  if (speeds.empty() || planning.task().model.of_samples()) {
    return fits_cut_by({}, planning, plan, caps);
  }
  Plan uneven = plan;
  const bool even_fits = fits_cut_by({}, planning, plan, caps);
  const bool fits = fits_cut_by(speeds, planning, uneven, caps);
  if (fits && (!even_fits || uneven.predicted.seconds < plan.predicted.seconds)) {
    plan = std::move(uneven);
  }
  return fits || even_fits;
}

}  // namespace paradyse
