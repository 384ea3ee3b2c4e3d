#include "paradyse/plan/layout_planner.h"

#include <algorithm>
#include <stdexcept>

#include "paradyse/plan/index.h"
#include "src/plan/search/layouts/layout_graph.h"
#include "src/plan/search/layouts/part_ways.h"

namespace paradyse {
namespace {

// The ways of all parts of a layer and the graph over them.
struct Choices {
  std::vector<std::vector<PartWay>> ways;  // [part]
  LayoutGraph graph;
};

void add_moves(PartWays& parts, const LayoutTask& task, LayoutGraph& graph) {
  for (const PartWays::PlacedStream& stream : parts.streams()) {
    const std::vector<Placement>& places = stream.places;
    graph.places.push_back(static_cast<int>(places.size()));
    auto& costs = graph.moves.emplace_back();
    for (const Placement& from : places) {
      std::vector<double>& row = costs.emplace_back();
      for (const Placement& to : places) {
        row.push_back(value(task, parts.move(stream.name, from, to)));
      }
    }
  }
}

LayoutGraph::Way node(const PartWays& parts, const LayoutTask& task, const PartWay& way) {
  LayoutGraph::Way node{.at = {}, .cost = value(task, way.cost)};
  for (const PartWays::PlacedStream& stream : parts.streams()) {
    const auto in = way.choice.in.find(stream.name);
    node.at.push_back(
        in == way.choice.in.end()
            ? -1
            : static_cast<int>(
                  std::ranges::find(stream.places, in->second) - stream.places.begin()));
  }
  return node;
}

Choices choices_of(PartWays& parts, const LayoutTask& task) {
  Choices choices;
  add_moves(parts, task, choices.graph);
  for (const std::shared_ptr<const Part>& part : parts.parts()) {
    choices.ways.push_back(parts.all(*part));
    if (choices.ways.back().empty()) {
      std::string why;
      PartChoice first{.part = part->name, .strategy = strategies(part->kind).front().name};
      parts.way(*part, first, &why);
      throw std::invalid_argument(
          "layouts: " + part->name + " cannot run on " + std::to_string(task.documents.ranks()) +
          " ranks, wherever its streams lie; " + first.strategy + ": " + why);
    }
    auto& nodes = choices.graph.parts.emplace_back();
    for (const PartWay& way : choices.ways.back()) {
      nodes.push_back(node(parts, task, way));
    }
  }
  return choices;
}

// Ways one after the other, for ever, with the moves between them.
LayoutPlan plan_of(PartWays& parts, const std::vector<std::vector<const PartWay*>>& layers) {
  std::map<std::string, Placement> now;  // where streams lie: after the last layer, then on the way
  for (const std::vector<const PartWay*>& layer : layers) {
    for (const PartWay* way : layer) {
      for (const auto& [stream, place] : way->choice.in) {
        now[stream] = place;
      }
    }
  }
  LayoutPlan plan;
  for (const std::vector<const PartWay*>& layer : layers) {
    std::vector<PlannedPart>& planned = plan.layers.emplace_back();
    for (const PartWay* way : layer) {
      PlannedPart& part = planned.emplace_back();
      part.choice = way->choice;
      part.collectives = way->collectives;
      LayoutCost cost = way->cost;
      for (const auto& [stream, place] : way->choice.in) {
        const Placement from = std::exchange(now[stream], place);
        cost += parts.move(stream, from, place);
        part.moves.push_back(
            {.stream = stream,
             .from = from,
             .to = place,
             .collective = parts.collective_of(stream, from, place)});
      }
      part.elements_forward = cost.forward;
      part.elements_backward = cost.backward;
      part.seconds = cost.seconds;
      plan.elements_forward += cost.forward;
      plan.elements_backward += cost.backward;
      plan.seconds += cost.seconds;
    }
  }
  const auto count = static_cast<double>(layers.size());
  plan.elements_forward /= count;
  plan.elements_backward /= count;
  plan.seconds /= count;
  return plan;
}

}  // namespace

LayoutPlan plan_layouts(const LayoutTask& task) {
  PartWays parts(task);
  const Choices choices = choices_of(parts, task);
  const LayoutPath path = cheapest_cycle(choices.graph);
  std::vector<std::vector<const PartWay*>> layers;
  for (const std::vector<std::size_t>& layer : path.layers) {
    std::vector<const PartWay*>& ways = layers.emplace_back();
    for (std::size_t part = 0; part < layer.size(); ++part) {
      ways.push_back(&choices.ways[part][layer[part]]);
    }
  }
  LayoutPlan plan = plan_of(parts, layers);
  // What a part would cost otherwise: the best plan without its way.
  for (std::size_t layer = 0; layer < path.layers.size(); ++layer) {
    for (std::size_t part = 0; part < path.layers[layer].size(); ++part) {
      LayoutGraph without = choices.graph;
      std::vector<LayoutGraph::Way>& ways = without.parts[part];
      ways.erase(ways.begin() + static_cast<std::ptrdiff_t>(path.layers[layer][part]));
      plan.layers[layer][part].otherwise =
          ways.empty() ? -1 : cheapest_cycle(without).cost - path.cost;
    }
  }
  return plan;
}

LayoutPlan cost_of(const LayoutTask& task, const LayoutRival& rival) {
  PartWays parts(task);
  std::vector<PartWay> ways;
  for (std::size_t i = 0; i < parts.parts().size(); ++i) {
    std::string why;
    std::optional<PartWay> way = parts.way(*parts.parts()[i], rival.parts.at(i), &why);
    if (!way) {
      throw std::invalid_argument("layouts: " + rival.name + ": " + why);
    }
    ways.push_back(*std::move(way));
  }
  std::vector<const PartWay*> layer;
  layer.reserve(ways.size());
  for (const PartWay& way : ways) {
    layer.push_back(&way);
  }
  return plan_of(parts, {layer});
}

}  // namespace paradyse
