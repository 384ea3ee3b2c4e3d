#include "src/plan/search/grouping/grouping.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>

#include <fmt/format.h>

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

std::optional<std::vector<int>> first_ranks(
    const GroupingTask& task, const Grouping::MicroBatch& micro_batch) {
  std::vector<int> first(micro_batch.size());
  std::size_t placed = 0;
  const auto place = [&](int pool, int begin, int ranks) {
    std::vector<std::size_t> groups;
    std::vector<int> sizes;
    for (std::size_t g = 0; g < micro_batch.size(); ++g) {
      if (const GroupType& type = task.types[idx(micro_batch[g].type)]; type.pool == pool) {
        groups.push_back(g);
        sizes.push_back(type.ranks);
      }
    }
    const std::optional<std::vector<int>> found = first_ranks(ranks, task.node, sizes);
    for (std::size_t i = 0; found && i < groups.size(); ++i) {
      first[groups[i]] = begin + (*found)[i];
    }
    placed += groups.size();
    return found.has_value();
  };
  if (!place(-1, 0, task.ranks)) {
    return std::nullopt;
  }
  const std::size_t anywhere = placed;
  int begin = 0;
  for (std::size_t pool = 0; pool < task.pools.size() && anywhere == 0; ++pool) {
    if (!place(static_cast<int>(pool), begin, task.pools[pool])) {
      return std::nullopt;
    }
    begin += task.pools[pool];
  }
  return placed == micro_batch.size() ? std::optional(std::move(first)) : std::nullopt;
}

std::vector<std::string> problems(const GroupingTask& task, const Grouping& grouping) {
  std::vector<std::string> found;
  std::vector<int> times(task.lengths.size());  // [document] that it is in a group
  for (std::size_t m = 0; m < grouping.micro_batches.size(); ++m) {
    const std::string micro = "micro-batch " + std::to_string(m);
    int ranks = 0;
    bool types_known = true;
    for (std::size_t g = 0; g < grouping.micro_batches[m].size(); ++g) {
      const Grouping::Group& group = grouping.micro_batches[m][g];
      const std::string where = micro + ", group " + std::to_string(g);
      if (group.type < 0 || idx(group.type) >= task.types.size()) {
        found.push_back(where + ": there is no type " + std::to_string(group.type));
        types_known = false;
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
            " holds " + std::to_string(type.capacity));
      }
    }
    if (types_known && ranks <= task.ranks && !first_ranks(task, grouping.micro_batches[m])) {
      found.push_back(
          micro + ": its groups do not fit into nodes of " + std::to_string(task.node) + " ranks" +
          (task.pools.empty() ? "" : " and in their pools"));
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
          "the plan says " + std::to_string(grouping.seconds) + " s and takes " +
          std::to_string(sum));
    }
  }
  return found;
}

void check(const GroupingTask& task) {
  // Formats only what it throws: planners of a run are asked in every step.
  const auto require =
      []<typename... Values>(
          bool sound, fmt::format_string<const Values&...> what, const Values&... values) {
        if (!sound) {
          throw std::invalid_argument("grouping: " + fmt::format(what, values...));
        }
      };
  require(task.ranks >= 1, "{} ranks: at least 1 is needed", task.ranks);
  require(!task.types.empty(), "no type of group");
  require(task.node >= 0, "nodes of {} ranks", task.node);
  int begin = 0;
  for (const int pool : task.pools) {
    require(
        pool > 0 &&
            (task.node == 0 || begin % task.node == 0 || begin % task.node + pool <= task.node),
        "a pool of {} ranks from rank {} on: it has at least one, and is in one node or begins "
        "with one",
        pool,
        begin);
    begin += pool;
  }
  require(
      task.pools.empty() || begin == task.ranks,
      "its pools have {} ranks of {}",
      begin,
      task.ranks);
  std::vector<double> prices(task.pools.size(), 0);
  int before = 1;
  int pool = -1;
  for (const GroupType& type : task.types) {
    require(
        type.pool >= pool && type.pool < std::ssize(task.pools),
        "type {} lies in pool {}: pools ascend from -1, and there are {}",
        type.name,
        type.pool,
        task.pools.size());
    before = type.pool == pool ? before : 1;
    pool = type.pool;
    const int most = pool < 0 ? task.ranks : task.pools[idx(pool)];
    require(
        type.ranks >= before && type.ranks <= most,
        "type {} has {} ranks: they ascend from 1 to {}",
        type.name,
        type.ranks,
        most);
    require(std::isfinite(type.price) && type.price > 0, "type {} has no price", type.name);
    if (pool >= 0) {
      prices[idx(pool)] = std::max(prices[idx(pool)], type.price);
    }
    require(
        task.node == 0 || type.ranks < task.node || type.ranks % task.node == 0,
        "type {} has {} ranks: more than a node's {} come in multiples of that",
        type.name,
        type.ranks,
        task.node);
    require(
        std::isfinite(type.fixed_seconds) && type.fixed_seconds >= 0,
        "type {} takes {} s",
        type.name,
        type.fixed_seconds);
    before = type.ranks;
  }
  const double priced = std::inner_product(prices.begin(), prices.end(), task.pools.begin(), 0.0);
  require(
      priced <= task.ranks * (1 + 1e-9),
      "a second of all its ranks counts {} rank seconds",
      priced);
  for (const std::int64_t n : task.lengths) {
    require(n >= 1, "a document of {} tokens: it has at least 1", n);
  }
  require(
      task.seconds.size() == task.types.size() * task.lengths.size(),
      "{} seconds for {} types and {} documents",
      task.seconds.size(),
      task.types.size(),
      task.lengths.size());
  for (const double s : task.seconds) {
    require(std::isfinite(s) && s > 0, "a document takes {} s", s);
  }
  require(
      std::isfinite(task.micro_batch_seconds) && task.micro_batch_seconds >= 0,
      "a micro-batch takes {} s",
      task.micro_batch_seconds);
}

GroupingTask without_pools(const GroupingTask& task) {
  GroupingTask alike = task;
  alike.pools.clear();
  std::erase_if(alike.types, [](const GroupType& type) { return type.pool >= 0; });
  alike.seconds.resize(alike.types.size() * task.lengths.size());
  for (GroupType& type : alike.types) {
    type.price = 1;
  }
  return alike;
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
