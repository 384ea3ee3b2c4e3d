// The layout graph's shortest cycles and paths against enumeration, on random small graphs.
#include "src/plan/search/layouts/layout_graph.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

LayoutGraph random_graph(std::mt19937& random) {
  const auto up_to = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  // small whole numbers: ties are common, and sums are exact
  const auto cost = [&] { return static_cast<double>(up_to(6)); };
  LayoutGraph graph;
  const int streams = 1 + up_to(1);
  for (int s = 0; s < streams; ++s) {
    const int places = 1 + up_to(2);
    graph.places.push_back(places);
    auto& moves = graph.moves.emplace_back(idx(places), std::vector<double>(idx(places)));
    for (int from = 0; from < places; ++from) {
      for (int to = 0; to < places; ++to) {
        moves[idx(from)][idx(to)] = from == to ? 0 : cost();
      }
    }
  }
  const int parts = 1 + up_to(2);
  for (int p = 0; p < parts; ++p) {
    std::vector<LayoutGraph::Way>& ways = graph.parts.emplace_back();
    for (int w = 0; w <= up_to(2); ++w) {
      LayoutGraph::Way way{.at = {}, .cost = cost()};
      for (int s = 0; s < streams; ++s) {
        way.at.push_back(up_to(3) == 0 ? -1 : up_to(graph.places[idx(s)] - 1));
      }
      ways.push_back(way);
    }
  }
  return graph;
}

// What layers in a row cost from these places on; they end at `places`.
double cost_of(
    const LayoutGraph& graph,
    const std::vector<std::vector<std::size_t>>& layers,
    std::vector<int>& places) {
  double sum = 0;
  for (const std::vector<std::size_t>& layer : layers) {
    for (std::size_t p = 0; p < layer.size(); ++p) {
      const LayoutGraph::Way& way = graph.parts[p].at(layer[p]);
      sum += way.cost;
      for (std::size_t s = 0; s < places.size(); ++s) {
        if (way.at[s] >= 0) {
          sum += graph.moves[s][idx(places[s])][idx(way.at[s])];
          places[s] = way.at[s];
        }
      }
    }
  }
  return sum;
}

// All ways to run a layer.
std::vector<std::vector<std::size_t>> all_layers(const LayoutGraph& graph) {
  std::vector<std::vector<std::size_t>> found = {{}};
  for (const std::vector<LayoutGraph::Way>& part : graph.parts) {
    std::vector<std::vector<std::size_t>> longer;
    for (const std::vector<std::size_t>& layer : found) {
      for (std::size_t w = 0; w < part.size(); ++w) {
        longer.push_back(layer);
        longer.back().push_back(w);
      }
    }
    found = std::move(longer);
  }
  return found;
}

std::vector<std::vector<int>> all_places(const LayoutGraph& graph) {
  std::vector<std::vector<int>> found = {{}};
  for (const int places : graph.places) {
    std::vector<std::vector<int>> longer;
    for (const std::vector<int>& some : found) {
      for (int place = 0; place < places; ++place) {
        longer.push_back(some);
        longer.back().push_back(place);
      }
    }
    found = std::move(longer);
  }
  return found;
}

// Calls body(layers in a row, from, to, cost) for all of so many layers.
template <typename Body>
void for_all(const LayoutGraph& graph, std::size_t count, Body body) {
  const std::vector<std::vector<std::size_t>> one = all_layers(graph);
  std::vector<std::vector<std::size_t>> layers;
  const std::function<void()> grow = [&] {
    if (layers.size() == count) {
      for (const std::vector<int>& from : all_places(graph)) {
        std::vector<int> to = from;
        const double cost = cost_of(graph, layers, to);
        body(from, to, cost);
      }
      return;
    }
    for (const std::vector<std::size_t>& layer : one) {
      layers.push_back(layer);
      grow();
      layers.pop_back();
    }
  };
  grow();
}

TEST(LayoutGraph, FindsTheCheapestCycle) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const LayoutGraph graph = random_graph(random);
    double best = kNever;
    for (std::size_t layers = 1; layers <= 3; ++layers) {
      for_all(graph, layers, [&](const auto& from, const auto& to, double cost) {
        best = from == to ? std::min(best, cost / static_cast<double>(layers)) : best;
      });
    }
    const LayoutPath path = cheapest_cycle(graph);
    EXPECT_LE(path.cost, best + 1e-9);
    if (path.layers.size() <= 3) {
      EXPECT_NEAR(path.cost, best, 1e-9);
    }
    // and it is one: played from some places it comes back to them at that cost
    double least = kNever;
    for (const std::vector<int>& from : all_places(graph)) {
      std::vector<int> to = from;
      const double cost = cost_of(graph, path.layers, to);
      least = from == to ? std::min(least, cost) : least;
    }
    EXPECT_NEAR(least, path.cost * static_cast<double>(path.layers.size()), 1e-9);
  }
}

// One stack behind another: the stream that both have lies where the first leaves it.
TEST(LayoutGraph, FindsTheCheapestPathThroughStacks) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    LayoutStack first{.graph = random_graph(random), .layers = 1 + seed % 2, .streams = {4, 7}};
    LayoutStack second{.graph = random_graph(random), .layers = 1, .streams = {}};
    first.streams.resize(first.graph.places.size());
    const int shared = first.graph.places.back();
    while (second.graph.places.front() != shared) {
      second.graph = random_graph(random);
    }
    second.streams = {first.streams.back(), 9};
    second.streams.resize(second.graph.places.size());
    // [place of the shared stream] what each costs at least
    std::vector<double> before(idx(shared), kNever);
    std::vector<double> behind(idx(shared), kNever);
    for_all(first.graph, first.layers, [&](const auto&, const auto& to, double cost) {
      before[idx(to.back())] = std::min(before[idx(to.back())], cost);
    });
    for_all(second.graph, second.layers, [&](const auto& from, const auto&, double cost) {
      behind[idx(from.front())] = std::min(behind[idx(from.front())], cost);
    });
    double best = kNever;
    for (std::size_t place = 0; place < before.size(); ++place) {
      best = std::min(best, before[place] + behind[place]);
    }
    const LayoutPath path = cheapest_path({first, second});
    ASSERT_EQ(path.layers.size(), first.layers + second.layers);
    EXPECT_NEAR(path.cost * static_cast<double>(path.layers.size()), best, 1e-9);
    // and it is one
    const auto border = path.layers.begin() + static_cast<std::ptrdiff_t>(first.layers);
    double least = kNever;
    for (const std::vector<int>& from : all_places(first.graph)) {
      std::vector<int> to = from;
      const double cost = cost_of(first.graph, {path.layers.begin(), border}, to);
      for (std::vector<int> places : all_places(second.graph)) {
        if (places.front() == to.back()) {
          least =
              std::min(least, cost + cost_of(second.graph, {border, path.layers.end()}, places));
        }
      }
    }
    EXPECT_NEAR(least, best, 1e-9);
  }
}

TEST(LayoutGraph, FindsTheCheapestPath) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const LayoutGraph graph = random_graph(random);
    std::vector<double> begin;
    std::vector<double> end;
    for (std::size_t i = 0; i < all_places(graph).size(); ++i) {
      begin.push_back(static_cast<double>(random() % 5));
      end.push_back(static_cast<double>(random() % 5));
    }
    const std::vector<std::vector<int>> places = all_places(graph);
    for (std::size_t layers = 1; layers <= 3; ++layers) {
      double best = kNever;
      for_all(graph, layers, [&](const auto& from, const auto& to, double cost) {
        const auto at = [&](const std::vector<int>& some) {
          return idx(std::ranges::find(places, some) - places.begin());
        };
        best = std::min(best, begin[at(from)] + cost + end[at(to)]);
      });
      const LayoutPath path = cheapest_path(graph, layers, begin, end);
      EXPECT_EQ(path.layers.size(), layers);
      EXPECT_NEAR(path.cost * static_cast<double>(layers), best, 1e-9);
    }
  }
}

// Many layers cost what min-plus sums say, and where the same layer again and again costs as little
// as any others, it is all there is: a plan writes it once.
TEST(LayoutGraph, KeepsToALayerWhereNothingIsBetter) {
  constexpr std::size_t kLayers = 48;
  int alike = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const LayoutGraph graph = random_graph(random);
    const std::vector<std::vector<int>> places = all_places(graph);
    const auto at = [&](const std::vector<int>& some) {
      return idx(std::ranges::find(places, some) - places.begin());
    };
    std::vector<std::vector<double>> one(places.size(), std::vector<double>(places.size(), kNever));
    double again_and_again = kNever;
    for_all(graph, 1, [&](const auto& from, const auto& to, double cost) {
      one[at(from)][at(to)] = std::min(one[at(from)][at(to)], cost);
      again_and_again = from == to ? std::min(again_and_again, cost) : again_and_again;
    });
    std::vector<double> so_far(places.size(), 0);
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      std::vector<double> next(places.size(), kNever);
      for (std::size_t from = 0; from < places.size(); ++from) {
        for (std::size_t to = 0; to < places.size(); ++to) {
          next[to] = std::min(next[to], so_far[from] + one[from][to]);
        }
      }
      so_far = std::move(next);
    }
    const double least = std::ranges::min(so_far);
    const LayoutPath path = cheapest_path(graph, kLayers);
    EXPECT_EQ(path.cost * static_cast<double>(kLayers), least);
    if (again_and_again * static_cast<double>(kLayers) == least) {
      ++alike;
      EXPECT_EQ(path.layers, decltype(path.layers)(kLayers, path.layers.front()));
    }
  }
  EXPECT_GT(alike, 100);
}

// A stream that has to lie here for one part, there for the next, and anywhere for the last one may
// move back before that or behind it: costs are the same but for roundings.
TEST(LayoutGraph, MovesAtTheSamePlaceInEachLayer) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto cost = [&] { return std::uniform_real_distribution<double>(0.1, 1)(random); };
    LayoutGraph graph{
        .places = {2},
        .moves = {{{0, cost()}, {cost(), 0}}},
        .parts = {{{.at = {0}, .cost = cost()}}, {{.at = {1}, .cost = cost()}}}};
    const double last = cost();
    graph.parts.push_back({{.at = {0}, .cost = last}, {.at = {1}, .cost = last}});
    const LayoutPath path = cheapest_path(graph, 48);
    std::size_t runs = 1;
    for (std::size_t layer = 1; layer < path.layers.size(); ++layer) {
      runs += path.layers[layer] == path.layers[layer - 1] ? 0 : 1;
    }
    EXPECT_LE(runs, 2U);
  }
}

// K parts that attend in turn along K dims, each of which may be cut where another is attended
// along: the shard moves to the dim whose part is furthest away, K / (K - 1) moves a cycle.
TEST(LayoutGraph, MovesToWhereItIsAttendedLast) {
  for (int K = 2; K <= 4; ++K) {
    LayoutGraph graph;
    graph.places = {K};
    graph.moves = {std::vector<std::vector<double>>(idx(K), std::vector<double>(idx(K), 1))};
    for (int place = 0; place < K; ++place) {
      graph.moves[0][idx(place)][idx(place)] = 0;
    }
    for (int along = 0; along < K; ++along) {
      std::vector<LayoutGraph::Way>& ways = graph.parts.emplace_back();
      for (int place = 0; place < K; ++place) {
        if (place != along) {
          ways.push_back({.at = {place}, .cost = 0});
        }
      }
    }
    const LayoutPath path = cheapest_cycle(graph);
    EXPECT_NEAR(path.cost, K / (K - 1.0), 1e-12) << K;
    EXPECT_EQ(path.layers.size(), idx(K - 1)) << K;
  }
}

}  // namespace
}  // namespace paradyse
