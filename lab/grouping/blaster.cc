#include "lab/grouping/blaster.h"

#include <algorithm>
#include <limits>
#include <map>

#include "src/plan/search/grouping/packing.h"

namespace paradyse {
namespace {

// How many micro-batches of at most `most` tokens the documents make, in their order.
std::ptrdiff_t needed(const GroupingTask& task, const std::vector<int>& order, std::int64_t most) {
  std::ptrdiff_t micro_batches = 1;
  std::int64_t tokens = 0;
  for (const int k : order) {
    if (tokens + task.lengths[idx(k)] > most) {
      ++micro_batches;
      tokens = 0;
    }
    tokens += task.lengths[idx(k)];
  }
  return micro_batches;
}

}  // namespace

std::vector<std::vector<int>> blasted(const GroupingTask& task, int micro_batches) {
  const std::vector<int> order = longest_first(task);
  std::int64_t too_few = longest(task) - 1;
  std::int64_t enough = tokens_of(task, order);
  while (enough - too_few > 1) {
    const std::int64_t middle = too_few + (enough - too_few) / 2;
    (needed(task, order, middle) <= micro_batches ? enough : too_few) = middle;
  }
  std::vector<std::vector<int>> cut(1);
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t more = task.lengths[idx(order[i])];
    // Fewer micro-batches may do: the shortest documents then go alone.
    const bool must = order.size() - i == idx(micro_batches) - cut.size();
    if (!cut.back().empty() && (must || tokens + more > enough)) {
      cut.emplace_back();
      tokens = 0;
    }
    cut.back().push_back(order[i]);
    tokens += more;
  }
  return cut;
}

std::vector<Bucket> bucketed(
    const GroupingTask& task, const std::vector<int>& documents, int buckets) {
  std::map<std::int64_t, std::vector<int>> by_length;  // equal ones are never parted
  for (const int k : documents) {
    by_length[task.lengths[idx(k)]].push_back(k);
  }
  const std::ptrdiff_t lengths = std::ssize(by_length);
  std::vector<std::int64_t> length(idx(lengths + 1));  // [i] of the i-th shortest, from 1
  std::vector<std::int64_t> count(idx(lengths + 1));   // documents of the first i lengths
  std::vector<std::int64_t> tokens(idx(lengths + 1));  // and their tokens
  std::vector<const std::vector<int>*> of_length(idx(lengths + 1));
  std::ptrdiff_t last = 0;
  for (const auto& [n, same] : by_length) {
    ++last;
    length[idx(last)] = n;
    count[idx(last)] = count[idx(last - 1)] + std::ssize(same);
    tokens[idx(last)] = tokens[idx(last - 1)] + n * std::ssize(same);
    of_length[idx(last)] = &same;
  }
  // added[b][j]: tokens that rounding adds to the first j lengths in b buckets; the last bucket
  // begins after length from[b][j].
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const std::ptrdiff_t most = std::min<std::ptrdiff_t>(buckets, lengths);
  std::vector<std::vector<std::int64_t>> added(
      idx(most + 1), std::vector<std::int64_t>(idx(lengths + 1), kNone));
  std::vector<std::vector<std::ptrdiff_t>> from(
      idx(most + 1), std::vector<std::ptrdiff_t>(idx(lengths + 1)));
  added[0][0] = 0;
  for (std::ptrdiff_t b = 1; b <= most; ++b) {
    for (std::ptrdiff_t j = b; j <= lengths; ++j) {
      for (std::ptrdiff_t i = b == 1 ? 0 : b - 1; i < (b == 1 ? 1 : j); ++i) {
        const std::int64_t more =
            length[idx(j)] * (count[idx(j)] - count[idx(i)]) - (tokens[idx(j)] - tokens[idx(i)]);
        if (added[idx(b - 1)][idx(i)] + more < added[idx(b)][idx(j)]) {
          added[idx(b)][idx(j)] = added[idx(b - 1)][idx(i)] + more;
          from[idx(b)][idx(j)] = i;
        }
      }
    }
  }
  std::vector<Bucket> found;
  for (std::ptrdiff_t b = most, j = lengths; b > 0; j = from[idx(b)][idx(j)], --b) {
    Bucket& bucket = found.emplace_back();
    bucket.length = length[idx(j)];
    for (std::ptrdiff_t i = from[idx(b)][idx(j)] + 1; i <= j; ++i) {
      bucket.documents.insert(
          bucket.documents.end(), of_length[idx(i)]->begin(), of_length[idx(i)]->end());
    }
  }
  std::ranges::reverse(found);
  return found;
}

}  // namespace paradyse
