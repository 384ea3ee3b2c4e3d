#include "src/plan/search/layouts/layout_graph.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Better by less is rounding.
constexpr double kBetter = 1e-12;

// A *border* is the places of all streams between two parts, as one number.
class Borders {
 public:
  explicit Borders(const LayoutGraph& graph) : graph_(graph) {
    for (const int places : graph.places) {
      count_ *= idx(places);
    }
  }

  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::vector<int> places(std::size_t border) const {
    std::vector<int> found(graph_.places.size());
    for (std::size_t s = found.size(); s-- > 0;) {
      found[s] = static_cast<int>(border % idx(graph_.places[s]));
      border /= idx(graph_.places[s]);
    }
    return found;
  }
  [[nodiscard]] std::size_t border(const std::vector<int>& places) const {
    std::size_t border = 0;
    for (std::size_t s = 0; s < places.size(); ++s) {
      border = border * idx(graph_.places[s]) + idx(places[s]);
    }
    return border;
  }

 private:
  const LayoutGraph& graph_;
  std::size_t count_ = 1;
};

// What a layer costs from border to border, and how.
struct LayerTable {
  std::size_t borders = 0;
  std::vector<double> cost;                   // [from][to]
  std::vector<std::vector<std::size_t>> way;  // [from][to] of each part

  [[nodiscard]] std::size_t at(std::size_t from, std::size_t to) const {
    return from * borders + to;
  }
};

LayerTable layer_table(const LayoutGraph& graph) {
  const Borders borders(graph);
  LayerTable table{.borders = borders.count(), .cost = {}, .way = {}};
  table.cost.assign(borders.count() * borders.count(), kNever);
  table.way.resize(table.cost.size());
  std::vector<std::vector<int>> places;
  places.reserve(borders.count());
  for (std::size_t b = 0; b < borders.count(); ++b) {
    places.push_back(borders.places(b));
  }
  for (std::size_t from = 0; from < borders.count(); ++from) {
    struct State {
      double cost = kNever;
      std::vector<std::size_t> ways = {};
    };
    std::vector<State> now(borders.count());
    now[from].cost = 0;
    for (const std::vector<LayoutGraph::Way>& part : graph.parts) {
      std::vector<State> next(borders.count());
      for (std::size_t b = 0; b < borders.count(); ++b) {
        if (now[b].cost == kNever) {
          continue;
        }
        for (std::size_t w = 0; w < part.size(); ++w) {
          std::vector<int> after = places[b];
          double cost = now[b].cost + part[w].cost;
          for (std::size_t s = 0; s < after.size(); ++s) {
            if (const int wanted = part[w].at[s]; wanted >= 0) {
              cost += graph.moves[s][idx(after[s])][idx(wanted)];
              after[s] = wanted;
            }
          }
          State& known = next[borders.border(after)];
          if (cost < known.cost) {
            known.cost = cost;
            known.ways = now[b].ways;
            known.ways.push_back(w);
          }
        }
      }
      now = std::move(next);
    }
    for (std::size_t to = 0; to < borders.count(); ++to) {
      table.cost[table.at(from, to)] = now[to].cost;
      table.way[table.at(from, to)] = std::move(now[to].ways);
    }
  }
  return table;
}

// What layers in a row cost.  Those that begin and end at the same border are alike: of equals the
// row with fewer others is better, since it is written in fewer runs.
struct RowCost {
  double cost = kNever;
  int others = 0;
};

RowCost operator+(const RowCost& a, const RowCost& b) {
  return {.cost = a.cost + b.cost, .others = a.others + b.others};
}

// The best of `count` rows, none where all cost infinitely much.  Equals are sought among all once
// the least cost is known, so that roundings do not add up from one row to the next.
template <typename CostOf>
std::optional<std::size_t> best_of(std::size_t count, CostOf cost_of) {
  double least = kNever;
  for (std::size_t i = 0; i < count; ++i) {
    least = std::min(least, cost_of(i).cost);
  }
  std::optional<std::size_t> best;
  int others = 0;
  for (std::size_t i = 0; i < count && least < kNever; ++i) {
    const RowCost row = cost_of(i);
    if (row.cost <= least * (1 + kBetter) && (!best || row.others < others)) {
      best = i;
      others = row.others;
    }
  }
  return best;
}

// Walks of 1, 2, ... layers: what each costs from border to border, and the border before the last.
class Walks {
 public:
  explicit Walks(const LayerTable& layer) : layer_(layer) {
    for (std::size_t from = 0; from < layer.borders; ++from) {
      for (std::size_t to = 0; to < layer.borders; ++to) {
        one_.push_back({.cost = layer.cost[layer.at(from, to)], .others = from == to ? 0 : 1});
      }
    }
    cost_ = one_;
    before_.emplace_back();
  }

  [[nodiscard]] std::size_t layers() const { return before_.size(); }
  [[nodiscard]] const RowCost& cost(std::size_t from, std::size_t to) const {
    return cost_[layer_.at(from, to)];
  }
  // One layer more: a min-plus product.
  void grow() {
    const std::size_t n = layer_.borders;
    std::vector<RowCost> grown(n * n);
    std::vector<std::size_t> before(n * n, 0);
    for (std::size_t from = 0; from < n; ++from) {
      for (std::size_t to = 0; to < n; ++to) {
        const auto through = [&](std::size_t middle) {
          return cost(from, middle) + one_[layer_.at(middle, to)];
        };
        if (const auto middle = best_of(n, through)) {
          grown[layer_.at(from, to)] = through(*middle);
          before[layer_.at(from, to)] = *middle;
        }
      }
    }
    cost_ = std::move(grown);
    before_.push_back(std::move(before));
  }
  [[nodiscard]] std::vector<std::vector<std::size_t>> path(
      std::size_t layers, std::size_t from, std::size_t to) const {
    std::vector<std::vector<std::size_t>> reversed;
    for (std::size_t k = layers; k > 1; --k) {
      const std::size_t middle = before_[k - 1][layer_.at(from, to)];
      reversed.push_back(layer_.way[layer_.at(middle, to)]);
      to = middle;
    }
    reversed.push_back(layer_.way[layer_.at(from, to)]);
    std::ranges::reverse(reversed);
    return reversed;
  }

 private:
  const LayerTable& layer_;
  std::vector<RowCost> one_;                      // [from][to] of one layer
  std::vector<RowCost> cost_;                     // [from][to] of as many as there are
  std::vector<std::vector<std::size_t>> before_;  // [layers - 1][from][to]
};

[[noreturn]] void no_path() {
  throw std::invalid_argument(
      "layouts: no candidate runs the parts of a layer one after the other");
}

}  // namespace

LayoutPath cheapest_cycle(const LayoutGraph& graph) {
  const LayerTable layer = layer_table(graph);
  Walks walks(layer);
  LayoutPath best{.layers = {}, .cost = kNever};
  std::size_t layers = 0;
  std::size_t border = 0;
  // a cycle of more borders than there are meets one twice, and falls apart into shorter ones
  for (std::size_t k = 1; k <= layer.borders; ++k) {
    for (std::size_t b = 0; b < layer.borders; ++b) {
      const double mean = walks.cost(b, b).cost / static_cast<double>(k);
      if (mean < best.cost * (1 - kBetter)) {
        best.cost = mean;
        layers = k;
        border = b;
      }
    }
    if (k < layer.borders) {
      walks.grow();
    }
  }
  if (best.cost == kNever) {
    no_path();
  }
  best.layers = walks.path(layers, border, border);
  return best;
}

namespace {

// Whether the streams that both stacks have lie alike.
bool agree(
    const LayoutStack& a,
    const std::vector<int>& places_of_a,
    const LayoutStack& b,
    const std::vector<int>& places_of_b) {
  for (std::size_t s = 0; s < a.streams.size(); ++s) {
    for (std::size_t t = 0; t < b.streams.size(); ++t) {
      if (a.streams[s] == b.streams[t] && places_of_a[s] != places_of_b[t]) {
        return false;
      }
    }
  }
  return true;
}

// What a stack and all behind it cost, by the border that it begins at, and how they go on.
struct Onward {
  explicit Onward(const LayoutStack& stack)
      : table(std::make_unique<LayerTable>(layer_table(stack.graph))), walks(*table) {
    while (walks.layers() < stack.layers) {
      walks.grow();
    }
  }

  std::unique_ptr<LayerTable> table;
  Walks walks;
  std::vector<RowCost> cost = {};      // [begin]
  std::vector<std::size_t> end = {};   // [begin]
  std::vector<std::size_t> next = {};  // [end] where the next stack begins
};

// [end of a stack] What all behind it cost, at least; and `next`, as Onward has it.
std::vector<RowCost> costs_behind(
    const LayoutStack& stack,
    const LayoutStack& behind,
    const Onward& of_behind,
    std::vector<std::size_t>& next) {
  const Borders borders(stack.graph);
  const Borders borders_behind(behind.graph);
  std::vector<RowCost> costs(borders.count());
  next.assign(borders.count(), 0);
  for (std::size_t e = 0; e < borders.count(); ++e) {
    const auto going_on = best_of(borders_behind.count(), [&](std::size_t b) {
      return agree(stack, borders.places(e), behind, borders_behind.places(b)) ? of_behind.cost[b]
                                                                               : RowCost();
    });
    if (going_on) {
      costs[e] = of_behind.cost[*going_on];
      next[e] = *going_on;
    }
  }
  return costs;
}

// [border] Costs of beginning or ending there, where there are any.
RowCost at(const std::vector<double>& costs, std::size_t border) {
  return {.cost = costs.empty() ? 0 : costs[border], .others = 0};
}

}  // namespace

LayoutPath cheapest_path(
    const std::vector<LayoutStack>& stacks,
    const std::vector<double>& begin,
    const std::vector<double>& end) {
  std::vector<Onward> onward;  // of the last stack first
  for (std::size_t k = stacks.size(); k-- > 0;) {
    Onward one(stacks[k]);
    std::vector<RowCost> behind;
    if (k + 1 < stacks.size()) {
      behind = costs_behind(stacks[k], stacks[k + 1], onward.back(), one.next);
    } else {
      for (std::size_t e = 0; e < one.table->borders; ++e) {
        behind.push_back(at(end, e));
      }
    }
    one.cost.resize(one.table->borders);
    one.end.assign(one.table->borders, 0);
    for (std::size_t b = 0; b < one.table->borders; ++b) {
      const auto to = [&](std::size_t e) { return one.walks.cost(b, e) + behind[e]; };
      if (const auto e = best_of(one.table->borders, to)) {
        one.cost[b] = to(*e);
        one.end[b] = *e;
      }
    }
    onward.push_back(std::move(one));
  }
  const auto of_all = [&](std::size_t b) { return at(begin, b) + onward.back().cost[b]; };
  const auto best = best_of(onward.back().cost.size(), of_all);
  if (!best) {
    no_path();
  }
  std::size_t from = *best;
  LayoutPath path;
  for (std::size_t k = 0; k < stacks.size(); ++k) {
    const Onward& one = onward[stacks.size() - 1 - k];
    const std::size_t to = one.end[from];
    std::ranges::move(one.walks.path(stacks[k].layers, from, to), std::back_inserter(path.layers));
    from = k + 1 < stacks.size() ? one.next[to] : 0;
  }
  path.cost = of_all(*best).cost / static_cast<double>(path.layers.size());
  return path;
}

LayoutPath cheapest_path(
    const LayoutGraph& graph,
    std::size_t layers,
    const std::vector<double>& begin,
    const std::vector<double>& end) {
  LayoutStack stack{.graph = graph, .layers = layers, .streams = {}};
  for (std::size_t s = 0; s < graph.places.size(); ++s) {
    stack.streams.push_back(s);
  }
  return cheapest_path(std::vector{std::move(stack)}, begin, end);
}

}  // namespace paradyse
