#include "src/plan/search/layouts/layer_ways.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "paradyse/plan/index.h"
#include "src/plan/search/layers/partial_layers.h"

namespace paradyse {
namespace {

// What is kept of the layers that are half put together: looking at all takes the square of it.
constexpr std::size_t kMostKept = 300;

// Layers whose parts are made again one by one, and layers that are made again as a whole.
bool tries_parts(const LayerWaysTask& of) {
  return !of.task.training || !of.recompute || !of.recompute->layer;
}
bool tries_whole(const LayerWaysTask& of) {
  return of.task.training && (of.recompute ? of.recompute->layer : of.whole);
}

// Of the fullest rank, and seconds of all ranks.
PartCost cost_of(const LayerWaysTask& of, const PartChoice& choice) {
  Task task{
      .part = of.task.model.part(choice.part),
      .choice = {},
      .streams = {},
      .documents = of.documents,
      .domain = of.domain};
  task.streams = streams_of(of.task.model, *task.part, choice, of.documents);
  const ScheduledPart part = scheduled_part(task, choice, of.task.training);
  const std::vector<Seat> seats = seats_side_by_side(of.documents.ranks(), of.task);
  PartCost cost{.wall = of.prediction.part_seconds(part, seats)};
  if (tries_whole(of)) {
    PartChoice whole = choice;
    whole.with_layer = true;
    const ScheduledPart again = scheduled_part(task, whole, of.task.training);
    cost.forward = std::max(0.0, of.prediction.part_seconds(again, seats) - cost.wall);
  }
  cost.wall += copying_seconds(linked({part}), seats, of.task.precision, of.task.machine);
  for (const Seat& seat : seats) {
    const PartFootprint held = part_footprint(part, seat, of.task.precision);
    cost.saved_bytes = std::max(cost.saved_bytes, held.saved_bytes);
    cost.transient_bytes = std::max(cost.transient_bytes, held.transient_bytes);
  }
  return cost;
}

std::vector<Recompute> levels_of(const LayerWaysTask& of) {
  if (of.recompute || !of.task.training) {
    return {of.task.training ? of.recompute.value_or(LayerRecompute{}).parts : Recompute::none};
  }
  return {std::begin(kRecomputeLevels), std::end(kRecomputeLevels)};
}

// Where what a part saves may wait: not on the host, on the host.
std::vector<bool> places_of(const LayerWaysTask& of) {
  return of.task.offload && of.task.training ? std::vector{false, true} : std::vector{false};
}

std::vector<Partial> ways_of(const LayerWaysTask& of, const PartChoice& part) {
  const std::vector<Recompute> levels = levels_of(of);
  const bool tiled = takes(of.task.model.part(part.part)->kind, part.strategy, kTilesOption);
  std::vector<Partial> ways;
  for (const Recompute level : levels) {
    for (const std::int64_t tiles : of.tiles) {
      if (tiles > 1 && !tiled) {
        continue;
      }
      PartChoice choice = part;
      choice.recompute = level;
      choice.with_layer = false;  // add_whole() knows what that costs
      if (levels.size() > 1 && canonical(choice).recompute != level) {
        continue;  // the same as another level
      }
      if (tiles > 1) {
        choice.options[kTilesOption] = tiles;
      }
      for (const bool host : places_of(of)) {
        choice.offload = host;
        ways.push_back({.parts = {choice}, .cost = cost_of(of, choice)});
      }
    }
  }
  return ways;
}

// Of the fullest rank, what enters the layer and does not wait on the host: a stream that its
// readers all leave there does.
std::int64_t entering_bytes(const LayerWaysTask& of, const LayerChoice& layer) {
  std::map<std::string, std::int64_t> here;
  std::set<std::string> made;
  for (const PartChoice& choice : layer) {
    const Part& part = *of.task.model.part(choice.part);
    const Layouts streams = streams_of(of.task.model, part, choice, of.documents);
    for (const std::string& name : part.reads) {
      for (int rank = 0; rank < of.documents.ranks(); ++rank) {
        if (!made.contains(name) && !choice.offload) {
          std::int64_t& most = here[name];
          most = std::max(most, streams.at(name).elements(rank) * of.task.precision.activation);
        }
      }
    }
    made.insert(part.writes.begin(), part.writes.end());
  }
  std::int64_t sum = 0;
  for (const auto& [name, bytes] : here) {
    sum += bytes;
  }
  return sum;
}

// Always the fastest, and those that save least, alone and with what a layer needs for a while.
std::vector<Partial> thinned(std::vector<Partial> all) {
  if (all.size() <= kMostKept) {
    return all;
  }
  std::ranges::stable_sort(all, {}, [](const Partial& one) { return one.cost.wall; });
  const auto of_one = [](const Partial& one) {
    return std::pair(one.cost.saved_bytes + one.cost.transient_bytes, one.cost.wall);
  };
  const auto of_many = [](const Partial& one) {
    return std::pair(one.cost.saved_bytes, one.cost.transient_bytes);
  };
  std::vector<Partial> kept = {
      *std::ranges::min_element(all, {}, of_one), *std::ranges::min_element(all, {}, of_many)};
  for (std::size_t i = 0; i + 2 < kMostKept; ++i) {
    kept.push_back(all[i * all.size() / (kMostKept - 2)]);
  }
  return kept;
}

}  // namespace

std::vector<Seat> seats_side_by_side(int group, const PlanningTask& task) {
  std::vector<Seat> seats;
  seats.reserve(idx(task.ranks));
  for (int rank = 0; rank < task.ranks; ++rank) {
    seats.push_back({.group_rank = rank % group, .domain_rank = rank % task.domain()});
  }
  return seats;
}

std::vector<LayerChoice> ways_alike(const LayerWaysTask& of) {
  std::vector<LayerChoice> all;
  for (const bool whole : {false, true}) {
    if (whole ? !tries_whole(of) : !tries_parts(of)) {
      continue;
    }
    for (const Recompute level : levels_of(of)) {
      for (const std::int64_t tiles : of.tiles) {
        for (const bool host : places_of(of)) {
          LayerChoice& way = all.emplace_back(of.layer);
          set_recompute(way, {.parts = level, .layer = whole});
          for (PartChoice& part : way) {
            part = canonical(part);
            part.offload = host;
            const std::string& kind = of.task.model.part(part.part)->kind;
            if (tiles > 1 && takes(kind, part.strategy, kTilesOption)) {
              part.options[kTilesOption] = tiles;
            }
          }
        }
      }
    }
  }
  return all;
}

LayerWays layer_ways(const LayerWaysTask& of) {
  const auto any = [](const Partial&, const Partial&) { return true; };
  std::vector<Partial> layers;
  for (const PartChoice& part : of.layer) {
    std::vector<Partial> ways = unbeaten(ways_of(of, part), any);
    if (layers.empty()) {
      layers = std::move(ways);
      continue;
    }
    std::vector<Partial> longer;
    for (const Partial& before : layers) {
      for (const Partial& next : ways) {
        Partial& one = longer.emplace_back(before);
        one.parts.push_back(next.parts.front());
        one.cost = before.cost + next.cost;
      }
    }
    layers = thinned(unbeaten(std::move(longer), any));
  }
  if (tries_whole(of)) {
    for (Partial& one : layers) {
      one.cost.input_bytes = entering_bytes(of, one.parts);
    }
    add_whole(layers, tries_parts(of));
    layers = thinned(unbeaten(std::move(layers), any));
  }
  LayerWays result;
  for (Partial& one : layers) {
    result.costs.push_back(
        {.name = std::to_string(result.costs.size()),
         .seconds = one.cost.wall,
         .saved_bytes = one.cost.saved_bytes,
         .transient_bytes = std::max<std::int64_t>(0, one.cost.transient_bytes)});
    result.layers.push_back(std::move(one.parts));
  }
  return result;
}

}  // namespace paradyse
