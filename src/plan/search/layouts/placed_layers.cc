#include "src/plan/search/layouts/placed_layers.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

// Numbers of them that are looked at.
std::span<const std::int64_t> tile_numbers(const PlacedLayer& layer) {
  static constexpr std::int64_t kTiles[] = {1, 4, 16};
  return std::span(kTiles).first(layer.tiles ? std::size(kTiles) : 1);
}

void set_tiles(PartChoice& choice, const Model& model, std::int64_t tiles) {
  if (tiles > 1 && takes(model.part(choice.part)->kind, choice.strategy, kTilesOption)) {
    choice.options[kTilesOption] = tiles;
  }
}

// `choices`: where they stay.
std::vector<PricedChoice> priced_choices(
    const PlacedLayer& of, const PartChoice& given, std::deque<PartChoice>& choices) {
  const Model& model = of.task.model;
  const auto seconds = seconds_of(of.task, of.domain);
  Task task{
      .part = model.part(given.part),
      .choice = {},
      .streams = {},
      .documents = of.documents,
      .domain = of.domain};
  task.streams = streams_of(model, *task.part, given, of.documents);
  std::vector<PricedChoice> priced;
  for (const std::int64_t tiles : tile_numbers(of)) {
    PartChoice tiled = given;
    set_tiles(tiled, model, tiles);
    if (tiles > 1 && tiled == given) {
      continue;
    }
    for (PartChoice& choice : with_savings(tiled, of.savings)) {
      const ScheduledPart part = scheduled_part(task, choice, of.task.training);
      const PartCost cost = part_cost(of.task, *seconds, part, choice);
      priced.push_back({.choice = &choices.emplace_back(std::move(choice)), .cost = cost});
    }
  }
  return priced;
}

// Of the fullest rank, what enters the layer and does not wait on the host: a stream that its
// readers all leave there does.
std::int64_t entering_bytes(const PlacedLayer& of, const LayerChoice& layer) {
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

}  // namespace

LayerWays ways_of(const PlacedLayer& layer) {
  std::deque<PartChoice> choices;
  std::vector<std::vector<PricedChoice>> priced;
  priced.reserve(layer.choice.size());
  for (const PartChoice& part : layer.choice) {
    priced.push_back(priced_choices(layer, part, choices));
  }
  return layer_ways(
      priced,
      {.part_by_part = layer.savings.part_by_part,
       .whole = layer.savings.whole,
       .entering = [&](const LayerChoice& made) { return entering_bytes(layer, made); }});
}

std::vector<LayerChoice> ways_alike(const PlacedLayer& layer) {
  const SavingChoices& savings = layer.savings;
  std::vector<LayerChoice> all;
  for (const bool whole : {false, true}) {
    if (whole ? !savings.whole : !savings.part_by_part) {
      continue;
    }
    for (const Recompute level : savings.levels) {
      for (const std::int64_t tiles : tile_numbers(layer)) {
        for (const bool offload : savings.offload) {
          LayerChoice& way = all.emplace_back(layer.choice);
          set_recompute(way, {.parts = level, .layer = whole});
          for (PartChoice& part : way) {
            part = canonical(part);
            part.offload = offload;
            set_tiles(part, layer.task.model, tiles);
          }
        }
      }
    }
  }
  return all;
}

}  // namespace paradyse
