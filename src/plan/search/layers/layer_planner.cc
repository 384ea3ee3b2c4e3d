// The fastest mix of ways that fits, exactly.
//
// L layers of which n_w run way w take sum n_w s_w seconds and, at the peak, sum n_w m_w bytes of
// what they save and the largest transient t_w of those in use.  So for every way as the one of the
// largest transient, over those that need no more, it is a knapsack with L items:
//
//   F(k, L, M) = min over 0 <= n <= L of  n s_k + F(k + 1, L - n, M - n m_k)
//
// searched depth first, the ways that cost most above the linear relaxation's prices first; a
// branch ends where the relaxation's bound is no better than the best so far, or where the same (k,
// L) was reached with as much memory left for no more seconds.  The two ways that the relaxation
// mixes come last and fill up.
#include "src/plan/search/layers/layer_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/renamed.h"

namespace paradyse {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-9;  // of the seconds of a plan

void check(std::span<const LayerCost> ways, std::int64_t layers) {
  if (ways.empty()) {
    throw std::invalid_argument("plan layers: there is no candidate to run a layer");
  }
  if (layers < 1) {
    throw std::invalid_argument(
        "plan layers: " + std::to_string(layers) + " layers; at least 1 is needed");
  }
  for (const LayerCost& way : ways) {
    const auto refuse = [&](const char* field) {
      const std::string which =
          way.name.empty() ? "way " + std::to_string(&way - ways.data() + 1) : "'" + way.name + "'";
      throw std::invalid_argument(
          "plan layers: " + std::string(field) + " of " + which + " must be a number from 0 up");
    };
    if (!std::isfinite(way.seconds) || way.seconds < 0) {
      refuse("seconds");
    }
    if (way.saved_bytes < 0) {
      refuse("saved_bytes");
    }
    if (way.transient_bytes < 0) {
      refuse("transient_bytes");
    }
  }
}

// a * b, or as much as there is.
std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max()
                                                : product;
}
std::int64_t plus(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<std::int64_t>::max() : sum;
}

LayerPlan priced(
    std::span<const LayerCost> ways, std::vector<std::int64_t> counts, std::int64_t capacity) {
  LayerPlan plan;
  std::int64_t transient = 0;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (counts[i] > 0) {
      plan.seconds += static_cast<double>(counts[i]) * ways[i].seconds;
      plan.peak_bytes = plus(plan.peak_bytes, times(counts[i], ways[i].saved_bytes));
      transient = std::max(transient, ways[i].transient_bytes);
    }
  }
  plan.peak_bytes = plus(plan.peak_bytes, transient);
  plan.counts = std::move(counts);
  plan.feasible = plan.peak_bytes <= capacity;
  return plan;
}

// Faster, or as fast with a lower peak.
bool better(const LayerPlan& a, const LayerPlan& b) {
  const double slack = kTolerance * std::max(a.seconds, b.seconds);
  return a.seconds < b.seconds - slack ||
         (a.seconds <= b.seconds + slack && a.peak_bytes < b.peak_bytes);
}

std::vector<std::size_t> in_order_of_memory(std::span<const LayerCost> ways) {
  std::vector<std::size_t> order(ways.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(ways[a].saved_bytes, ways[a].seconds) <
           std::pair(ways[b].saved_bytes, ways[b].seconds);
  });
  return order;
}

// The least seconds of k layers in so much memory for what they keep, transients apart.
class Knapsack {
 public:
  // `allowed`: ways by rising memory; those that another beats are left out.
  Knapsack(std::span<const LayerCost> ways, const std::vector<std::size_t>& allowed) : ways_(ways) {
    for (const std::size_t i : allowed) {
      if (items_.empty() || ways[i].seconds < ways[items_.back()].seconds) {
        items_.push_back(i);
      }
    }
  }

  // Counts of all ways, or nothing when no plan takes less than `bound` seconds.
  std::vector<std::int64_t> solve(std::int64_t layers, std::int64_t memory, double bound) {
    best_seconds_ = bound;
    best_.clear();
    if (items_.empty() || times(layers, saved(0)) > memory) {
      return {};
    }
    counts_.assign(ways_.size(), 0);
    if (times(layers, saved(items_.size() - 1)) <= memory) {
      counts_[items_.back()] = layers;
      take(static_cast<double>(layers) * seconds(items_.size() - 1));
      return best_;
    }
    relax(layers, memory);
    search(0, layers, memory, 0, 0);
    return best_;
  }

 private:
  [[nodiscard]] std::int64_t saved(std::size_t item) const {
    return ways_[items_[item]].saved_bytes;
  }
  [[nodiscard]] double seconds(std::size_t item) const { return ways_[items_[item]].seconds; }

  // The linear relaxation mixes two neighbours `low_` and `high_` of the lower hull of (memory,
  // seconds), which meets the memory a layer may take on average.  In its prices (`rate_` a byte)
  // every other item costs `extra` above them.
  void relax(std::int64_t layers, std::int64_t memory) {
    std::vector<std::size_t> hull;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      while (hull.size() >= 2 &&
             slope(hull[hull.size() - 2], i) <= slope(hull[hull.size() - 2], hull.back())) {
        hull.pop_back();
      }
      hull.push_back(i);
    }
    const double average = static_cast<double>(memory) / static_cast<double>(layers);
    std::size_t high = 1;
    while (high + 1 < hull.size() && static_cast<double>(saved(hull[high])) <= average) {
      ++high;
    }
    low_ = hull[high - 1];
    high_ = hull[high];
    rate_ = -slope(low_, high_);
    const double price = seconds(low_) + rate_ * static_cast<double>(saved(low_));
    least_ = static_cast<double>(layers) * price - rate_ * static_cast<double>(memory);
    others_.clear();
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (i != low_ && i != high_) {
        const double extra = seconds(i) + rate_ * static_cast<double>(saved(i)) - price;
        others_.push_back({.item = i, .extra = std::max(0.0, extra)});
      }
    }
    std::stable_sort(others_.begin(), others_.end(), [](const Other& a, const Other& b) {
      return a.extra > b.extra;
    });
    seen_.assign(others_.size() + 1, {});
  }
  [[nodiscard]] double slope(std::size_t a, std::size_t b) const {
    return (seconds(b) - seconds(a)) / static_cast<double>(saved(b) - saved(a));
  }

  // Counts of others_[at] and what follows, most expensive first; then low_ and high_ fill up.
  // `extra`: of the counts so far.
  void search(
      std::size_t at, std::int64_t layers, std::int64_t memory, double extra, double spent) {
    if (least_ + extra >= best_seconds_ * (1 - kTolerance) || beaten(at, layers, memory, spent)) {
      return;
    }
    if (at == others_.size()) {
      fill(layers, memory, spent);
      return;
    }
    const Other& other = others_[at];
    for (std::int64_t count = 0; count <= layers; ++count) {
      const auto n = static_cast<double>(count);
      const std::int64_t left = memory - count * saved(other.item);
      if (left < times(layers - count, saved(0)) ||
          least_ + extra + n * other.extra >= best_seconds_ * (1 - kTolerance)) {
        break;
      }
      counts_[items_[other.item]] = count;
      search(
          at + 1, layers - count, left, extra + n * other.extra, spent + n * seconds(other.item));
    }
    counts_[items_[other.item]] = 0;
  }

  void fill(std::int64_t layers, std::int64_t memory, double spent) {
    const std::int64_t left = memory - times(layers, saved(low_));
    if (left < 0) {
      return;
    }
    const std::int64_t high = std::min(layers, left / (saved(high_) - saved(low_)));
    counts_[items_[high_]] = high;
    counts_[items_[low_]] = layers - high;
    take(
        spent + static_cast<double>(high) * seconds(high_) +
        static_cast<double>(layers - high) * seconds(low_));
  }

  void take(double seconds) {
    if (seconds < best_seconds_) {
      best_seconds_ = seconds;
      best_ = counts_;
    }
  }

  // Another state at this place has as many layers left, no less memory and has spent no more.
  bool beaten(std::size_t at, std::int64_t layers, std::int64_t memory, double spent) {
    std::map<std::int64_t, double>& states = seen_[at][layers];  // memory left -> spent, rising
    const auto same_or_more = states.lower_bound(memory);
    if (same_or_more != states.end() && same_or_more->second <= spent) {
      return true;
    }
    auto state = states.insert_or_assign(memory, spent).first;
    while (state != states.begin() && std::prev(state)->second >= spent) {
      states.erase(std::prev(state));
    }
    return false;
  }

  struct Other {
    std::size_t item = 0;
    double extra = 0;
  };

  std::span<const LayerCost> ways_;
  std::vector<std::size_t> items_;  // rising memory, falling seconds
  std::size_t low_ = 0;
  std::size_t high_ = 0;
  double rate_ = 0;
  double least_ = 0;  // seconds of the relaxation
  std::vector<Other> others_;
  std::vector<std::map<std::int64_t, std::map<std::int64_t, double>>> seen_;
  std::vector<std::int64_t> counts_;  // under way
  std::vector<std::int64_t> best_;
  double best_seconds_ = kInfinity;
};

// The plan that needs least memory.
LayerPlan smallest(std::span<const LayerCost> ways, std::int64_t layers, std::int64_t capacity) {
  LayerPlan least{.peak_bytes = std::numeric_limits<std::int64_t>::max()};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    std::vector<std::int64_t> counts(ways.size(), 0);
    counts[i] = layers;  // a mixture never needs less than its best way alone
    LayerPlan plan = priced(ways, std::move(counts), capacity);
    if (least.counts.empty() || plan.peak_bytes < least.peak_bytes ||
        (plan.peak_bytes == least.peak_bytes && plan.seconds < least.seconds)) {
      least = std::move(plan);
    }
  }
  return least;
}

// With `forced` in at least one layer, if it is a way.
LayerPlan fastest(
    std::span<const LayerCost> ways,
    std::int64_t layers,
    std::int64_t capacity,
    std::size_t forced) {
  const bool forces = forced < ways.size();
  const std::int64_t forced_saved = forces ? ways[forced].saved_bytes : 0;
  const std::int64_t forced_transient = forces ? ways[forced].transient_bytes : 0;
  const std::int64_t free_layers = layers - (forces ? 1 : 0);
  std::vector<std::int64_t> limits;  // on the largest transient in use
  for (const LayerCost& way : ways) {
    limits.push_back(std::max(way.transient_bytes, forced_transient));
  }
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());

  const std::vector<std::size_t> order = in_order_of_memory(ways);
  LayerPlan best{.seconds = kInfinity};
  for (const std::int64_t limit : limits) {
    const std::int64_t memory = capacity - limit - forced_saved;
    if (memory < 0) {
      break;
    }
    std::vector<std::size_t> allowed;
    for (const std::size_t i : order) {
      if (ways[i].transient_bytes <= limit) {
        allowed.push_back(i);
      }
    }
    std::vector<std::int64_t> counts(ways.size(), 0);
    if (free_layers > 0) {
      // Equally fast plans may have a lower peak: those are looked at, too.
      const double bound = best.feasible ? best.seconds * (1 + 2 * kTolerance) : kInfinity;
      counts = Knapsack(ways, allowed)
                   .solve(free_layers, memory, bound - (forces ? ways[forced].seconds : 0));
      if (counts.empty()) {
        continue;
      }
    }
    if (forces) {
      ++counts[forced];
    }
    LayerPlan plan = priced(ways, std::move(counts), capacity);
    if (!best.feasible || better(plan, best)) {
      best = std::move(plan);
    }
  }
  return best;
}

}  // namespace

LayerPlan plan_layers(
    std::span<const LayerCost> ways, std::int64_t layers, std::int64_t capacity_bytes) {
  check(ways, layers);
  LayerPlan best = fastest(ways, layers, capacity_bytes, ways.size());
  return best.feasible ? best : smallest(ways, layers, capacity_bytes);
}

LayerPlan plan_layers_as_published(
    std::span<const LayerCost> ways, std::int64_t layers, std::int64_t capacity_bytes) {
  check(ways, layers);
  // By time, then memory; beaten ones dropped.
  std::vector<std::size_t> order(ways.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto footprint = [&](std::size_t i) {
    return plus(times(layers, ways[i].saved_bytes), ways[i].transient_bytes);
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(ways[a].seconds, footprint(a)) < std::pair(ways[b].seconds, footprint(b));
  });
  std::vector<std::size_t> kept;
  for (const std::size_t i : order) {
    if (kept.empty() || footprint(i) < footprint(kept.back())) {
      kept.push_back(i);
    }
  }
  LayerPlan best{.seconds = kInfinity};
  const auto consider = [&](std::size_t base, std::size_t other, std::int64_t of_base) {
    std::vector<std::int64_t> counts(ways.size(), 0);
    counts[base] += of_base;
    counts[other] += layers - of_base;
    LayerPlan plan = priced(ways, std::move(counts), capacity_bytes);
    if (plan.feasible && plan.seconds < best.seconds) {
      best = std::move(plan);
    }
  };
  for (std::size_t b = 0; b < kept.size(); ++b) {
    if (footprint(kept[b]) <= capacity_bytes) {
      consider(kept[b], kept[b], layers);
      continue;
    }
    for (std::size_t o = b + 1; o < kept.size(); ++o) {
      const LayerCost& base = ways[kept[b]];
      const LayerCost& other = ways[kept[o]];
      const std::int64_t room = capacity_bytes -
                                std::max(base.transient_bytes, other.transient_bytes) -
                                times(layers, other.saved_bytes);
      if (room < 0) {
        continue;
      }
      const std::int64_t more = base.saved_bytes - other.saved_bytes;
      consider(kept[b], kept[o], more <= 0 ? layers - 1 : std::min(layers - 1, room / more));
    }
  }
  return best.feasible ? best : smallest(ways, layers, capacity_bytes);
}

LayerPlan plan_alike(
    std::span<const LayerCost> ways, std::int64_t layers, std::int64_t capacity_bytes) {
  check(ways, layers);
  LayerPlan best{.seconds = kInfinity};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    std::vector<std::int64_t> counts(ways.size(), 0);
    counts[i] = layers;
    LayerPlan plan = priced(ways, std::move(counts), capacity_bytes);
    if (plan.feasible && (!best.feasible || better(plan, best))) {
      best = std::move(plan);
    }
  }
  return best.feasible ? best : smallest(ways, layers, capacity_bytes);
}

std::vector<RejectedWay> rejected_ways(
    std::span<const LayerCost> ways,
    std::int64_t layers,
    std::int64_t capacity_bytes,
    const LayerPlan& plan) {
  check(ways, layers);
  std::vector<RejectedWay> rejected;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (plan.counts[i] > 0) {
      continue;
    }
    const LayerPlan with_one = fastest(ways, layers, capacity_bytes, i);
    const std::int64_t peak = plus(times(layers, ways[i].saved_bytes), ways[i].transient_bytes);
    rejected.push_back(
        {.way = i,
         .uniform_seconds = static_cast<double>(layers) * ways[i].seconds,
         .uniform_peak_bytes = peak,
         .with_one_seconds = with_one.seconds,
         .more_seconds = with_one.seconds - plan.seconds,
         .missing_bytes = plus(peak, -capacity_bytes)});
  }
  std::stable_sort(rejected.begin(), rejected.end(), [](const auto& a, const auto& b) {
    return a.with_one_seconds < b.with_one_seconds;
  });
  return rejected;
}

std::vector<std::size_t> layer_order(std::span<const LayerCost> ways, const LayerPlan& plan) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    order.insert(order.end(), idx(plan.counts[i]), i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return ways[a].transient_bytes > ways[b].transient_bytes;
  });
  return order;
}

std::vector<WayRun> way_runs(std::span<const LayerCost> ways, const LayerPlan& plan) {
  std::vector<WayRun> runs;
  for (const std::size_t way : layer_order(ways, plan)) {
    if (runs.empty() || runs.back().way != way) {
      runs.push_back({.way = way, .layers = 0});
    }
    ++runs.back().layers;
  }
  return runs;
}

std::span<const LayerPlannerRow> layer_planners() {
  static const LayerPlannerRow rows[] = {
      {.name = "exact", .summary = "the fastest mix of candidates that fits", .plan = plan_layers},
      {.name = "paradyse-heuristic",
       .old_name = "paper",
       .summary = "the heuristic of the ParaDySe paper, with every document split over all ranks",
       .plan = plan_layers_as_published,
       .splits_all = true}};
  return rows;
}

const LayerPlannerRow& layer_planner(const std::string& name) {
  if (const LayerPlannerRow* const row = row_named(layer_planners(), name)) {
    return *row;
  }
  std::string names;
  for (const LayerPlannerRow& row : layer_planners()) {
    names.append(names.empty() ? "" : ", ").append(row.name);
  }
  throw std::invalid_argument("planner '" + name + "' is not known; there are " + names);
}

}  // namespace paradyse
