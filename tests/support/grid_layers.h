// Layers of multi-axis models that have, between them, every strategy of each part.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/strategy.h"

namespace paradyse::test {

// Documents of so many samples of a model with inputs, each of so many rows, on a group.
inline Documents documents_of_samples(
    const DimSizes& dims, std::int64_t rows, std::int64_t samples, int ranks) {
  Documents documents =
      packed(std::vector<std::int64_t>(idx(samples), rows), ranks, /*causal=*/false);
  documents.dims = dims;
  return documents;
}

// The strategy by every placement of what the part reads with which it runs on 1 to 4 ranks.
inline std::vector<PartChoice> ways_of_strategy(
    const Model& model, const ModelPart& one, const std::string& strategy, const DimSizes& dims) {
  const Part& part = *one.part;
  std::vector<PartChoice> ways = {{.part = part.name, .strategy = strategy}};
  for (const std::string& name : part.reads) {
    const Stream& stream = model.stream(name);
    if (stream.home.empty()) {
      continue;  // planners leave it on every rank
    }
    std::vector<PartChoice> placed;
    for (const PartChoice& before : ways) {
      for (const std::string& dim : stream.rows) {
        placed.push_back(before);
        placed.back().in[name] = {"S(" + dim + ")"};
      }
      placed.push_back(before);
      placed.back().in[name] = {"R"};
    }
    ways = std::move(placed);
  }
  std::erase_if(ways, [&](const PartChoice& choice) {
    try {
      for (const int ranks : {1, 2, 3, 4}) {
        const Documents documents = documents_of_samples(dims, /*rows=*/1, /*samples=*/1, ranks);
        scheduled_part(
            {.part = one.part,
             .streams = streams_of(model, part, choice, documents),
             .documents = documents,
             .domain = ranks},
            choice);
      }
      return false;
    } catch (const std::invalid_argument&) {
      return true;
    }
  });
  return ways;
}

// Of the parts of all stacks (layers_of()).  As many as the part with most strategies has; parts
// with fewer have theirs again, on tensors that lie otherwise where the strategy allows it.
inline std::vector<LayerChoice> layers_of_every_strategy(const Model& model, const DimSizes& dims) {
  std::vector<std::vector<std::vector<PartChoice>>> ways;  // [part][strategy][placement]
  const std::vector<Stack> stacks = model.stacks();
  for (const ModelPart& one : model.parts) {
    if (std::ranges::find(stacks, one.layer, &Stack::first) == stacks.end()) {
      continue;
    }
    auto& of_part = ways.emplace_back();
    for (const Strategy& strategy : strategies(one.part->kind)) {
      of_part.push_back(ways_of_strategy(model, one, strategy.name, dims));
      if (of_part.back().empty()) {
        of_part.pop_back();
      }
    }
  }
  std::size_t most = 0;
  for (const auto& of_part : ways) {
    most = std::max(most, of_part.size());
  }
  std::vector<LayerChoice> layers(most);
  for (std::size_t layer = 0; layer < most; ++layer) {
    for (std::size_t part = 0; part < ways.size(); ++part) {
      const std::vector<PartChoice>& placed = ways[part].at(layer % ways[part].size());
      layers[layer].push_back(placed[(7 * layer + part) % placed.size()]);
    }
  }
  return layers;
}

}  // namespace paradyse::test
