// Random sound plans whose micro-batches have groups of any size side by side, and idle ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"
#include "src/plan/model/text/text_shape.h"

namespace paradyse {

// Heads that divide by few numbers of ranks, and fewer key/value heads.
inline TextShape random_groups_model() {
  TextShape m;
  m.layers = 3;
  m.hidden = 48;
  m.heads = 6;
  m.kv_heads = 2;
  m.head_dim = 8;
  m.ffn = 40;
  m.vocab = 56;
  return m;
}

struct RandomGroups {
  int ranks = 6;  // of a weight domain
  int domains = 1;
  std::int64_t longest = 60;
};

// Groups of 1 to all ranks of a domain, neighbours or not; each runs a program of its own: every
// attention strategy that gathers, any level, some parts offloaded, some MLPs in tiles; a group
// that is its whole domain may hold or pass its MLP's weights.
inline Plan random_groups(std::mt19937& random, const TextShape& model, const RandomGroups& size) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  Plan plan;
  plan.model_name = "random";
  plan.layers = model.layers;
  plan.cluster_name = "random";
  plan.weight_domain = size.ranks;
  plan.ranks = size.ranks * size.domains;

  std::vector<bool> whole;  // [layer] made again as a whole, in all groups or in none
  for (std::int64_t l = 0; l < plan.layers; ++l) {
    whole.push_back(pick(0, 2) == 0);
  }
  const auto program = [&](int ranks, Verb verb, bool tiled) {
    std::vector<LayerChoice> layers;
    for (std::int64_t l = 0; l < plan.layers; ++l) {
      std::vector<std::string> names;
      for (const Strategy& strategy : strategies("attention")) {
        const bool suits = strategy.one_rank ? ranks == 1 : ranks > 1 || pick(0, 1) == 0;
        if (suits && strategy.verb == Verb::gather) {
          names.push_back(strategy.name);
        }
      }
      LayerChoice layer = text_layer(
          names[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(names.size()) - 1))],
          to_string(verb),
          kRecomputeLevels[pick(0, 3)],
          kRecomputeLevels[pick(0, 3)]);
      part_of(layer, "attention").offload = pick(0, 4) == 0;
      part_of(layer, "mlp").offload = pick(0, 4) == 0;
      if (tiled) {
        part_of(layer, "mlp").options["token_tiles"] = pick(2, 4);
      }
      for (PartChoice& part : layer) {
        part.with_layer = whole[static_cast<std::size_t>(l)];
      }
      layers.push_back(layer);
    }
    const std::string name = "p" + std::to_string(plan.programs.size());
    plan.programs[name] = runs_of(layers);
    return name;
  };

  for (std::int64_t m = pick(1, 3); m > 0; --m) {
    PlanMicroBatch micro_batch;
    const bool tiled = pick(0, 2) == 0;  // in all groups: their sums are of one type
    for (int domain = 0; domain < size.domains; ++domain) {
      std::vector<int> ranks(static_cast<std::size_t>(size.ranks));
      std::iota(ranks.begin(), ranks.end(), domain * size.ranks);
      if (pick(0, 2) == 0) {
        std::shuffle(ranks.begin(), ranks.end(), random);
      }
      for (auto at = ranks.begin(); at != ranks.end();) {
        const auto count = static_cast<int>(pick(1, ranks.end() - at));
        PlanGroup group{.ranks = {at, at + count}, .documents = {}, .program = ""};
        std::ranges::sort(group.ranks);
        const Verb verb = count == size.ranks ? kVerbs[pick(0, 2)] : Verb::gather;
        group.program = program(count, verb, tiled);
        for (std::int64_t d = pick(count == 1 ? 0 : 1, 3); d > 0; --d) {
          group.documents.push_back(static_cast<std::int64_t>(plan.lengths.size()));
          plan.lengths.push_back(pick(0, size.longest));
        }
        if (count > 1 && pick(0, 3) == 0) {
          for (int r = 0; r < count; ++r) {
            group.shares.push_back(std::uniform_real_distribution<double>(0.1, 3)(random));
          }
        }
        micro_batch.groups.push_back(group);
        at += count;
      }
    }
    plan.micro_batches.push_back(micro_batch);
  }
  return plan;
}

}  // namespace paradyse
