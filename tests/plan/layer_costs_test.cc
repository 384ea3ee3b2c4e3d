// What ways to run a layer cost: against folds of whole models.
#include "src/plan/search/layers/layer_costs.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/search/layouts/placed_layers.h"

namespace paradyse {
namespace {

TextShape model() {
  TextShape m;
  m.layers = 3;
  m.hidden = 96;
  m.heads = 6;
  m.kv_heads = 3;
  m.head_dim = 16;
  m.ffn = 250;
  m.vocab = 211;
  return m;
}

PlanningTask task(int ranks) {
  PlanningTask t;
  t.model = model();
  t.ranks = ranks;
  t.machine.cores = 2;
  return t;
}

// Saved bytes of a model are those of its parts; its peak is at most what the parts' transients
// make of them and the weights that are prefetched, and at least what is saved.
TEST(PartFootprint, AddsUpToTheModel) {
  const PlanningTask t = task(3);
  for (const std::int64_t length : {1, 2, 57, 640}) {
    for (const Strategy& s : strategies("attention")) {
      for (const Recompute level : kRecomputeLevels) {
        for (const bool host : {false, true}) {
          const int ranks = s.one_rank ? 1 : t.ranks;
          LayerChoice choice = text_layer(s.name, to_string(s.verb), level, level);
          for (PartChoice& part : choice) {
            part.offload = host;
          }
          const Model model = t.model;
          const Documents documents = packed({length}, ranks, true);
          const std::vector<LayerChoice> layers(3, choice);
          const Timeline parts = timeline(model, documents, t.ranks, layers);
          const Timeline ends = timeline(with_layers(t.model, 0), documents, t.ranks, {});
          const auto footprint_of = [&](const PartChoice& part, Seat seat) {
            return part_footprint(
                scheduled_part(task_of(model, part.part, documents, t.ranks), part),
                seat,
                t.precision);
          };
          for (int r = 0; r < ranks; ++r) {
            const Seat seat{.group_rank = r, .domain_rank = r};
            const Footprint whole = footprint(parts, seat, t.precision, 0);
            const Footprint rest = footprint(ends, seat, t.precision, 0);
            const PartFootprint attention = footprint_of(choice[0], seat);
            const PartFootprint mlp = footprint_of(choice[1], seat);
            const std::string where =
                name(choice) + ", " + std::to_string(length) + " tokens, rank " + std::to_string(r);
            ASSERT_EQ(
                whole.saved_bytes, rest.saved_bytes + 3 * (attention.saved_bytes + mlp.saved_bytes))
                << where;
            std::int64_t weights = 0;
            for (const ScheduledPart& part : parts) {
              for (const Value& value : part.program().values) {
                const auto id = static_cast<ValueId>(&value - part.program().values.data());
                if (value.over_domain) {
                  weights = std::max(weights, bytes(part.program(), id, seat, t.precision));
                }
              }
            }
            ASSERT_LE(
                whole.peak_bytes,
                whole.saved_bytes + weights +
                    std::max(
                        {attention.transient_bytes,
                         mlp.transient_bytes,
                         rest.peak_bytes - rest.saved_bytes}) +
                    rope_table_bytes(parts, t.precision))
                << where;
          }
        }
      }
    }
  }
}

// What is said of a layer made again as a whole is what two such layers more of a model save and
// take; and at its peak no more than all that its parts keep besides.
TEST(LayerCosts, OfLayersMadeAgainAsAWhole) {
  for (const char* const level : {"layer", "layer+light", "layer+full"}) {
    PlanningTask t = task(3);
    t.recompute = level;
    const Correction none;
    LayerCosts costs(t, 3, t.ranks, none);
    ASSERT_FALSE(costs.uniform().empty());
    constexpr std::int64_t kLength = 512;  // a rung
    for (const LayerChoice& choice : costs.uniform()) {
      ASSERT_TRUE(made_again_whole(choice));
      const Model longer = with_layers(t.model, t.model.layers + 2);
      const auto parts_of = [&](const Model& model) {
        return timeline(
            model,
            packed({kLength}, 3, true),
            3,
            std::vector<LayerChoice>(idx(model.layers), choice));
      };
      const Timeline few = parts_of(t.model);
      const Timeline many = parts_of(longer);
      std::int64_t saved = 0;
      std::int64_t peak = 0;
      double wall = 0;
      for (int r = 0; r < 3; ++r) {
        const Seat seat{.group_rank = r, .domain_rank = r};
        const Footprint of_few = footprint(few, seat, t.precision, 0);
        const Footprint of_many = footprint(many, seat, t.precision, 0);
        saved = std::max(saved, of_many.saved_bytes - of_few.saved_bytes);
        peak = std::max(peak, of_many.peak_bytes);
        wall += seconds(totals(many, seat, t.precision), t.machine) -
                seconds(totals(few, seat, t.precision), t.machine);
      }
      const PartCost layer = costs.layer(choice, kLength);
      EXPECT_EQ(2 * layer.saved_bytes, saved) << name(choice);
      EXPECT_NEAR(2 * layer.wall, wall / 2, 1e-9 * wall) << name(choice);  // on two cores
      // what parts share is not in the sum
      const PartCost rest = costs.rest(kLength);
      const std::int64_t sum = rest.saved_bytes + longer.layers * layer.saved_bytes +
                               std::max(layer.transient_bytes, rest.transient_bytes);
      EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(peak), 0.12 * double(peak))
          << name(choice);
    }
  }
}

// A way's seconds are those of the closed form over its parts; read off between rungs they are
// close to what the fold gives.
TEST(LayerCosts, AreTheClosedFormsOfTheParts) {
  const PlanningTask t = task(4);
  const Correction none;
  LayerCosts costs(t, 4, t.ranks, none);
  for (const std::int64_t length : {64, 300, 1024, 5000}) {
    for (const LayerChoice& choice : costs.uniform()) {
      const Model model = t.model;
      const auto part = [&](const PartChoice& one) {
        return scheduled_part(task_of(model, one.part, packed({length}, 4, true), 4), one);
      };
      const Timeline parts = {part(choice[0]), part(choice[1])};
      double sum = 0;
      for (int r = 0; r < 4; ++r) {
        const Seat seat{.group_rank = r, .domain_rank = r};
        sum += seconds(totals(parts, seat, t.precision), t.machine);
      }
      const double wall = costs.layer(choice, length).wall;  // four ranks on two cores
      EXPECT_NEAR(wall, sum / 2, (length % 64 == 0 ? 1e-12 : 0.03) * sum / 2)
          << name(choice) << " " << length;
    }
  }
}

// Layers that differ in a window: one costs what the kinds do, by how many layers have which, and
// holds what the fullest does; the windowed one computes less, and rings send less of it.
TEST(LayerCosts, OfLayersThatDifferAreTheirMean) {
  const Correction none;
  const auto of = [](std::int64_t window, std::vector<bool> windowed) {
    TextShape shape = model();
    shape.architecture = "mistral";
    shape.window = window;
    shape.windowed = std::move(windowed);
    PlanningTask t = task(4);
    t.model = shape;
    return t;
  };
  const PlanningTask mixed = of(256, {true, true, false});
  const PlanningTask narrow = of(256, {});
  const PlanningTask wide = of(0, {});
  LayerCosts costs(mixed, 4, 4, none);
  LayerCosts of_narrow(narrow, 4, 4, none);
  LayerCosts of_wide(wide, 4, 4, none);
  ASSERT_FALSE(costs.uniform().empty());
  for (const std::int64_t length : {128, 4096}) {  // rungs of the ladder
    for (const LayerChoice& choice : costs.uniform()) {
      const PartCost a = of_narrow.layer(choice, length);
      const PartCost b = of_wide.layer(choice, length);
      const PartCost mean = costs.layer(choice, length);
      EXPECT_NEAR(mean.wall, (2 * a.wall + b.wall) / 3, 1e-12 * b.wall) << name(choice);
      EXPECT_EQ(mean.saved_bytes, std::max(a.saved_bytes, b.saved_bytes)) << name(choice);
      // AllGatherKV gathers less at once: nobody sees what comes behind its queries
      EXPECT_LE(a.wall, b.wall * (length > 256 ? 0.999 : 1 + 1e-12))
          << name(choice) << " " << length;
    }
  }
}

// On a rung of the ladder documents cost what samples of one free dim do: layers whose placements
// are given are priced by the same function.
TEST(LayerCosts, AreThePricesOfPlacedLayers) {
  PlanningTask t = task(4);
  t.attention = "MegatronTS";
  t.mlp = "hold";
  t.offload = true;
  t.try_options = false;
  const Correction none;
  constexpr std::int64_t kRung = 1024;
  const LayerWays read_off = LayerCosts(t, 4, t.ranks, none).ways(kRung);
  const LayerWays placed = ways_of(
      {.task = t,
       .documents = packed({kRung}, t.ranks, t.model.causal),
       .domain = t.ranks,
       .choice = text_layer("MegatronTS", "hold"),
       .savings = saving_choices(t)});
  ASSERT_GT(read_off.layers.size(), 5U);
  for (std::size_t i = 0; i < read_off.layers.size(); ++i) {  // some in tiles lie between them
    SCOPED_TRACE(name(read_off.layers[i]));
    const auto same = std::ranges::find(placed.layers, read_off.layers[i]);
    ASSERT_NE(same, placed.layers.end());
    const LayerCost& cost = placed.costs[idx(same - placed.layers.begin())];
    EXPECT_DOUBLE_EQ(read_off.costs[i].seconds, cost.seconds);
    EXPECT_EQ(read_off.costs[i].saved_bytes, cost.saved_bytes);
    EXPECT_EQ(read_off.costs[i].transient_bytes, cost.transient_bytes);
  }
}

// No way is left out that is not beaten in all three; none that is, stays.
TEST(LayerCosts, KeepWhatNoOtherWayBeats) {
  PlanningTask t = task(4);
  t.offload = true;
  const Correction none;
  LayerCosts costs(t, 4, t.ranks, none);
  const LayerWays ways = costs.ways(700);
  ASSERT_EQ(ways.costs.size(), ways.layers.size());
  for (const LayerChoice& choice : costs.uniform()) {
    const PartCost one = costs.layer(choice, 700);
    const bool beaten = std::any_of(ways.costs.begin(), ways.costs.end(), [&](const LayerCost& c) {
      return c.seconds <= one.wall * (1 + 1e-12) && c.saved_bytes <= one.saved_bytes &&
             c.transient_bytes <= std::max<std::int64_t>(0, one.transient_bytes);
    });
    EXPECT_TRUE(beaten) << name(choice);
  }
}

// a is nowhere worse.
bool beats(const PartCost& a, const PartCost& b) {
  return a.wall <= b.wall && a.saved_bytes <= b.saved_bytes &&
         a.transient_bytes <= b.transient_bytes;
}

bool offers(const LayerWays& ways, const std::string& attention) {
  return std::any_of(ways.layers.begin(), ways.layers.end(), [&](const LayerChoice& layer) {
    return part_of(layer, "attention").strategy == attention;
  });
}

void observe(Correction& correction, const std::string& strategy, std::int64_t length, double by) {
  for (int i = 0; i < 3; ++i) {
    correction.observe(
        {{{{.part = "attention", .strategy = strategy}, 4, log2_bucket(length)}, 1.0, by}});
  }
}

// A strategy that another beats in seconds and bytes is a way again once that one was measured to
// be three times slower than predicted, and gone again once it was itself.
TEST(LayerCosts, GiveBackWhatOnlyAPredictionBeat) {
  constexpr std::int64_t kLength = 700;
  int pairs = 0;
  for (const Strategy& a : strategies("attention")) {
    for (const Strategy& b : strategies("attention")) {
      if (a.one_rank || b.one_rank || a.name == b.name) {
        continue;
      }
      PlanningTask t = task(4);
      t.recompute = "none";
      t.mlp = "gather";
      for (const Strategy& other : strategies("attention")) {
        if (other.name != a.name && other.name != b.name) {
          t.without.push_back(other.name);
        }
      }
      Correction correction;
      LayerCosts costs(t, 4, t.ranks, correction);
      const PartCost of_a = costs.layer(text_layer(a.name, "gather"), kLength);
      const PartCost of_b = costs.layer(text_layer(b.name, "gather"), kLength);
      if (!beats(of_a, of_b) || 3 * of_a.wall <= of_b.wall || offers(costs.ways(kLength), b.name)) {
        continue;
      }
      SCOPED_TRACE(a.name + " beats " + b.name);
      ++pairs;
      observe(correction, a.name, kLength, 8);  // of the attention, which is a part of it
      EXPECT_TRUE(offers(costs.ways(kLength), b.name));
      observe(correction, b.name, kLength, 8);
      EXPECT_FALSE(offers(costs.ways(kLength), b.name));
    }
  }
  EXPECT_GE(pairs, 3);
}

// Whatever was measured, each choice is there or something that is nowhere worse as measured.
TEST(LayerCosts, KeepWhatNoOtherWayBeatsAsMeasured) {
  PlanningTask t = task(4);
  std::mt19937 random(7);
  std::uniform_real_distribution<double> log_factor(-2, 2);
  for (int trial = 0; trial < 20; ++trial) {
    Correction correction;
    LayerCosts costs(t, 4, t.ranks, correction);
    for (const Strategy& s : strategies("attention")) {
      observe(correction, s.name, 700, std::exp(log_factor(random)));
    }
    const LayerWays ways = costs.ways(700);
    for (const LayerChoice& choice : costs.uniform()) {
      const PartCost one = costs.layer(choice, 700);
      const bool there = std::any_of(ways.costs.begin(), ways.costs.end(), [&](const LayerCost& c) {
        return c.seconds <= one.wall * (1 + 1e-12) && c.saved_bytes <= one.saved_bytes &&
               c.transient_bytes <= std::max<std::int64_t>(0, one.transient_bytes);
      });
      EXPECT_TRUE(there) << name(choice) << ", trial " << trial;
    }
  }
}

TEST(LayerCosts, LeaveOutWhatTheTaskLeavesOut) {
  PlanningTask t = task(4);
  t.without = {"METP", "DataZ"};
  t.recompute = "none";
  const Correction none;
  LayerCosts all(t, 4, t.ranks, none);
  for (const LayerChoice& choice : all.ways(100).layers) {
    EXPECT_NE(part_of(choice, "attention").strategy, "METP");
    EXPECT_EQ(part_of(choice, "attention").recompute, Recompute::none);
    EXPECT_FALSE(part_of(choice, "attention").offload);
  }
  EXPECT_THAT(LayerCosts(t, 1, t.ranks, none).uniform(), testing::IsEmpty());
  EXPECT_THROW(all.layer(text_layer("METP", "pass"), 100), std::invalid_argument);
}

}  // namespace
}  // namespace paradyse
