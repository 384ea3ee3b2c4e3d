#include "src/plan/search/layouts/layout_graph.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/index.h"

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

// Walks of 1, 2, ... layers: what each costs from border to border, and the border before the last.
class Walks {
 public:
  explicit Walks(const LayerTable& layer) : layer_(layer) {
    cost_.push_back(layer.cost);
    before_.emplace_back();
  }

  [[nodiscard]] std::size_t layers() const { return cost_.size(); }
  [[nodiscard]] double cost(std::size_t from, std::size_t to) const {
    return cost_.back()[layer_.at(from, to)];
  }
  // One layer more: a min-plus product.
  void grow() {
    const std::size_t n = layer_.borders;
    std::vector<double> grown(n * n, kNever);
    std::vector<std::size_t> before(n * n, 0);
    for (std::size_t from = 0; from < n; ++from) {
      for (std::size_t middle = 0; middle < n; ++middle) {
        const double so_far = cost_.back()[layer_.at(from, middle)];
        for (std::size_t to = 0; to < n && so_far < kNever; ++to) {
          const double cost = so_far + layer_.cost[layer_.at(middle, to)];
          if (cost < grown[layer_.at(from, to)]) {
            grown[layer_.at(from, to)] = cost;
            before[layer_.at(from, to)] = middle;
          }
        }
      }
    }
    cost_.push_back(std::move(grown));
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
  std::vector<std::vector<double>> cost_;         // [layers - 1][from][to]
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
      const double mean = walks.cost(b, b) / static_cast<double>(k);
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

LayoutPath cheapest_path(
    const LayoutGraph& graph,
    std::size_t layers,
    const std::vector<double>& begin,
    const std::vector<double>& end) {
  const LayerTable layer = layer_table(graph);
  Walks walks(layer);
  while (walks.layers() < layers) {
    walks.grow();
  }
  double least = kNever;
  std::size_t from = 0;
  std::size_t to = 0;
  for (std::size_t b = 0; b < layer.borders; ++b) {
    for (std::size_t e = 0; e < layer.borders; ++e) {
      const double cost =
          (begin.empty() ? 0 : begin[b]) + walks.cost(b, e) + (end.empty() ? 0 : end[e]);
      if (cost < least) {
        least = cost;
        from = b;
        to = e;
      }
    }
  }
  if (least == kNever) {
    no_path();
  }
  return {.layers = walks.path(layers, from, to), .cost = least / static_cast<double>(layers)};
}

}  // namespace paradyse
