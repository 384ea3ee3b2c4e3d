#include "src/plan/search/grouping/grouping.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>

namespace paradyse {

double group_seconds(const GroupingTask& task, const Grouping::Group& group) {
  double sum = task.types[idx(group.type)].fixed_seconds;
  for (const int k : group.documents) {
    sum += task.at(group.type, k);
  }
  return sum;
}

std::int64_t group_tokens(const GroupingTask& task, const Grouping::Group& group) {
  std::int64_t sum = 0;
  for (const int k : group.documents) {
    sum += task.lengths[idx(k)];
  }
  return sum;
}

double slowest_group(const GroupingTask& task, const Grouping::MicroBatch& micro_batch) {
  double slowest = 0;
  for (const Grouping::Group& group : micro_batch) {
    slowest = std::max(slowest, group_seconds(task, group));
  }
  return slowest;
}

double seconds_of(const GroupingTask& task, const Grouping& grouping) {
  double sum = 0;
  for (const Grouping::MicroBatch& micro_batch : grouping.micro_batches) {
    sum += task.micro_batch(slowest_group(task, micro_batch));
  }
  return sum;
}

std::optional<std::vector<int>> first_ranks(int ranks, int node, std::span<const int> sizes) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t g) { return sizes[g]; });
  std::vector<int> first(sizes.size());
  int next = 0;  // rank that nobody has, and none after it
  // [ranks] first ranks of what is free in nodes that were begun, and in a last one that is
  // smaller.
  std::vector<std::vector<int>> begun(idx(std::max(node, 1)));
  const int last = node > 0 ? ranks % node : 0;
  if (last > 0) {
    begun[idx(last)].push_back(ranks - last);
  }
  for (const std::size_t g : order) {
    const int size = sizes[g];
    int free = size;
    while (free < node && begun[idx(free)].empty()) {
      ++free;
    }
    if (free < node) {
      first[g] = begun[idx(free)].back();
      begun[idx(free)].pop_back();
    } else {
      free = size < node ? node : size;
      if (next + free > ranks - last) {
        return std::nullopt;
      }
      first[g] = next;
      next += free;
    }
    if (free > size) {
      begun[idx(free - size)].push_back(first[g] + size);
    }
  }
  return first;
}

std::vector<std::string> problems(const GroupingTask& task, const Grouping& grouping) {
  std::vector<std::string> found;
  std::vector<int> times(task.lengths.size());  // [document] that it is in a group
  for (std::size_t m = 0; m < grouping.micro_batches.size(); ++m) {
    const std::string micro = "micro-batch " + std::to_string(m);
    int ranks = 0;
    for (std::size_t g = 0; g < grouping.micro_batches[m].size(); ++g) {
      const Grouping::Group& group = grouping.micro_batches[m][g];
      const std::string where = micro + ", group " + std::to_string(g);
      if (group.type < 0 || idx(group.type) >= task.types.size()) {
        found.push_back(where + ": there is no type " + std::to_string(group.type));
        continue;
      }
      const GroupType& type = task.types[idx(group.type)];
      ranks += type.ranks;
      if (group.documents.empty()) {
        found.push_back(where + ": no documents");
      }
      bool known = true;
      for (const int k : group.documents) {
        if (k < 0 || k >= task.documents()) {
          found.push_back(where + ": there is no document " + std::to_string(k));
          known = false;
        } else {
          ++times[idx(k)];
        }
      }
      if (!std::ranges::is_sorted(group.documents)) {
        found.push_back(where + ": its documents do not ascend");
      }
      if (known && !task.fits(group.type, group_tokens(task, group))) {
        found.push_back(
            where + ": " + std::to_string(group_tokens(task, group)) + " tokens, and " + type.name +
            " has room for " + std::to_string(type.capacity));
      }
    }
    std::vector<int> sizes;
    for (const Grouping::Group& group : grouping.micro_batches[m]) {
      if (group.type >= 0 && idx(group.type) < task.types.size()) {
        sizes.push_back(task.types[idx(group.type)].ranks);
      }
    }
    if (ranks <= task.ranks && !first_ranks(task.ranks, task.node, sizes)) {
      found.push_back(
          micro + ": its groups find no room in nodes of " + std::to_string(task.node) + " ranks");
    }
    if (ranks > task.ranks) {
      found.push_back(
          micro + ": its groups have " + std::to_string(ranks) + " ranks of " +
          std::to_string(task.ranks));
    }
  }
  for (std::size_t k = 0; k < times.size(); ++k) {
    if (times[k] != 1) {
      found.push_back(
          "document " + std::to_string(k) + " is in " + std::to_string(times[k]) + " groups");
    }
  }
  if (found.empty()) {
    const double sum = seconds_of(task, grouping);
    if (!(std::abs(sum - grouping.seconds) <= 1e-9 * sum)) {
      found.push_back(
          "it says " + std::to_string(grouping.seconds) + " s and takes " + std::to_string(sum));
    }
  }
  return found;
}

void check(const GroupingTask& task) {
  const auto require = [](bool sound, const std::string& what) {
    if (!sound) {
      throw std::invalid_argument("grouping: " + what);
    }
  };
  require(task.ranks >= 1, std::to_string(task.ranks) + " ranks: at least 1 is needed");
  require(!task.types.empty(), "no type of group");
  require(task.node >= 0, "nodes of " + std::to_string(task.node) + " ranks");
  int before = 1;
  for (const GroupType& type : task.types) {
    require(
        type.ranks >= before && type.ranks <= task.ranks,
        "type " + type.name + " has " + std::to_string(type.ranks) +
            " ranks: they ascend from 1 to " + std::to_string(task.ranks));
    require(
        task.node == 0 || type.ranks < task.node || type.ranks % task.node == 0,
        "type " + type.name + " has " + std::to_string(type.ranks) + " ranks: more than a node's " +
            std::to_string(task.node) + " come in multiples of that");
    require(
        std::isfinite(type.fixed_seconds) && type.fixed_seconds >= 0,
        "type " + type.name + " takes " + std::to_string(type.fixed_seconds) + " s");
    before = type.ranks;
  }
  for (const std::int64_t n : task.lengths) {
    require(n >= 1, "a document of " + std::to_string(n) + " tokens: it has at least 1");
  }
  require(
      task.seconds.size() == task.types.size() * task.lengths.size(),
      std::to_string(task.seconds.size()) + " seconds for " + std::to_string(task.types.size()) +
          " types and " + std::to_string(task.lengths.size()) + " documents");
  for (const double s : task.seconds) {
    require(std::isfinite(s) && s > 0, "a document takes " + std::to_string(s) + " s");
  }
  require(
      std::isfinite(task.micro_batch_seconds) && task.micro_batch_seconds >= 0,
      "a micro-batch takes " + std::to_string(task.micro_batch_seconds) + " s");
}

std::vector<int> too_long(const GroupingTask& task) {
  std::int64_t most = 0;
  for (const GroupType& type : task.types) {
    most = std::max(most, type.capacity);
  }
  std::vector<int> found;
  for (int k = 0; k < task.documents(); ++k) {
    if (task.lengths[idx(k)] > most) {
      found.push_back(k);
    }
  }
  return found;
}

}  // namespace paradyse
