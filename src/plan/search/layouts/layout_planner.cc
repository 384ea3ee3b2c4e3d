#include "paradyse/plan/layout_planner.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/search/layouts/layout_graph.h"
#include "src/plan/search/layouts/part_ways.h"

namespace paradyse {
namespace {

// The ways of all parts of a layer, of layers that are alike, and the graph over them.
struct Choices {
  std::vector<std::vector<PartWay>> ways;  // [part]
  LayoutStack stack;
};

// Of a model's stacks; where it has no layers, one of none.
std::vector<Stack> stacks_of(const Model& model) {
  std::vector<Stack> stacks = model.stacks();
  return stacks.empty() ? std::vector<Stack>(1) : stacks;
}

bool reads(const Stack& stack, const std::string& stream) {
  return std::ranges::any_of(stack.parts, [&](const std::shared_ptr<const Part>& part) {
    return std::ranges::count(part->reads, stream) > 0;
  });
}

// The numbers of the streams whose places matter in a stack: that it reads, or that are read before
// it and behind it.
std::vector<std::size_t> streams_in(
    const PartWays& parts, const Model& model, const std::vector<Stack>& stacks, std::size_t k) {
  std::vector<std::size_t> numbers;
  for (std::size_t s = 0; s < parts.streams().size(); ++s) {
    const auto read = [&](const Stack& stack) { return reads(stack, parts.streams()[s].name); };
    const auto here = stacks.begin() + static_cast<std::ptrdiff_t>(k);
    const bool passes =
        std::any_of(stacks.begin(), here, read) && std::any_of(here, stacks.end(), read);
    if (stacks.size() == 1 || ends_at_home(model) || read(*here) || passes) {
      numbers.push_back(s);
    }
  }
  return numbers;
}

void add_moves(PartWays& parts, const LayoutTask& task, LayoutStack& stack) {
  LayoutGraph& graph = stack.graph;
  for (const std::size_t number : stack.streams) {
    const PartWays::PlacedStream& stream = parts.streams()[number];
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

LayoutGraph::Way node(
    const PartWays& parts,
    const LayoutTask& task,
    const std::vector<std::size_t>& streams,
    const PartWay& way) {
  LayoutGraph::Way node{.at = {}, .cost = value(task, way.cost)};
  for (const std::size_t number : streams) {
    const PartWays::PlacedStream& stream = parts.streams()[number];
    const auto in = way.choice.in.find(stream.name);
    node.at.push_back(
        in == way.choice.in.end()
            ? -1
            : static_cast<int>(
                  std::ranges::find(stream.places, in->second) - stream.places.begin()));
  }
  return node;
}

Choices choices_of(
    PartWays& parts, const LayoutTask& task, const std::vector<Stack>& stacks, std::size_t k) {
  Choices choices;
  choices.stack.layers = idx(stacks[k].layers);
  choices.stack.streams = streams_in(parts, *task.model, stacks, k);
  add_moves(parts, task, choices.stack);
  for (const std::shared_ptr<const Part>& part : stacks[k].parts) {
    choices.ways.push_back(parts.all(*part));
    if (choices.ways.back().empty()) {
      std::string why;
      PartChoice first{.part = part->name, .strategy = strategies(part->kind).front().name};
      parts.way(*part, first, &why);
      throw std::invalid_argument(
          "layouts: " + part->name + " cannot run on " + std::to_string(task.documents.ranks()) +
          " ranks with any sharding of its tensors; " + first.strategy + ": " + why);
    }
    auto& nodes = choices.stack.graph.parts.emplace_back();
    for (const PartWay& way : choices.ways.back()) {
      nodes.push_back(node(parts, task, choices.stack.streams, way));
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

// Of a layer, whose stack has these choices.
std::vector<const PartWay*> ways_of(const Choices& choices, const std::vector<std::size_t>& layer) {
  std::vector<const PartWay*> ways;
  ways.reserve(layer.size());
  for (std::size_t part = 0; part < layer.size(); ++part) {
    ways.push_back(&choices.ways[part][layer[part]]);
  }
  return ways;
}

// What layers that follow one another for ever cost, those of each stack by themselves: the mean
// over all layers of the model.
class Mean {
 public:
  void add(const LayoutPlan& one, std::int64_t layers) {
    const auto count = static_cast<double>(std::max<std::int64_t>(1, layers));
    layers_ += count;
    sum_.elements_forward += count * one.elements_forward;
    sum_.elements_backward += count * one.elements_backward;
    sum_.seconds += count * one.seconds;
    sum_.layers.insert(sum_.layers.end(), one.layers.begin(), one.layers.end());
  }
  [[nodiscard]] LayoutPlan plan() && {
    sum_.elements_forward /= layers_;
    sum_.elements_backward /= layers_;
    sum_.seconds /= layers_;
    return std::move(sum_);
  }

 private:
  LayoutPlan sum_;
  double layers_ = 0;
};

}  // namespace

LayoutPlan plan_layouts(const LayoutTask& task, std::int64_t layers) {
  PartWays parts(task);
  std::vector<Stack> stacks = stacks_of(*task.model);
  if (stacks.size() == 1) {
    stacks.front().layers = layers;
  } else if (layers != task.model->layers) {
    throw std::invalid_argument(
        "layouts: the model has " + std::to_string(task.model->layers) +
        " layers of several kinds; plan for all of them, not for " + std::to_string(layers) +
        ", or for another model (with_layers)");
  }
  std::vector<Choices> choices;
  std::vector<LayoutStack> graphs;
  for (std::size_t k = 0; k < stacks.size(); ++k) {
    choices.push_back(choices_of(parts, task, stacks, k));
    graphs.push_back(choices.back().stack);
  }
  const LayoutPath path = cheapest_path(
      graphs, border_costs(parts, task, Border::first), border_costs(parts, task, Border::last));
  std::vector<std::vector<const PartWay*>> ways;
  for (std::size_t k = 0; k < stacks.size(); ++k) {
    // of the last stack whatever there is
    const std::size_t end =
        k + 1 < stacks.size() ? ways.size() + idx(stacks[k].layers) : path.layers.size();
    while (ways.size() < end) {
      ways.push_back(ways_of(choices[k], path.layers[ways.size()]));
    }
  }
  LayoutPlan plan = costs_of(parts, *task.model, ways, /*for_ever=*/false);
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
  const std::vector<Stack> stacks = stacks_of(*task.model);
  Mean mean;
  for (std::size_t k = 0; k < stacks.size(); ++k) {
    const Choices choices = choices_of(parts, task, stacks, k);
    const LayoutPath path = cheapest_cycle(choices.stack.graph);
    std::vector<std::vector<const PartWay*>> layers;
    layers.reserve(path.layers.size());
    for (const std::vector<std::size_t>& layer : path.layers) {
      layers.push_back(ways_of(choices, layer));
    }
    LayoutPlan plan = costs_of(parts, *task.model, layers);
    // What a part would cost otherwise: the best plan without its way.
    for (std::size_t layer = 0; layer < path.layers.size(); ++layer) {
      for (std::size_t part = 0; part < path.layers[layer].size(); ++part) {
        LayoutGraph without = choices.stack.graph;
        std::vector<LayoutGraph::Way>& ways = without.parts[part];
        ways.erase(ways.begin() + static_cast<std::ptrdiff_t>(path.layers[layer][part]));
        plan.layers[layer][part].otherwise =
            ways.empty() ? -1 : cheapest_cycle(without).cost - path.cost;
      }
    }
    mean.add(plan, stacks[k].layers);
  }
  return std::move(mean).plan();
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
  Mean mean;
  std::size_t next = 0;
  for (const Stack& stack : stacks_of(*task.model)) {
    std::vector<const PartWay*> layer;
    while (layer.size() < stack.parts.size()) {
      layer.push_back(&ways[next++]);
    }
    mean.add(costs_of(parts, *task.model, {layer}), stack.layers);
  }
  return std::move(mean).plan();
}

}  // namespace paradyse
