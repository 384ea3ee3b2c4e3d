#include "src/plan/simulate/choices.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "paradyse/plan/plan.h"
#include "src/plan/base/text_match.h"
#include "src/plan/search/layers/layer_planner.h"
#include "src/plan/search/layouts/sample_plans.h"
#include "src/plan/simulate/additive.h"
#include "src/plan/simulate/cluster_groups.h"
#include "src/plan/simulate/simulations.h"

namespace paradyse {

int largest_domain(const Cluster& cluster) {
  constexpr int kMostTogether = 64;
  int domain = std::min(cluster.ranks(), kMostTogether);
  while (cluster.ranks() % domain != 0) {
    --domain;
  }
  return domain;
}

Plan repeated(Plan plan, const Cluster& cluster) {
  expect_weight_domain(cluster, plan.weight_domain);
  plan.cluster_name = cluster.name;
  plan.ranks = cluster.ranks();
  const std::vector<PlanGroup> one = plan.micro_batches[0].groups;
  const std::vector<std::int64_t> lengths = plan.lengths;
  const std::int64_t documents = std::ssize(lengths);
  for (int d = 1; d < plan.ranks / plan.weight_domain; ++d) {
    plan.lengths.insert(plan.lengths.end(), lengths.begin(), lengths.end());
    for (PlanGroup group : one) {
      for (int& rank : group.ranks) {
        rank += d * plan.weight_domain;
      }
      for (std::int64_t& document : group.documents) {
        document += d * documents;
      }
      plan.micro_batches[0].groups.push_back(std::move(group));
    }
  }
  return plan;
}

Plan repeated_plan(
    const Model& model,
    const Cluster& cluster,
    const Workload& workload,
    const std::vector<LayerChoice>& layers) {
  return repeated(uniform_plan(model, workload.lengths, workload.domain, layers), cluster);
}

namespace {

// On one rank all strategies compute alike: one of them is enough.
bool of_interest(const Strategy& strategy, int domain) {
  return strategy.one_rank == (domain == 1);
}

// The plan with shares where devices are unlike, and what comes of it.
SimulatedChoice played(
    std::string name,
    Plan plan,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options,
    ExchangeCosts& exchange_costs) {
  SimulatedChoice choice{.name = std::move(name), .plan = std::move(plan), .simulation = {}};
  SimulationOptions as_it_is = options;
  as_it_is.proportional_tokens = false;
  if (options.proportional_tokens && !cluster.uniform()) {
    choice.plan = with_proportional_shares(choice.plan, model, cluster, options, exchange_costs);
  }
  choice.simulation = simulate(choice.plan, model, cluster, as_it_is, exchange_costs);
  return choice;
}

std::vector<LayerChoice> alike(std::int64_t layers, const LayerChoice& choice) {
  return std::vector<LayerChoice>(idx(layers), choice);
}

// A layer of a way to run it, and what the ends of the model hold besides.
struct PricedLayer {
  LayerChoice layer;
  LayerCost cost;
};

// Learned from models of two layers and some more, in which each kind has its share: what lies
// between them are those.
LayerCost layer_cost(
    const LayerChoice& choice,
    const Model& model,
    const Cluster& cluster,
    const Workload& workload,
    const SimulationOptions& options,
    ExchangeCosts& exchange_costs) {
  const auto play = [&](std::int64_t layers) {
    const Model small = with_layers(model, layers);
    return simulate(
        repeated_plan(small, cluster, workload, alike(layers, choice)),
        small,
        cluster,
        options,
        exchange_costs);
  };
  const std::int64_t more_layers = std::max<std::int64_t>(2, model.period());
  const Simulation two = play(2);
  const Simulation longer = play(2 + more_layers);
  const auto working = [](const Simulation& simulation) {
    return simulation.seconds - simulation.gradient_seconds - simulation.optimizer_seconds;
  };
  LayerCost cost{
      .name = name(choice),
      .seconds = (working(longer) - working(two)) / static_cast<double>(more_layers)};
  for (std::size_t r = 0; r < two.ranks.size(); ++r) {
    const PredictedBytes& less = two.ranks[r].bytes;
    const PredictedBytes& more = longer.ranks[r].bytes;
    const std::int64_t saved = more.saved - less.saved;  // of those
    cost.saved_bytes = std::max(cost.saved_bytes, saved / more_layers);
    cost.transient_bytes = std::max(
        cost.transient_bytes,
        more.transient + more.saved - (2 + more_layers) * saved / more_layers);
  }
  return cost;
}

std::vector<SimulatedChoice> uniform(
    const Model& model,
    const Cluster& cluster,
    const Workload& workload,
    const SimulationOptions& options,
    ExchangeCosts& exchange_costs) {
  std::vector<SimulatedChoice> found;
  for (const Strategy& strategy : strategies("attention")) {
    if (workload.domain == 1 && !strategy.one_rank) {
      continue;
    }
    for (const Recompute level : kRecomputeLevels) {
      const LayerChoice layer = text_layer(strategy.name, to_string(strategy.verb), level, level);
      found.push_back(played(
          name(layer),
          repeated_plan(model, cluster, workload, alike(model.layers, layer)),
          model,
          cluster,
          options,
          exchange_costs));
    }
  }
  return found;
}

std::optional<SimulatedChoice> best_mix(
    const Model& model,
    const Cluster& cluster,
    const Workload& workload,
    const SimulationOptions& options,
    ExchangeCosts& exchange_costs) {
  if (model.layers == 0) {
    return std::nullopt;
  }
  SimulationOptions quiet = options;
  quiet.observer = {};
  std::vector<PricedLayer> priced;
  for (const Strategy& strategy : strategies("attention")) {
    for (const Verb verb : kVerbs) {
      for (const Recompute level : kRecomputeLevels) {
        if (!of_interest(strategy, workload.domain) ||
            (workload.domain == 1 && verb != Verb::gather)) {
          continue;
        }
        const LayerChoice layer = text_layer(strategy.name, to_string(verb), level, level);
        priced.push_back(
            {.layer = layer,
             .cost = layer_cost(layer, model, cluster, workload, quiet, exchange_costs)});
      }
    }
  }
  std::vector<LayerCost> costs;
  costs.reserve(priced.size());
  for (const PricedLayer& one : priced) {
    costs.push_back(one.cost);
  }
  std::int64_t capacity = std::numeric_limits<std::int64_t>::max();
  for (int rank = 0; rank < cluster.ranks(); ++rank) {
    capacity = std::min(
        capacity,
        cluster.device(rank).memory_bytes - static_bytes(
                                                model,
                                                workload.domain,
                                                rank % workload.domain,
                                                options.precision,
                                                options.keeps()));
  }
  // What fits by the sum may miss by a little where unlike layers meet: then with less room.
  constexpr int kTries = 6;
  for (int attempt = 0; attempt < kTries && capacity >= 0; ++attempt) {
    const LayerPlan mix = plan_layers(costs, model.layers, capacity);
    if (!mix.feasible) {
      return std::nullopt;
    }
    std::vector<LayerChoice> layers;
    std::string name;
    for (const std::size_t way : layer_order(costs, mix)) {
      if (layers.empty() || !(layers.back() == priced[way].layer)) {
        name += (name.empty() ? "mix: " : ", then ") + std::to_string(mix.counts[way]) + " x " +
                costs[way].name;
      }
      layers.push_back(priced[way].layer);
    }
    Plan plan = repeated_plan(model, cluster, workload, layers);
    plan.planner_name = "exact layers";
    SimulatedChoice choice =
        played(std::move(name), std::move(plan), model, cluster, options, exchange_costs);
    if (choice.simulation.fits()) {
      return choice;
    }
    capacity -= choice.simulation.ranks[choice.simulation.fullest()].missing_bytes;
  }
  return std::nullopt;
}

}  // namespace

std::vector<SimulatedChoice> simulate_uniform(
    const Model& model,
    const Cluster& cluster,
    const Workload& workload,
    const SimulationOptions& options) {
  ExchangeCosts exchange_costs(cluster);
  return uniform(model, cluster, workload, options, exchange_costs);
}

std::optional<SimulatedChoice> simulate_mix(
    const Model& model,
    const Cluster& cluster,
    const Workload& workload,
    const SimulationOptions& options) {
  ExchangeCosts exchange_costs(cluster);
  return best_mix(model, cluster, workload, options, exchange_costs);
}

std::vector<SimulatedChoice> simulate_all(
    const Model& model,
    const Cluster& cluster,
    const Workload& workload,
    const SimulationOptions& options) {
  ExchangeCosts exchange_costs(cluster);
  std::vector<SimulatedChoice> found = uniform(model, cluster, workload, options, exchange_costs);
  if (std::optional<SimulatedChoice> mix =
          best_mix(model, cluster, workload, options, exchange_costs)) {
    found.push_back(std::move(*mix));
  }
  return found;
}

namespace {

LayoutTask layout_task(const Model& model, const Documents& samples, LayerRecompute recompute) {
  return {.model = &model, .documents = samples, .recompute = recompute, .seconds = {}};
}

// Of one weight domain.  The planned one is the first.
std::vector<LayoutWay> ways_of(
    LayoutTask task, const Cluster& cluster, const SimulationOptions& options) {
  std::vector<LayoutWay> ways = layout_ways(task);
  task.objective = LayoutTask::Objective::seconds;
  task.seconds = part_seconds(cluster, task.documents.ranks(), options);
  ways.push_back(
      {.name = "planned-by-seconds",
       .plan = plan_of(task, plan_layouts(task, task.model->layers))});
  for (LayoutWay& way : ways) {
    way.plan.model_name = task.model->name;
    way.plan.model_sha256 = task.model->sha256;
    way.plan.planner_name = way.name == "planned" ? way.plan.planner_name : way.name;
  }
  return ways;
}

// The planned layout where memory is short; none: nothing fits.
std::optional<Plan> within_memory(
    const Model& model,
    const Cluster& cluster,
    const Documents& samples,
    const Plan& planned,
    const SimulationOptions& options) {
  PlanningTask task = planning_task(model, alike(cluster), samples.ranks(), options, 0);
  task.mesh = samples.mesh;
  SamplePlans plans(std::move(task));
  const SamplePlans::Found& found = plans.best(
      {.dims = samples.dims,
       .rows = samples.lengths.front(),
       .samples = std::ssize(samples.lengths),
       .ranks = samples.ranks()},
      plans.messages(),
      Caps::held);
  if (!found.fitting) {
    return std::nullopt;
  }
  Plan plan = planned;
  plan.programs.begin()->second = found.fitting->program;
  return plan;
}

}  // namespace

Plan layout_plan(
    const Model& model,
    const Cluster& cluster,
    const Documents& samples,
    const std::string& layout,
    LayerRecompute recompute,
    const SimulationOptions& options) {
  const std::vector<LayoutWay> ways =
      ways_of(layout_task(model, samples, recompute), cluster, options);
  std::vector<std::string> names;
  std::ranges::transform(ways, std::back_inserter(names), &LayoutWay::name);
  expect_one_of("--layout", layout, names);
  return repeated(std::ranges::find(ways, layout, &LayoutWay::name)->plan, cluster);
}

std::vector<SimulatedChoice> simulate_layouts(
    const Model& model,
    const Cluster& cluster,
    const Documents& samples,
    const SimulationOptions& options) {
  ExchangeCosts exchange_costs(cluster);
  std::vector<SimulatedChoice> found;
  const auto add = [&](std::string name, const Plan& plan) {
    Plan whole = repeated(plan, cluster);
    const bool known = std::ranges::any_of(
        found, [&](const SimulatedChoice& other) { return other.plan.programs == whole.programs; });
    if (!known) {
      found.push_back(
          played(std::move(name), std::move(whole), model, cluster, options, exchange_costs));
    }
  };
  Plan planned;  // the first
  for (const Recompute level : kRecomputeLevels) {
    const LayerRecompute recompute{.parts = level};
    for (const LayoutWay& way : ways_of(layout_task(model, samples, recompute), cluster, options)) {
      planned = found.empty() ? way.plan : planned;
      add(way.name + (level == Recompute::none ? "" : ", recompute " + to_string(recompute)),
          way.plan);
    }
  }
  if (const std::optional<Plan> plan = within_memory(model, cluster, samples, planned, options)) {
    add("planned, within memory", *plan);
  }
  return found;
}

const SimulatedChoice* best(const std::vector<SimulatedChoice>& choices) {
  const SimulatedChoice* found = nullptr;
  for (const SimulatedChoice& choice : choices) {
    if (choice.simulation.fits() &&
        (found == nullptr || choice.simulation.seconds < found->simulation.seconds)) {
      found = &choice;
    }
  }
  return found;
}

}  // namespace paradyse
