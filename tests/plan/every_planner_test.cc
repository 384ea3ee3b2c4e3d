// Every plan that any planner makes passes the checker that is given the same model, cluster and
// memory: random models of each family, as their files say them, random clusters and batches.
// With --gtest_random_seed=N it draws others.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lab/flexsp/space_check.h"
#include "lab/grouping/rivals.h"
#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/cluster.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/static_strategy.h"
#include "paradyse/plan/layout_planner.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/plan/search/batch/document_plans.h"
#include "src/plan/search/grouping/batch.h"
#include "src/plan/search/grouping/table.h"
#include "src/plan/search/layers/layer_planner.h"
#include "src/plan/simulate/additive.h"
#include "src/plan/simulate/choices.h"
#include "src/plan/simulate/cluster_space.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

const bool kWithRivals = (add_rivals(), true);  // are rows of the table

using testing::IsEmpty;

constexpr int kSeeds = test::kSanitized ? 1 : 2;
// Of the memory that a plan without a limit takes.
const std::vector<double> kTimes =
    test::kSanitized ? std::vector{1.0, 0.7} : std::vector{1.5, 1.0, 0.9, 0.7};

class Drawn {
 public:
  explicit Drawn(int seed)
      : random_(static_cast<unsigned>(seed + 1000 * GTEST_FLAG_GET(random_seed))) {}

  std::int64_t number(std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(random_);
  }
  int small(int least, int most) { return static_cast<int>(number(least, most)); }
  double times(double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random_);
  }
  bool coin() { return small(0, 1) == 1; }
  template <typename List>
  auto one_of(const List& list) {
    return *std::next(std::begin(list), small(0, static_cast<int>(std::size(list)) - 1));
  }

  // As its config.json says it.
  TextShape model() {
    const std::int64_t kv = number(1, 3);
    const std::int64_t heads = kv * number(1, 3);
    const std::int64_t dim = 2 * number(2, 9);
    const std::int64_t hidden = heads * dim;
    const std::int64_t layers = number(1, 4);
    const std::int64_t ffn = number(5, 99);
    const std::int64_t vocab = number(11, 300);
    const auto family = one_of(std::vector<std::string>{"llama", "qwen2", "qwen3", "gpt2", "bert"});
    nlohmann::json config = {{"model_type", family}, {"vocab_size", vocab}};
    if (family == "gpt2") {
      config.update(
          {{"n_layer", layers},
           {"n_embd", hidden},
           {"n_head", heads},
           {"n_inner", ffn},
           {"n_positions", kLongest},
           {"resid_pdrop", coin() ? 0.1 : 0.0},
           {"embd_pdrop", 0.0},
           {"attn_pdrop", 0.0}});
    } else {
      config.update(
          {{"num_hidden_layers", layers},
           {"hidden_size", hidden},
           {"num_attention_heads", heads},
           {"intermediate_size", ffn},
           {"max_position_embeddings", kLongest}});
      if (family == "bert") {
        config.update(
            {{"architectures", {"BertForMaskedLM"}},
             {"hidden_dropout_prob", 0.0},
             {"attention_probs_dropout_prob", 0.0}});
      } else {
        config.update({{"num_key_value_heads", kv}, {"tie_word_embeddings", coin()}});
      }
    }
    return text_shape_from_config(config, "config.json");
  }

  // As its config.json says it.
  Model grid(DimSizes& dims) {
    nlohmann::json config;
    if (coin()) {
      const std::int64_t kv = number(1, 3);
      const std::int64_t heads = kv * number(1, 2);
      const bool captions = coin();
      config = {
          {"model_type", "stdit"},
          {"depth", number(1, 3)},
          {"hidden_size", heads * 2 * number(1, 3)},
          {"num_heads", heads},
          {"num_key_value_heads", kv},
          {"mlp_hidden_size", number(3, 25)},
          {"caption_channels", captions ? number(1, 5) : 0}};
      dims = {{"frames", number(1, 7)}, {"patches", number(1, 11)}};
      if (captions) {
        dims["text"] = number(1, 5);
      }
    } else {
      config = {
          {"model_type", "evoformer"},
          {"no_blocks", number(1, 3)},
          {"c_m", number(2, 9)},
          {"c_z", number(2, 9)},
          {"no_heads_msa", number(1, 4)},
          {"no_heads_pair", number(1, 3)},
          {"c_hidden", number(1, 4)},
          {"c_hidden_opm", number(1, 3)},
          {"c_hidden_mul", number(1, 4)},
          {"transition_n", number(1, 3)},
          {"is_multimer", coin()},
          {"global_column_attention", coin()}};
      const std::int64_t residues = number(2, 11);
      dims = {
          {"sequences", number(1, 9)}, {"residues", residues}, {"i", residues}, {"j", residues}};
    }
    return model_from_config(config.dump(), "a test");
  }

  Cluster cluster(std::int64_t memory) {
    std::string text = "name = \"c\"\n";
    const int kinds = small(1, 2);
    std::vector<int> counts;
    for (int d = 0; d < kinds; ++d) {
      counts.push_back(small(1, 6));
    }
    int node = small(1, 5);
    const int ranks = std::accumulate(counts.begin(), counts.end(), 0);
    while (ranks % node != 0 && node < ranks) {
      --node;  // nodes are equal
    }
    text += "ranks_per_node = " + std::to_string(node) + "\n";
    for (int d = 0; d < kinds; ++d) {
      text +=
          "[[device]]\nname = \"d" + std::to_string(d) +
          "\"\ncount = " + std::to_string(counts[idx(d)]) +
          "\nmatmul_flops_per_second = " + std::to_string(times(1e11, 300e12)) +
          "\nfloat32_flops_per_second = " + std::to_string(times(1e10, 20e12)) +
          "\nmatmul_fraction = 0.7\nattention_fraction = 0.5\nmemory_bytes_per_second = " +
          std::to_string(times(1e10, 2e12)) + "\nmemory_bytes = " +
          std::to_string(static_cast<std::int64_t>(static_cast<double>(memory) * times(1, 1.5))) +
          "\nlaunch_seconds = 4e-6\nhost_bytes_per_second = 25e9\n";
    }
    text += "[inside_node]\nbytes_per_second = " + std::to_string(times(1e9, 300e9)) +
            "\nlatency_seconds = 8e-6\n[between_nodes]\nbytes_per_second = " +
            std::to_string(times(1e8, 30e9)) + "\nlatency_seconds = 15e-6\n";
    return cluster_from_toml(text, "c.toml");
  }

  std::vector<std::int64_t> lengths(int most) {
    std::vector<std::int64_t> all(idx(small(1, most)));
    for (std::int64_t& one : all) {
      one = std::clamp<std::int64_t>(
          static_cast<std::int64_t>(std::lognormal_distribution<double>(4, 1.5)(random_)),
          1,
          kLongest);
    }
    return all;
  }

  Precision precision() {
    return coin() ? Precision{.activation = 2, .statistic = 4} : Precision{};
  }

 private:
  static constexpr std::int64_t kLongest = 1500;
  std::mt19937 random_;
};

std::int64_t most_of(const Plan& plan, const Model& model, Precision precision, bool training) {
  std::int64_t most = 0;
  for (const PredictedBytes& one : bytes_of_ranks(plan, model, precision, training)) {
    most = std::max(most, one.total());
  }
  return most;
}

// As a file has it.
Plan from_file(const Plan& plan) { return plan_from_json(to_json(plan), "plan.json"); }

void expect_on(const Plan& plan, const Model& model, const Cluster& cluster, Precision precision) {
  EXPECT_THAT(
      problems(
          from_file(plan),
          {.model = model, .memory_of_ranks = memory_of_ranks(cluster), .precision = precision}),
      IsEmpty())
      << to_json(plan);
}

// A cluster whose devices hardly hold the model for the longest document.
Cluster tight(Drawn& drawn, const TextShape& model, std::int64_t longest) {
  Cluster cluster = drawn.cluster(std::int64_t{1} << 40);
  const std::int64_t needed = memory_for(model, cluster, {.reserve = 0}, longest);
  for (DeviceClass& device : cluster.devices) {
    device.memory_bytes =
        static_cast<std::int64_t>(static_cast<double>(needed) * drawn.times(1, 2.5));
  }
  return cluster;
}

TEST(EveryPlanner, OfDescribedClustersIsChecked) {
  int made = 0;
  std::set<std::string> levels;
  for (int seed = 0; seed < kSeeds; ++seed) {
    Drawn drawn(seed);
    const TextShape model = without_dropout(drawn.model());
    const std::vector<std::int64_t> lengths = drawn.lengths(12);
    const Cluster cluster = tight(drawn, model, std::ranges::max(lengths));
    const Precision precision{.activation = 2, .statistic = 4};
    const int node = std::min(cluster.ranks_per_node, cluster.ranks());
    for (const bool flexsp : {true, false}) {
      for (const bool overlapped : {false, true}) {
        for (const int domain : {0, node}) {
          if ((flexsp && (overlapped || domain != 0)) ||
              (domain != 0 && cluster.ranks() % domain != 0)) {
            continue;  // plan batch refuses these
          }
          SCOPED_TRACE(
              "seed " + std::to_string(seed) + (flexsp ? ", flexsp" : ", full") +
              (overlapped ? ", overlap" : "") + ", domain " + std::to_string(domain));
          std::optional<GroupSpace> space;
          try {
            space = cluster_space(
                model,
                cluster,
                {.flexsp = flexsp,
                 .overlapped = overlapped,
                 .weight_domain = domain,
                 .reserve = 0,
                 .simulation = {.precision = precision}},
                lengths);
          } catch (const std::invalid_argument&) {
            continue;  // states leave no memory
          }
          for (const GroupingPlannerRow& planner : grouping_planners()) {
            const PlannedBatch planned = plan_batch({*space}, planner, {.solver_seconds = 0.05});
            if (!planned.plan) {
              continue;
            }
            SCOPED_TRACE(planner.name);
            ++made;
            const Plan& plan = *planned.plan;
            for (const auto& [name, program] : plan.programs) {
              levels.insert(to_string(part_of(program.front().choice, "attention").recompute));
            }
            EXPECT_EQ(plan.messages.overlap, overlapped);
            expect_on(plan, model, cluster, precision);
            EXPECT_THAT(
                flexsp ? flexsp_space_problems(from_file(plan))
                       : flexsp_full_space_problems(from_file(plan), {.node = node, .light = true}),
                IsEmpty());
          }
        }
      }
    }
  }
  EXPECT_GT(made, 3 * kSeeds);
  EXPECT_GE(levels.size(), 2U);
}

TEST(EveryPlanner, OfTheSimulatorIsChecked) {
  int made = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Drawn drawn(seed);
    const Precision precision = drawn.precision();
    const TextShape shape = without_dropout(drawn.model());
    const std::vector<std::int64_t> lengths = drawn.lengths(3);
    const Cluster cluster = tight(drawn, shape, std::ranges::max(lengths));
    const Model model = with_tiles(shape, tiles_of(cluster, shape, precision.activation));
    for (const SimulatedChoice& choice : simulate_all(
             model,
             cluster,
             {.lengths = lengths, .domain = largest_domain(cluster)},
             {.precision = precision})) {
      if (choice.simulation.fits()) {
        SCOPED_TRACE(choice.name);
        ++made;
        expect_on(choice.plan, model, cluster, precision);
      }
    }
  }
  EXPECT_GT(made, kSeeds);
}

// `train` and `bench step`: each planner of batches, with each of layers, level by level.
TEST(EveryPlanner, OfARunIsChecked) {
  int made = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    for (const BatchPlannerRow& row : batch_planners()) {
      Drawn drawn(seed);
      PlanningTask task;
      task.model = drawn.model();
      task.ranks = drawn.one_of(std::vector<int>{1, 2, 3, 4, 8});
      task.machine.cores = drawn.small(1, 4);
      task.precision = drawn.precision();
      task.offload = drawn.coin();
      task.planner = drawn.one_of(layer_planners()).name;
      task.batch_planner = row.name;
      task.mix = drawn.coin();
      if (drawn.coin()) {
        task.recompute = drawn.one_of(recompute_names());
      }
      const std::vector<std::int64_t> lengths = drawn.lengths(8);
      task.gather_weights = drawn.one_of(std::vector<std::string>{"", "micro-batch", "step"});
      SCOPED_TRACE(
          "seed " + std::to_string(seed) + ", " + row.name + " of layers by " + task.planner +
          " on " + std::to_string(task.ranks) + ", level " + task.recompute + ", weights by " +
          task.gather_weights + (task.offload ? ", offload" : ""));
      std::optional<Plan> plan;
      try {
        plan = batch_planner(task)->plan(lengths).plan;
      } catch (const std::invalid_argument&) {
        continue;  // groups of more ranks than there are
      }
      if (!plan) {
        continue;  // groups of a size that no strategy of the level runs on
      }
      const Model model = task.model;
      const auto most = static_cast<double>(most_of(*plan, model, task.precision, true));
      for (const double times : kTimes) {
        task.memory_per_rank = static_cast<std::int64_t>(most * times);
        SCOPED_TRACE(times);
        const std::unique_ptr<DocumentPlanner> planner = document_planner(task);
        for (plan = planner->plan(lengths).plan; plan; plan = planner->leaner(*plan)) {
          ++made;
          EXPECT_THAT(
              problems(
                  from_file(*plan),
                  {.model = task.model,
                   .memory_per_rank = task.memory_per_rank,
                   .precision = task.precision}),
              IsEmpty())
              << to_json(*plan);
          if (made % 3 != 0) {
            break;  // now and then what comes after a lack of memory
          }
        }
        // plan layers: the longest alone
        const std::int64_t longest = std::ranges::max(lengths);
        if (const std::optional<DocumentPlan> alone =
                planner->documents().best(longest, task.ranks)) {
          Plan one = uniform_plan(task.model, {longest}, task.ranks, choices(alone->program));
          one.messages = planner->documents().messages();
          EXPECT_THAT(
              problems(
                  from_file(one),
                  {.model = task.model,
                   .memory_per_rank = task.memory_per_rank,
                   .precision = task.precision}),
              IsEmpty());
          EXPECT_EQ(most_of(one, model, task.precision, true), alone->bytes.total());
        }
      }
      task.memory_per_rank = static_cast<std::int64_t>(most);
      for (const Strategy& strategy : strategies("attention")) {
        if (strategy.one_rank != (task.ranks == 1) || (test::kSanitized && drawn.coin())) {
          continue;
        }
        StaticStrategy one(
            task, strategy.name, {.recomputes = drawn.coin(), .packs = drawn.coin()});
        if (const std::optional<Plan> fixed = one.plan(lengths)) {
          SCOPED_TRACE(strategy.name);
          EXPECT_THAT(
              problems(
                  from_file(*fixed),
                  {.model = task.model,
                   .memory_per_rank = task.memory_per_rank,
                   .precision = task.precision}),
              IsEmpty());
        }
      }
    }
  }
  EXPECT_GT(made, 5 * kSeeds);
}

LayerRecompute drawn_level(Drawn& drawn) {
  return drawn.coin() ? LayerRecompute{} : layer_recompute(drawn.one_of(recompute_names()));
}

TEST(EveryPlanner, OfLayoutsIsChecked) {
  for (int seed = 0; seed < 3 * kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Drawn drawn(seed);
    const bool text = drawn.coin();
    const Cluster cluster = drawn.cluster(std::int64_t{1} << 40);
    const int ranks = cluster.ranks();
    const TextShape shape = without_dropout(drawn.model());
    DimSizes dims;
    const Model grid = drawn.grid(dims);
    Model model = text ? text_model(shape) : Model(grid);
    if (drawn.coin()) {
      model = with_tiles(model, tiles_of(cluster, shape, 2));
    }
    const std::vector<std::int64_t> lengths =
        text ? drawn.lengths(4)
             : std::vector<std::int64_t>(
                   idx(model.has_dim("batch") ? drawn.small(1, 3) : 1), grid.rows(dims));
    LayoutTask task{
        .model = &model,
        .documents = packed(lengths, ranks, model.causal),
        .recompute = drawn_level(drawn),
        .tiles = drawn.number(1, 4),
        .seconds = {}};
    if (!text) {
      task.documents.dims = dims;
    }
    if (drawn.coin() && cluster.uniform()) {
      task.objective = LayoutTask::Objective::seconds;
      task.seconds = part_seconds(cluster, ranks, {});
    }
    const Plan plan = text ? checked_plan(task, plan_layouts(task, model.layers), 0)
                           : checked_plan(task, plan_layouts(task, model.layers), 0);
    const Precision precision = drawn.precision();
    const std::int64_t most = most_of(plan, model, precision, true);
    CheckContext context{.memory_per_rank = most, .precision = precision};
    context.model = model;
    EXPECT_THAT(problems(from_file(plan), context), IsEmpty()) << to_json(plan);
    EXPECT_EQ(plan.tiles, model.tiles());
  }
}

TEST(EveryPlanner, OfSamplesIsChecked) {
  int made = 0;
  for (int seed = 0; seed < 2 * kSeeds; ++seed) {
    Drawn drawn(seed);
    PlanningTask task;
    task.model = drawn.grid(task.dims);
    task.ranks = drawn.small(1, 6);
    task.precision = drawn.precision();
    task.offload = drawn.coin();
    if (drawn.coin()) {
      task.recompute = to_string(drawn_level(drawn));
    }
    const std::vector<std::int64_t> lengths(idx(drawn.small(1, 4)), task.model.rows(task.dims));
    const Model model = Model(task.model);
    const auto most = static_cast<double>(
        most_of(*batch_planner(task)->plan(lengths).plan, model, task.precision, true));
    for (const double times : {1.5, 1.0, 0.9, 0.7, 0.5}) {
      if (test::kSanitized && times != 1.0 && times != 0.7) {
        continue;
      }
      SCOPED_TRACE("seed " + std::to_string(seed) + " times " + std::to_string(times));
      task.memory_per_rank = static_cast<std::int64_t>(most * times);
      if (const std::optional<Plan> plan = batch_planner(task)->plan(lengths).plan) {
        ++made;
        EXPECT_THAT(
            problems(
                from_file(*plan),
                {.model = task.model,
                 .memory_per_rank = task.memory_per_rank,
                 .precision = task.precision}),
            IsEmpty())
            << to_json(*plan);
      }
    }
  }
  EXPECT_GE(made, (test::kSanitized ? 2 : 4) * kSeeds);  // what takes all memory, at least
}

// Each strategy by name, weights gathered in each micro-batch or once a step: a plan, or a message
// that says why there can be none.
TEST(EveryPlanner, OfAStrategyByNameHasAPlanOrSaysWhy) {
  for (const Strategy& strategy : strategies("attention")) {
    for (const char* mlp :
         test::kSanitized ? std::vector{"", "pass"} : std::vector{"", "gather", "pass", "hold"}) {
      for (const std::string often : {"micro-batch", "step"}) {
        SCOPED_TRACE(strategy.name + (", MLP " + std::string(mlp)) + ", weights by " + often);
        PlanningTask task;
        task.model = Drawn(3).model();
        task.ranks = 2;
        task.attention = strategy.name;
        task.mlp = mlp;
        task.gather_weights = often;
        task.memory_per_rank = std::int64_t{1} << 30;
        const std::string verb = mlp;
        const bool streamed = strategy.verb == Verb::pass || verb == "pass";
        const bool alone = strategy.one_rank && (verb == "pass" || verb == "hold");
        const bool none = alone || (streamed && often == "step");
        try {
          const BatchPlanner::Answer answer = batch_planner(task)->plan({40, 30, 7});
          ASSERT_TRUE(answer.plan) << answer.why_not;
          EXPECT_FALSE(none);
          EXPECT_EQ(whole_weights(*answer.plan), often == "step");
        } catch (const std::invalid_argument& error) {
          EXPECT_TRUE(none) << error.what();
          EXPECT_THAT(error.what(), testing::HasSubstr("no strategy is left"));
        }
      }
    }
  }
}

// A rival that groups documents is not what would plan samples under its name.
TEST(EveryPlanner, OfDocumentsAloneRefusesSamples) {
  Drawn drawn(0);
  PlanningTask task{.model = {}, .machine = {}, .batch_planner = "groups-by-megatron"};
  task.model = drawn.grid(task.dims);
  EXPECT_THROW(batch_planner(task), std::invalid_argument);
  task.batch_planner = "groups";
  EXPECT_NE(batch_planner(task), nullptr);
}

}  // namespace
}  // namespace paradyse
