#include "paradyse/plan/layout_planner.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

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
          " ranks with any sharding of its tensors; " + first.strategy + ": " + why);
    }
    auto& nodes = choices.graph.parts.emplace_back();
    for (const PartWay& way : choices.ways.back()) {
      nodes.push_back(node(parts, task, way));
    }
  }
  return choices;
}

// [places of all streams, the last one's fastest] What it costs from where streams are made, or to
// where they are read.
enum class Border { first, last };
std::vector<double> border_costs(PartWays& parts, const LayoutTask& task, Border border) {
  if (!ends_at_home(*task.model)) {
    return {};
  }
  std::vector<double> costs = {0};
  for (const PartWays::PlacedStream& stream : parts.streams()) {
    const Placement home = home_of(task.model->stream(stream.name));
    std::vector<double> longer;
    for (const double before : costs) {
      for (const Placement& place : stream.places) {
        const LayoutCost move = border == Border::first
                                    ? parts.move(stream.name, home, place)
                                    : parts.move(stream.name, place, home, /*in_layer=*/false);
        longer.push_back(before + value(task, move));
      }
    }
    costs = std::move(longer);
  }
  return costs;
}

void add(const LayoutCost& cost, LayoutPlan& plan) {
  plan.elements_forward += cost.forward;
  plan.elements_backward += cost.backward;
  plan.seconds += cost.seconds;
}

// Ways one after the other with the moves between them, for ever or once.
LayoutPlan costs_of(
    PartWays& parts,
    const Model& model,
    const std::vector<std::vector<const PartWay*>>& layers,
    bool for_ever = true) {
  std::map<std::string, Placement> now;  // where streams lie: after the last layer, then on the way
  for (const std::vector<const PartWay*>& layer : layers) {
    for (const PartWay* way : layer) {
      for (const auto& [stream, place] : way->choice.in) {
        if (for_ever) {
          now[stream] = place;
        } else {  // made at home, or where it is wanted first
          now.try_emplace(stream, ends_at_home(model) ? home_of(model.stream(stream)) : place);
        }
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
      add(cost, plan);
    }
  }
  if (!for_ever && ends_at_home(model)) {
    for (const auto& [stream, place] : now) {
      add(parts.move(stream, place, home_of(model.stream(stream)), /*in_layer=*/false), plan);
    }
  }
  const auto count = for_ever ? static_cast<double>(layers.size()) : 1.0;
  plan.elements_forward /= count;
  plan.elements_backward /= count;
  plan.seconds /= count;
  return plan;
}

}  // namespace

namespace {

std::vector<std::vector<const PartWay*>> ways_of(const Choices& choices, const LayoutPath& path) {
  std::vector<std::vector<const PartWay*>> layers;
  for (const std::vector<std::size_t>& layer : path.layers) {
    std::vector<const PartWay*>& ways = layers.emplace_back();
    for (std::size_t part = 0; part < layer.size(); ++part) {
      ways.push_back(&choices.ways[part][layer[part]]);
    }
  }
  return layers;
}

}  // namespace

LayoutPlan plan_layouts(const LayoutTask& task, std::int64_t layers) {
  PartWays parts(task);
  const Choices choices = choices_of(parts, task);
  const LayoutPath path = cheapest_path(
      choices.graph,
      idx(layers),
      border_costs(parts, task, Border::first),
      border_costs(parts, task, Border::last));
  LayoutPlan plan = costs_of(parts, *task.model, ways_of(choices, path), /*for_ever=*/false);
  // What nobody reads is not run: it stays in the plan, and costs nothing.
  const std::vector<bool> needed = task.model->needed();
  for (std::size_t i = 0; i < needed.size(); ++i) {
    const ModelPart& one = task.model->parts[i];
    if (needed[i] || one.layer < 0 || one.layer >= layers) {
      continue;
    }
    std::vector<PlannedPart>& layer = plan.layers[idx(one.layer)];
    const auto part = std::ranges::find_if(
        layer, [&](const PlannedPart& p) { return p.choice.part == one.part->name; });
    plan.elements_forward -= std::exchange(part->elements_forward, 0);
    plan.elements_backward -= std::exchange(part->elements_backward, 0);
    plan.seconds -= std::exchange(part->seconds, 0);
    part->moves.clear();
  }
  return plan;
}

Plan plan_of(const LayoutTask& task, const std::vector<LayerChoice>& layers) {
  const int ranks = task.documents.ranks();
  Plan plan;
  plan.layers = static_cast<std::int64_t>(layers.size());
  plan.cluster_name = "local-" + std::to_string(ranks);
  plan.ranks = ranks;
  plan.weight_domain = ranks;
  plan.tiles = task.model->tiles();
  plan.lengths = task.documents.lengths;
  plan.dims = task.documents.dims;
  plan.programs["layout"] = runs_of(layers);
  PlanGroup group{.ranks = {}, .documents = {}, .program = "layout", .mesh = task.documents.mesh};
  for (int rank = 0; rank < ranks; ++rank) {
    group.ranks.push_back(rank);
  }
  for (std::size_t sample = 0; sample < plan.lengths.size(); ++sample) {
    group.documents.push_back(static_cast<std::int64_t>(sample));
  }
  plan.micro_batches = {{.groups = {std::move(group)}, .predicted = {}}};
  plan.planner_name = "layout";
  plan.planner_space = task.objective == LayoutTask::Objective::elements ? "elements" : "seconds";
  return plan;
}

std::vector<LayerChoice> choices(const LayoutTask& task, const LayoutPlan& layouts) {
  std::vector<LayerChoice> layers;
  for (const std::vector<PlannedPart>& layer : layouts.layers) {
    LayerChoice& choices = layers.emplace_back();
    for (const PlannedPart& part : layer) {
      PartChoice& choice = choices.emplace_back(part.choice);
      for (const std::string& stream : task.model->part(choice.part)->writes) {
        if (const auto in = choice.in.find(stream); in != choice.in.end()) {
          choice.out.insert(*in);  // a part gives its stream back as it took it
        }
      }
    }
  }
  return layers;
}

Plan plan_of(const LayoutTask& task, const LayoutPlan& layouts) {
  return plan_of(task, choices(task, layouts));
}

namespace {

Plan named(Plan plan, std::string model, std::string sha256, double seconds) {
  plan.model_name = std::move(model);
  plan.model_sha256 = std::move(sha256);
  plan.planner_seconds = seconds;
  return plan;
}

Plan sound(Plan plan, const CheckContext& context) {
  if (const std::vector<std::string> wrong = problems(plan, context); !wrong.empty()) {
    throw std::logic_error("layouts: the plan is invalid: " + wrong.front());
  }
  return plan;
}

}  // namespace

Plan checked_plan(const LayoutTask& task, const LayoutPlan& layouts, double seconds) {
  const Model& model = *task.model;
  return sound(named(plan_of(task, layouts), model.name, model.sha256, seconds), {.model = model});
}

LayoutPlan plan_layouts(const LayoutTask& task) {
  PartWays parts(task);
  const Choices choices = choices_of(parts, task);
  const LayoutPath path = cheapest_cycle(choices.graph);
  LayoutPlan plan = costs_of(parts, *task.model, ways_of(choices, path));
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
  return costs_of(parts, *task.model, {layer});
}

}  // namespace paradyse
