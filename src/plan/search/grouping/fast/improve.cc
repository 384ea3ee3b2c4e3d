#include "src/plan/search/grouping/fast/improve.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace paradyse::fast {
namespace {

// Better by less is not better: of the seconds of a pair.
constexpr double kBetter = 1e-4;
// Durations tried for the first of a pair: those of its longest items under each type, ...
constexpr int kLongest = 4;
constexpr double kPairTimes[] = {1.0001, 1.05, 1.1, 1.2, 1.3};
// ... and so many others, evenly; none nearer to the one before than kPairApart.
constexpr int kEven = 20;
constexpr double kPairApart = 1.02;
constexpr int kHalvings = 3;
// Other rules are tried once at each of the wider steps, and these sizes to begin with.
constexpr double kRulesAbove = 0.04;
constexpr std::size_t kLeastSizes = 4;

std::vector<double> durations(const Items& items, const std::vector<int>& pool, double most) {
  std::vector<double> all;
  const double least = items.fastest(pool.front());
  const Items::Sizes sizes = items.sizes_for(pool.front());
  for (int i = 0; i < kLongest && idx(i) < pool.size(); ++i) {
    const int item = pool[idx(i)];
    for (std::size_t size = items.smallest(item, sizes); size < sizes.last; ++size) {
      for (const double times : kPairTimes) {
        all.push_back(times * items.alone(size, item));
      }
    }
  }
  for (int i = 1; i < kEven; ++i) {
    all.push_back(least + (most - least) * i / kEven);
  }
  std::ranges::sort(all);
  std::vector<double> kept;
  for (const double seconds : all) {
    if (seconds >= least && seconds < most &&
        (kept.empty() || seconds >= kPairApart * kept.back())) {
      kept.push_back(seconds);
    }
  }
  return kept;
}

class Pair {
 public:
  explicit Pair(Packer& packer) : packer_(packer) {}

  // True: they are better now, and `second` may be empty.
  bool solve(Packed& first, Packed& second) {
    const Items& items = packer_.items();
    const GroupingTask& task = items.task();
    pool_ = first.items;
    pool_.insert(pool_.end(), second.items.begin(), second.items.end());
    std::ranges::sort(pool_);
    const double before = task.micro_batch(first.slowest) + task.micro_batch(second.slowest);
    best_ = before * (1 - kBetter);
    together();
    const double most = first.slowest + second.slowest;
    for (const double seconds : durations(items, pool_, most)) {
      split(seconds);
    }
    if (best_ >= before * (1 - kBetter)) {
      return false;
    }
    first = std::move(better_first_);
    second = std::move(better_second_);
    return true;
  }

 private:
  // All in one.
  void together() {
    const GroupingTask& task = packer_.items().task();
    const double upper = task.overlapped ? best_ : best_ - task.micro_batch_seconds;
    if (upper < packer_.least_seconds(pool_)) {
      return;
    }
    packer_.pack(upper, {}, pool_, first_, left_);
    if (left_.empty()) {
      packer_.solve(pool_, {}, first_, first_.slowest, kHalvings);
      best_ = task.micro_batch(first_.slowest);
      std::swap(better_first_, first_);
      better_second_ = {};
    }
  }

  // The first takes `seconds`, the second what is left.
  void split(double seconds) {
    const GroupingTask& task = packer_.items().task();
    packer_.pack(seconds, {}, pool_, first_, left_);
    const double mine = task.micro_batch(first_.slowest);
    if (left_.empty() || first_.items.empty() ||
        mine + task.micro_batch(packer_.least_seconds(left_)) >= best_) {
      return;
    }
    const double upper = best_ - mine - (task.overlapped ? 0 : task.micro_batch_seconds);
    std::swap(rest_, left_);
    packer_.pack(upper, {}, rest_, second_, left_);
    if (!left_.empty()) {
      return;
    }
    packer_.solve(rest_, {}, second_, second_.slowest, kHalvings);
    const double sum = mine + task.micro_batch(second_.slowest);
    if (sum < best_) {
      best_ = sum;
      std::swap(better_first_, first_);
      std::swap(better_second_, second_);
    }
  }

  Packer& packer_;
  std::vector<int> pool_;
  std::vector<int> left_;
  std::vector<int> rest_;
  Packed first_;
  Packed second_;
  Packed better_first_;
  Packed better_second_;
  double best_ = 0;
};

}  // namespace

double seconds_of(const GroupingTask& task, const std::vector<Packed>& micro_batches) {
  double sum = 0;
  for (const Packed& packed : micro_batches) {
    sum += task.micro_batch(packed.slowest);
  }
  return sum;
}

void squeeze(Packer& packer, std::vector<Packed>& micro_batches) {
  const Items& items = packer.items();
  const GroupingTask& task = items.task();
  std::vector<int> all(idx(items.size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> rest;
  std::vector<int> left;
  const double room = items.room() * static_cast<double>(micro_batches.size() - 1);
  while (micro_batches.size() > 1 && packer.tokens(all) <= room) {
    std::ranges::sort(micro_batches, std::greater<>(), &Packed::slowest);
    std::vector<Packed> fewer(micro_batches.size() - 1);
    const double before = seconds_of(task, micro_batches);
    const Packed& last = micro_batches.back();
    double low = 0;
    double high = (last.slowest + (task.overlapped ? 0 : task.micro_batch_seconds)) /
                  static_cast<double>(fewer.size());
    bool better = false;
    std::vector<Packed> best;
    constexpr int kTries = 6;
    for (int i = 0; i < kTries; ++i) {
      const double more = i == 0 ? high : (low + high) / 2;
      rest = all;
      for (std::size_t m = 0; m < fewer.size(); ++m) {
        packer.pack(micro_batches[m].slowest + more, micro_batches[m].rule, rest, fewer[m], left);
        std::swap(rest, left);
      }
      if (!rest.empty()) {
        if (i == 0) {
          return;
        }
        low = more;
        continue;
      }
      high = more;
      if (seconds_of(task, fewer) < before * (1 - kBetter)) {
        better = true;
        best = fewer;
      }
    }
    if (!better) {
      return;
    }
    micro_batches = best;
  }
}

namespace {

// How long a micro-batch may take, and how it is packed.
struct Cut {
  double seconds = 0;
  Rule rule = {};
};

// All items in micro-batches that are cut so, one after the other; what is left for the last is
// packed as short as can be.  False: that is not below `most`.
bool packed_with(Packer& packer, std::vector<Cut> cuts, double most, std::vector<Packed>& found) {
  const Items& items = packer.items();
  const GroupingTask& task = items.task();
  std::vector<int> rest(idx(items.size()));
  std::iota(rest.begin(), rest.end(), 0);
  std::vector<int> left;
  found.clear();
  double sum = 0;
  const Cut last_cut = cuts.back();
  cuts.pop_back();
  for (const auto& [seconds, rule] : cuts) {
    if (rest.empty()) {
      break;
    }
    packer.pack(seconds, rule, rest, found.emplace_back(), left);
    if (found.back().items.empty()) {
      found.pop_back();
      continue;
    }
    sum += task.micro_batch(found.back().slowest);
    std::swap(rest, left);
    if (sum + (rest.empty() ? 0
                            : packer.area(rest) / task.ranks +
                                  (task.overlapped ? 0 : task.micro_batch_seconds)) >=
        most) {
      return false;
    }
  }
  if (!rest.empty()) {
    const double upper = most - sum - (task.overlapped ? 0 : task.micro_batch_seconds);
    if (upper < packer.least_seconds(rest)) {
      return false;
    }
    Packed& last = found.emplace_back();
    packer.pack(upper, last_cut.rule, rest, last, left);
    if (!left.empty()) {
      return false;
    }
    packer.solve(rest, last_cut.rule, last, last.slowest, kHalvings);
    sum += task.micro_batch(last.slowest);
  }
  return sum < most;
}

}  // namespace

void reshape(Packer& packer, std::vector<Packed>& micro_batches, std::int64_t most_work) {
  const GroupingTask& task = packer.items().task();
  const std::size_t sizes = packer.items().sizes().size();
  std::vector<Packed> found;
  std::vector<Cut> cuts;
  double most = 0;
  const auto keep = [&](std::vector<Packed>& better) {
    std::swap(micro_batches, better);
    std::ranges::sort(micro_batches, std::greater<>(), &Packed::slowest);
    most = seconds_of(task, micro_batches) * (1 - kBetter);
  };
  found = micro_batches;
  keep(found);
  // Micro-batch m is cut otherwise, the others as they are.
  const auto tried = [&](std::size_t m, double factor, const Rule& rule) {
    if (m >= micro_batches.size() || rule.least >= sizes) {
      return false;
    }
    cuts.clear();
    for (const Packed& other : micro_batches) {
      cuts.push_back({.seconds = other.slowest * (1 + 1e-9), .rule = other.rule});
    }
    cuts[m] = {.seconds = micro_batches[m].slowest * factor, .rule = rule};
    if (!packed_with(packer, cuts, most, found)) {
      return false;
    }
    keep(found);
    return true;
  };
  for (const double step : {0.2, 0.1, 0.05, 0.025, 0.0125}) {
    bool rules = step > kRulesAbove;
    for (bool better = true; better; rules = false) {
      better = false;
      for (std::size_t m = 0; m < micro_batches.size(); ++m) {
        if (packer.work() >= most_work) {
          return;
        }
        const Rule rule = micro_batches[m].rule;
        if (m + 1 < micro_batches.size()) {  // the last is as short as can be
          better |= tried(m, 1 - step, rule) || tried(m, 1 + step, rule);
        }
        for (std::size_t least = 0; rules && least < std::min(sizes, kLeastSizes); ++least) {
          for (const bool even : {false, true}) {
            better |= tried(m, 1, {.least = least, .even = even});
          }
        }
      }
    }
  }
}

void improve(Packer& packer, std::vector<Packed>& micro_batches, std::int64_t most_work) {
  Pair pair(packer);
  // When a micro-batch was last changed, and how far pairs have come: one that has not changed
  // since it was last tried would give the same again.
  std::vector<std::int64_t> changed(micro_batches.size(), 1);
  std::int64_t now = 1;
  for (std::int64_t last_round = 0; last_round < now;) {
    const std::int64_t before = last_round;
    last_round = now;
    for (std::size_t a = 0; a < micro_batches.size(); ++a) {
      for (std::size_t b = a + 1; b < micro_batches.size();) {
        if (packer.work() >= most_work) {
          return;
        }
        if (std::max(changed[a], changed[b]) > before &&
            pair.solve(micro_batches[a], micro_batches[b])) {
          changed[a] = changed[b] = ++now;
        }
        if (micro_batches[b].items.empty()) {
          micro_batches.erase(micro_batches.begin() + static_cast<std::ptrdiff_t>(b));
          changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(b));
        } else {
          ++b;
        }
      }
    }
  }
}

}  // namespace paradyse::fast
