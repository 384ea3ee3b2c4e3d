#include "src/plan/simulate/batch_question.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "src/plan/base/text_match.h"
#include "src/plan/plan/size_limits.h"
#include "src/plan/simulate/cluster_space.h"
#include "src/plan/simulate/sample_space.h"

namespace paradyse {
namespace {

// A model on a described cluster.
struct Described {
  Model model;
  Cluster cluster;
  ClusterSpaceOptions how;
  int node = 1;  // ranks of one
};

Described described(const ClusterRequest& request) {
  expect_of_space(request.space, request.overlapped, request.weight_domain);
  const int node = std::min(request.cluster.ranks_per_node, request.cluster.ranks());
  return {
      .model = without_dropout(request.model),
      .cluster = request.cluster,
      .how =
          {.flexsp = request.space == "flexsp",
           .overlapped = request.overlapped,
           .weight_domain = request.weight_domain == "node" ? node : 0,
           .reserve = request.reserve,
           .group_sizes = request.group_sizes,
           .simulation = {.precision = precision_of(request.dtype)}},
      .node = node};
}

// The same with weights sharded over a node, where that is to be tried and is something else.
std::optional<ClusterSpaceOptions> in_a_node(const Described& given, bool try_node) {
  ClusterSpaceOptions how = given.how;
  how.weight_domain = given.node;
  std::erase_if(how.group_sizes, [&](int size) { return size > given.node; });
  const bool sizes_left = given.how.group_sizes.empty() || !how.group_sizes.empty();
  const bool other = given.node < given.cluster.ranks() && given.cluster.ranks() % given.node == 0;
  return try_node && sizes_left && other ? std::optional(how) : std::nullopt;
}

std::vector<GroupSpace> spaces_of(
    const Described& given, bool try_node, const std::vector<std::int64_t>& lengths) {
  std::vector<GroupSpace> spaces = {cluster_space(given.model, given.cluster, given.how, lengths)};
  if (const std::optional<ClusterSpaceOptions> how = in_a_node(given, try_node)) {
    try {
      spaces.push_back(cluster_space(given.model, given.cluster, *how, lengths));
    } catch (const std::invalid_argument&) {
      return spaces;  // states leave no memory in a node: the world is all there is
    }
  }
  return spaces;
}

constexpr int kMostOfCluster = 512;  // of a weight domain that is simulated
constexpr int kMostForSample = 256;  // that are tried for one that finds no room: seconds

// With so many bytes on a device, or so many ranks that what asks `takes` of them.
std::string remedy(
    const Described& given,
    std::int64_t needed_bytes,
    int most_ranks,
    const std::function<bool(const Cluster& other)>& takes) {
  const auto takes_nodes = [&](std::int64_t nodes) {
    return takes(
        with_ranks(given.cluster, static_cast<int>(nodes) * given.node, given.cluster.name));
  };
  // more nodes do not help where a document stays in one
  const bool grows = given.how.weight_domain == 0 && given.cluster.uniform() &&
                     given.cluster.between_nodes.bytes_per_second > 0;
  std::int64_t nodes = 0;
  std::int64_t more = given.cluster.ranks() / given.node;
  while (grows && nodes == 0 && 2 * more * given.node <= most_ranks) {
    nodes = least(more + 1, 2 * more, takes_nodes);
    more *= 2;
  }
  return what_would_fit(nodes * given.node, static_cast<double>(needed_bytes) / (1024 * 1024));
}

std::string remedy(const Described& given, std::int64_t longest) {
  std::int64_t memory = std::numeric_limits<std::int64_t>::max();
  for (const DeviceClass& device : given.cluster.devices) {
    memory = std::min(memory, device.memory_bytes);
  }
  return remedy(
      given,
      memory_for(given.model, given.cluster, given.how, longest),
      kMostOfCluster,
      [&](const Cluster& other) {
        return memory_for(given.model, other, given.how, longest) <= memory;
      });
}

double simulated(const Described& given, const Plan& plan) {
  return plan.weight_domain > kMostOfCluster
             ? 0
             : simulate(plan, given.model, given.cluster, given.how.simulation).seconds;
}

// A sharding group each, and of it so many samples at once; none: why.
SampleSpaces sample_spaces_of(const Described& given, bool try_node, const BatchSizes& samples) {
  SampleSpaces found = sample_spaces(given.model, given.cluster, given.how, samples);
  if (found.spaces.empty()) {
    return found;
  }
  if (const std::optional<ClusterSpaceOptions> how = in_a_node(given, try_node)) {
    try {
      std::ranges::move(
          sample_spaces(given.model, given.cluster, *how, samples).spaces,
          std::back_inserter(found.spaces));
    } catch (const std::invalid_argument&) {
      return found;  // as of documents
    }
  }
  return found;
}

}  // namespace

void expect_of_space(const std::string& space, bool overlapped, const std::string& weight_domain) {
  expect_one_of("--space", space, {"flexsp", "full"});
  expect_one_of("--weight-domain", weight_domain, {"auto", "world", "node"});
  if (space == "flexsp" && (overlapped || weight_domain == "node")) {
    throw std::invalid_argument(
        "--overlap and --weight-domain node need --space full: the space of the FlexSP paper adds "
        "times up and shards weights over all ranks");
  }
}

BatchQuestion batch_question(
    const ClusterRequest& request, const std::vector<std::int64_t>& lengths) {
  for (std::size_t k = 0; k < lengths.size(); ++k) {
    if (lengths[k] < 1) {
      throw std::invalid_argument(
          fmt::format("document {} has {} tokens: it must have at least 1", k, lengths[k]));
    }
  }
  if (lengths.empty()) {
    throw std::invalid_argument("a batch needs at least one document");
  }
  expect_counted_alone(request.model, lengths);
  const Described given = described(request);
  const bool try_node = request.weight_domain == "auto" && request.space == "full";
  const std::int64_t longest = std::ranges::max(lengths);
  return {
      .spaces = spaces_of(given, try_node, lengths),
      .what_would_do = [given, longest] { return remedy(given, longest); },
      .simulated_seconds = [given](const Plan& plan) { return simulated(given, plan); }};
}

BatchQuestion samples_question(const ClusterRequest& request, const BatchSizes& samples) {
  if (samples.lengths.empty()) {
    throw std::invalid_argument("a batch needs at least one sample");
  }
  const Described given = described(request);
  const bool try_node = request.weight_domain == "auto" && request.space == "full";
  SampleSpaces found = sample_spaces_of(given, try_node, samples);
  if (found.spaces.empty()) {
    const DimSizes& dims = samples.dims[found.sample];
    throw NoPlan(
        "no plan: " + found.why_not +
        (found.needed_bytes == 0
             ? ""
             : remedy(given, found.needed_bytes, kMostForSample, [&](const Cluster& other) {
                 return has_room(given.model, other, given.how, dims);
               })));
  }
  return {
      .spaces = std::move(found.spaces),
      .what_would_do = [] { return std::string(); },  // all of them find room
      .simulated_seconds = [given](const Plan& plan) { return simulated(given, plan); },
      .problems =
          [given](const Plan& plan) {
            return problems(
                plan,
                {.model = given.model,
                 .memory_of_ranks = memory_of_ranks(given.cluster),
                 .precision = given.how.simulation.precision});
          }};
}

PlannedBatch answer(
    const BatchQuestion& question,
    const GroupingPlannerRow& planner,
    const GroupingOptions& options) {
  PlannedBatch planned = plan_batch(question.spaces, planner, options);
  if (!planned.plan) {
    const bool fits = std::ranges::any_of(
        question.spaces, [](const GroupSpace& space) { return too_long(space.task).empty(); });
    throw NoPlan("no plan: " + planned.why_not + (fits ? "" : question.what_would_do()));
  }
  if (question.problems) {
    if (const std::vector<std::string> found = question.problems(*planned.plan); !found.empty()) {
      throw std::logic_error(
          "the plan of planner " + std::string(planner.name) + " is not sound: " + found.front());
    }
  }
  planned.plan->planner_seconds.reset();
  return planned;
}

std::vector<RivalPlan> rivals(
    const BatchQuestion& question,
    const GroupingPlannerRow& planner,
    const GroupingOptions& options) {
  constexpr double kMostSteps = 1e8;  // half a second
  const std::string exact = exact_planner().name;
  std::vector<RivalPlan> found;
  for (const GroupingPlannerRow& row : grouping_planners()) {
    const bool slow =
        row.name == exact && std::ranges::any_of(question.spaces, [](const GroupSpace& space) {
          return exact_steps(space.task) > kMostSteps;
        });
    if (row.name == std::string(planner.name) || slow) {
      continue;
    }
    const PlannedBatch planned = plan_batch(question.spaces, row, options);
    RivalPlan& rival = found.emplace_back(RivalPlan{.planner = row.name});
    if (planned.plan) {
      rival.seconds = planned.seconds;
    } else {
      rival.why_not = planned.why_not;
    }
  }
  return found;
}

std::int64_t least(
    std::int64_t low, std::int64_t high, const std::function<bool(std::int64_t)>& does) {
  if (!does(high)) {
    return 0;
  }
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (does(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

std::string what_would_fit(std::int64_t ranks, double memory_mb) {
  const std::string memory =
      fmt::format("--memory {}GiB", fmt::format("{:.1f}", std::ceil(memory_mb / 102.4) / 10));
  return ranks > 0
             ? fmt::format(
                   "; it would fit with {} ranks (--ranks {}), or with {}", ranks, ranks, memory)
             : fmt::format("; it would fit with {}", memory);
}

}  // namespace paradyse
