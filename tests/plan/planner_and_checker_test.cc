// What any planner of a described cluster makes passes the checker that is given the same model,
// cluster and memory: over models, clusters read from files, spaces, weight domains, planners.
#include <algorithm>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/flexsp/space_check.h"
#include "lab/grouping/rivals.h"
#include "paradyse/plan/cluster.h"
#include "paradyse/plan/detail/index.h"
#include "src/plan/base/number_text.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/explain.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/search/grouping/batch.h"
#include "src/plan/simulate/choices.h"
#include "src/plan/simulate/cluster_space.h"
#include "tests/support/plans.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

const bool kWithRivals = (add_rivals(), true);  // are rows of the table

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr Precision kHalf{.activation = 2, .statistic = 4};

std::string device(const std::string& name, int count, double memory, double flops = 312e12) {
  return "\n[[device]]\nname = \"" + name + "\"\ncount = " + std::to_string(count) +
         "\nmatmul_flops_per_second = " + std::to_string(flops) +
         "\nfloat32_flops_per_second = 19.5e12\nmatmul_fraction = 0.7\nattention_fraction = 0.5"
         "\nmemory_bytes_per_second = 1555e9\nmemory_bytes = " +
         std::to_string(memory) + "\nlaunch_seconds = 4e-6\nhost_bytes_per_second = 25e9\n";
}

Cluster cluster_of(int ranks_per_node, const std::string& devices) {
  return cluster_from_toml(
      "name = \"c\"\nranks_per_node = " + std::to_string(ranks_per_node) + "\n" + devices +
          "\n[inside_node]\nbytes_per_second = 250e9\nlatency_seconds = 8e-6\n"
          "\n[between_nodes]\nbytes_per_second = 6e9\nlatency_seconds = 15e-6\n",
      "c.toml");
}

TextShape model_of(const std::string& kind) {
  TextShape m;
  m.layers = 3;
  m.hidden = 256;
  m.heads = 8;
  m.kv_heads = 2;
  m.head_dim = 32;
  m.ffn = 704;
  m.vocab = 4001;
  if (kind == "learned positions, dropout") {
    m.learned_positions = true;
    m.max_positions = 3000;
    m.kv_heads = 8;
    m.layer_norm = true;
    m.tied = true;
    m.residual_dropout = m.embedding_dropout = 0.1;
  } else if (kind == "one layer, seven heads") {
    m.layers = 1;
    m.heads = m.kv_heads = 7;
  } else if (kind == "not causal") {
    m.causal = false;
  }
  return m;
}

std::vector<std::int64_t> lengths_of(unsigned seed, int documents) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> draw(5.5, 1.2);
  std::vector<std::int64_t> lengths;
  while (std::ssize(lengths) < documents) {
    lengths.push_back(std::clamp<std::int64_t>(static_cast<std::int64_t>(draw(random)), 1, 2900));
  }
  return lengths;
}

void expect_checked(
    const Plan& plan, const TextShape& model, const Cluster& cluster, const std::string& space) {
  const Plan read = plan_from_json(to_json(plan), "plan.json");  // as a file has it
  const std::vector<std::int64_t> memory = memory_of_ranks(cluster);
  EXPECT_THAT(
      problems(read, {.model = model, .memory_of_ranks = memory, .precision = kHalf}), IsEmpty());
  const std::vector<PredictedBytes> held = bytes_of_ranks(read, text_model(model), kHalf);
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    EXPECT_LE(held[rank].total(), memory[rank]) << rank;
    EXPECT_GT(held[rank].total(), 0) << rank;
  }
  if (space == "full") {
    const int node = std::min(cluster.ranks_per_node, cluster.ranks());
    EXPECT_THAT(flexsp_full_space_problems(read, {.node = node, .light = true}), IsEmpty());
    EXPECT_THAT(flexsp_full_space_problems(read, {.node = 0, .light = true}), IsEmpty());
  } else if (space == "flexsp") {
    EXPECT_THAT(flexsp_space_problems(read), IsEmpty());
  }
}

struct Place {
  const char* name;
  int ranks_per_node;
  std::vector<std::pair<int, double>> devices;  // ranks, times the speed
};
const std::vector<Place> kPlaces = {
    {"a rank", 8, {{1, 1}}},
    {"part of a node", 8, {{6, 1}}},
    {"nodes of four", 4, {{8, 1}}},
    {"nodes of three", 3, {{9, 1}}},
    {"nodes of unlike devices", 4, {{4, 1}, {4, 0.5}}},
    {"unlike devices in a node", 8, {{5, 1}, {3, 0.5}}},
    {"a node and a half, and the rest", 4, {{6, 1}, {2, 0.5}}}};

// Under sanitizers every third, unlike devices among them.
std::vector<Place> places() {
  std::vector<Place> of;
  for (std::size_t i = 0; i < kPlaces.size(); i += test::kSanitized ? 3 : 1) {
    of.push_back(kPlaces[i]);
  }
  return of;
}

TEST(PlannerAndChecker, AgreeOnGroupsOfDescribedClusters) {
  std::set<std::string> levels;
  std::vector<const char*> kinds = {
      "plain", "learned positions, dropout", "one layer, seven heads", "not causal"};
  kinds.resize(test::kSanitized ? 1 : kinds.size());
  for (const char* kind : kinds) {
    const TextShape model = model_of(kind);
    for (const Place& place : places()) {
      std::string files;
      std::string generous;
      for (const auto& [ranks, speed] : place.devices) {
        generous += device("d" + std::to_string(speed), ranks, 8e9, 312e12 * speed);
      }
      const Cluster roomy = cluster_of(place.ranks_per_node, generous);
      const std::vector<std::int64_t> lengths = lengths_of(7, 20);
      const std::int64_t needed = memory_for(without_dropout(model), roomy, {.reserve = 0}, 2900);
      for (const double times : {1.02, 1.6, 6.0}) {  // tight: levels are needed
        Cluster cluster = roomy;
        for (DeviceClass& one : cluster.devices) {
          one.memory_bytes = static_cast<std::int64_t>(times * static_cast<double>(needed));
        }
        for (const bool flexsp : {true, false}) {
          const int node = std::min(cluster.ranks_per_node, cluster.ranks());
          for (const int domain : {0, flexsp ? 0 : node}) {
            SCOPED_TRACE(
                std::string(kind) + ", " + place.name + ", memory " + std::to_string(times) +
                (flexsp ? ", flexsp" : ", full") + ", domain " + std::to_string(domain));
            GroupSpace space;
            try {
              space = cluster_space(
                  without_dropout(model),
                  cluster,
                  {.flexsp = flexsp,
                   .weight_domain = domain,
                   .reserve = 0,
                   .simulation = {.precision = kHalf}},
                  lengths);
            } catch (const std::invalid_argument&) {
              continue;  // states leave no memory
            }
            const PlannedBatch planned = plan_batch({space}, grouping_planner("fast"), {});
            if (!planned.plan) {
              EXPECT_TRUE(flexsp || domain != 0) << planned.why_not;
              continue;
            }
            for (const auto& [name, program] : planned.plan->programs) {
              levels.insert(to_string(part_of(program.front().choice, "attention").recompute));
            }
            expect_checked(*planned.plan, model, cluster, flexsp ? "flexsp" : "full");
          }
        }
      }
    }
  }
  EXPECT_THAT(levels, testing::Contains("light"));  // that the checker once refused
  EXPECT_GE(levels.size(), 3U);
}

TEST(PlannerAndChecker, AgreeWhoeverPlans) {
  const TextShape model = model_of("plain");
  const Cluster cluster = cluster_of(4, device("d", 8, 500e6));
  for (const bool flexsp : {true, false}) {
    const GroupSpace space = cluster_space(
        model, cluster, {.flexsp = flexsp, .simulation = {.precision = kHalf}}, lengths_of(3, 8));
    for (const GroupingPlannerRow& planner : grouping_planners()) {
      SCOPED_TRACE(std::string(planner.name) + (flexsp ? ", flexsp" : ", full"));
      const PlannedBatch planned = plan_batch({space}, planner, {.solver_seconds = 0.2});
      if (planned.plan) {
        expect_checked(*planned.plan, model, cluster, flexsp ? "flexsp" : "full");
      }
    }
  }
}

TEST(PlannerAndChecker, AgreeOnWhatTheSimulatorSaves) {
  std::vector<const char*> kinds = {"not causal", "plain"};
  kinds.resize(test::kSanitized ? 1 : kinds.size());
  for (const char* kind : kinds) {
    const TextShape model = model_of(kind);
    for (const Place& place : places()) {
      std::string devices;
      for (const auto& [ranks, speed] : place.devices) {
        devices += device("d" + std::to_string(speed), ranks, 4e9, 312e12 * speed);
      }
      const Cluster cluster = cluster_of(place.ranks_per_node, devices);
      const Model planned = with_tiles(model, tiles_of(cluster, model, 2));
      for (const SimulatedChoice& choice : simulate_all(
               planned, cluster, {.lengths = {300, 77}, .domain = largest_domain(cluster)})) {
        SCOPED_TRACE(std::string(kind) + ", " + place.name + ", " + choice.name);
        if (choice.simulation.fits()) {
          expect_checked(choice.plan, model, cluster, "");
          EXPECT_EQ(choice.plan.tiles, planned.tiles());
        }
      }
    }
  }
}

// The memory of each device is its own, and what a rank lacks is said.
TEST(PlannerAndChecker, KnowsTheMemoryOfEachDevice) {
  const TextShape model = model_of("plain");
  const Plan plan = test::uniform_plan(model, {512}, 2, text_layer("UlyssesZ", "gather"));
  const std::int64_t most = bytes_of_ranks(plan, text_model(model), kHalf)[1].total();
  const auto found = [&](std::vector<std::int64_t> memory) {
    return problems(plan, {.model = model, .memory_of_ranks = memory, .precision = kHalf});
  };
  EXPECT_THAT(found({most * 2, most}), IsEmpty());
  EXPECT_THAT(
      found({most * 2, most - 1}),
      testing::ElementsAre(HasSubstr("rank 1 needs " + std::to_string(most))));
  EXPECT_THAT(found({most, most, most}), testing::ElementsAre(HasSubstr("the cluster has 3")));
}

// Of GPUs a plan says so; a CPU among them has room for its own tiles alone.
TEST(PlannerAndChecker, PlansForGpusHaveTheirTiles) {
  const TextShape model = model_of("plain");
  const auto tiles = [&](const std::string& devices) {
    const Cluster cluster = cluster_of(8, devices);
    const GroupSpace space =
        cluster_space(model, cluster, {.simulation = {.precision = kHalf}}, {100, 50});
    return plan_batch({space}, grouping_planner("fast"), {}).plan->tiles;
  };
  const auto kind = [](std::string text, const char* said) {
    return text + "kind = \"" + said + "\"\n";
  };
  const std::string gpus = device("g", 4, 8e9);
  EXPECT_EQ(tiles(gpus), gpu_tiles(model, 2));
  EXPECT_EQ(tiles(kind(gpus, "gpu")), gpu_tiles(model, 2));
  EXPECT_EQ(tiles(kind(gpus, "cpu")), Tiles{});
  EXPECT_EQ(tiles(gpus + kind(device("c", 4, 8e9), "cpu")), Tiles{});
  EXPECT_EQ(tiles(device("as fast in four bytes", 4, 8e9, 19.5e12)), Tiles{});
  EXPECT_EQ(
      tiles(kind(device("as fast in four bytes", 4, 8e9, 19.5e12), "gpu")), gpu_tiles(model, 2));
  EXPECT_THROW(cluster_of(8, kind(gpus, "tpu")), std::invalid_argument);
}

// Full rows of scores, written and read, never take less than scores that stay in tiles: in
// training on a machine whose products are as slow as a CPU's, or as fast as a GPU's.
TEST(PlannerAndChecker, ScoresInMemoryAreNoBargain) {
  TextShape model = model_of("plain");
  model.kv_heads = 8;
  for (const double flops : {5e10, 312e12}) {
    for (const double memory : {2e10, 1.5e12}) {
      for (const std::int64_t length : {1024, 4096, 16384}) {
        Cluster cluster = cluster_of(4, device("d", 4, 1e12, flops));
        cluster.devices[0].float32_flops_per_second = flops;
        cluster.devices[0].memory_bytes_per_second = std::min(memory, flops / 4);
        const auto seconds = [&](const char* name) {
          return simulate(
                     test::uniform_plan(model, {length}, 4, text_layer(name, "gather")),
                     model,
                     cluster,
                     {.precision = {}})
              .seconds;
        };
        EXPECT_GT(seconds("ColossalZ"), seconds("MegatronCZ"))
            << flops << " " << memory << " " << length;
      }
    }
  }
}

TEST(PlannerAndChecker, NamesSayAnOptionOnce) {
  LayerChoice layer = text_layer("MegatronTS", "hold");
  set_options(layer, {{"keep_gathered", 1}});
  EXPECT_EQ(name(layer), "MegatronTS+hold, keep_gathered 1");
  LayerChoice of_mlp = layer;
  part_of(of_mlp, "attention").options.clear();
  EXPECT_EQ(name(of_mlp), "MegatronTS+hold, mlp keep_gathered 1");
  LayerChoice of_attention = layer;
  part_of(of_attention, "mlp").options.clear();
  EXPECT_EQ(name(of_attention), "MegatronTS+hold, attention keep_gathered 1");
  LayerChoice alone = text_layer("METP", "pass");
  set_options(alone, {{"head_groups", 2}});
  EXPECT_EQ(name(alone), "METP+pass, head_groups 2");
}

TEST(NoteOfTiles, SaysWhenAPlanHasNone) {
  const Tiles of_gpu = gpu_tiles(model_of("plain"), 2);
  Plan plan;
  EXPECT_THAT(note_of_tiles(plan, of_gpu), HasSubstr("\"products\": 0}"));
  EXPECT_EQ(note_of_tiles(plan, Tiles{}), "");
  plan.tiles = of_gpu;
  EXPECT_EQ(note_of_tiles(plan, of_gpu), "");
}

TEST(NumberText, ReadsThousands) {
  EXPECT_EQ(whole_number("32K"), 32768);
  EXPECT_EQ(whole_number("1M"), 1 << 20);
  EXPECT_EQ(whole_number("7"), 7);
  EXPECT_EQ(whole_number("-2k"), -2048);
  for (const char* none : {"", "K", "1.5K", "32KB", "32 K", "9223372036854775807K", "1e3"}) {
    EXPECT_EQ(whole_number(none), std::nullopt) << none;
  }
}

TEST(NumberText, HasNoNegativeNothing) {
  EXPECT_EQ(percent_text(-1e-17), "0.0 %");
  EXPECT_EQ(percent_text(-0.0004), "0.0 %");
  EXPECT_EQ(percent_text(-0.0006), "-0.1 %");
  EXPECT_EQ(percent_text(0.1234), "12.3 %");
  EXPECT_EQ(percent_text(1 / 0.0), "-");
  EXPECT_EQ(signed_percent_text(-0.0001), "0.0 %");
  EXPECT_EQ(signed_percent_text(0.05), "+5.0 %");
  EXPECT_EQ(signed_percent_text(-0.05), "-5.0 %");
  EXPECT_EQ(counted(1, "document"), "1 document");
  EXPECT_EQ(counted(0, "micro-batch"), "0 micro-batches");
}

}  // namespace
}  // namespace paradyse
