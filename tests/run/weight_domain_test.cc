// Training whose weights are sharded over nodes: the same numbers as on one rank.
#include <atomic>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/train.h"
#include "src/run/measure/links.h"
#include "src/run/train/files.h"
#include "tests/support/backend_over.h"
#include "tests/support/folder.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;

// Threads that say they were on nodes.
class OnNodes final : public test::BackendOver {
 public:
  explicit OnNodes(int ranks_per_node) : ranks_per_node_(ranks_per_node) {}
  [[nodiscard]] int ranks_per_node(int ranks) const override {
    return ranks % ranks_per_node_ == 0 ? ranks_per_node_ : ranks;
  }

 private:
  int ranks_per_node_;
};

struct Ran {
  std::vector<StepReport> steps;
  TrainSummary summary;
  std::vector<std::string> notes;
};

class WeightDomain : public testing::Test {
 protected:
  WeightDomain() {
    std::ofstream(folder_ / "model.toml") << R"(
model_type = "llama"
hidden_size = 24
num_hidden_layers = 3
num_attention_heads = 6
num_key_value_heads = 2
intermediate_size = 42
vocab_size = 64
tie_word_embeddings = true
rms_norm_eps = 1e-5
)";
    std::ofstream(folder_ / "evoformer.toml")
        << "model_type = \"evoformer\"\nno_blocks = 2\nc_m = 12\nc_z = 8\nno_heads_msa = 2\n"
           "no_heads_pair = 2\nc_hidden = 4\nc_hidden_opm = 4\nc_hidden_mul = 8\n"
           "transition_n = 2\n";
    std::ofstream(folder_ / "alignments.sto")
        << "# STOCKHOLM 1.0\na ACDEFGH\nb GHIKLAC\n//\n# STOCKHOLM 1.0\na MNPQR\nb MN.QR\n"
           "c STVWY\n//\n# STOCKHOLM 1.0\na AAA\nb CDC\nc DDX\nd -WW\n//\n";
    std::ofstream data(folder_ / "data.jsonl");
    std::mt19937 random(7);
    for (int length = 9; length < 200; length += 7) {
      std::vector<int> tokens(idx(length));
      for (int& token : tokens) {
        token = static_cast<int>(random() % 64);
      }
      data << nlohmann::json{{"tokens", tokens}}.dump() << "\n";
    }
  }

  [[nodiscard]] LoadedConfig config(
      const std::string& name, std::vector<std::string> settings, bool text = true) const {
    std::vector<std::string> all = {
        "model.path=" + (folder_ / (text ? "model.toml" : "evoformer.toml")).string(),
        "data.path=" + (folder_ / (text ? "data.jsonl" : "alignments.sto")).string(),
        "output.folder=" + folder_.string(),
        "output.name=" + name,
        "parallel.memory_per_rank=64MiB",
        "train.steps=4",
        "train.tokens_per_step=" + std::string(text ? "700" : "25"),
        "train.dtype=float64",
        "costs.correct=false",
        "checkpoint.minutes=0"};
    all.insert(all.end(), settings.begin(), settings.end());
    return load_config("", all);
  }

  static Ran run(
      const LoadedConfig& config,
      int ranks_per_node,
      const TrainFrom& from = {},
      std::int64_t stop_after = 0) {
    Ran run;
    std::atomic<bool> stop = false;
    TrainHooks hooks;
    hooks.stop = &stop;
    hooks.note = [&](const std::string& line) { run.notes.push_back(line); };
    hooks.step = [&](const StepReport& report) {
      run.steps.push_back(report);
      stop = report.step == stop_after;
    };
    OnNodes backend(ranks_per_node);
    run.summary = train(config, hooks, backend, from);
    return run;
  }

  [[nodiscard]] std::vector<Plan> plans_of(const std::string& run) const {
    std::vector<Plan> plans;
    for (const fs::directory_entry& file : fs::directory_iterator(folder_ / run / "plans")) {
      plans.push_back(read_plan(file.path()));
    }
    return plans;
  }
  [[nodiscard]] std::string model_of(const std::string& run) const {
    return file_text(folder_ / run / "model" / "model.safetensors");
  }

  static void expect_same(const Ran& run, const Ran& other, double tolerance) {
    ASSERT_EQ(run.steps.size(), other.steps.size());
    for (std::size_t step = 0; step < run.steps.size(); ++step) {
      EXPECT_NEAR(run.steps[step].loss, other.steps[step].loss, tolerance);
      EXPECT_NEAR(run.steps[step].gradient_norm, other.steps[step].gradient_norm, tolerance);
    }
  }

  test::Folder folder_;
};

TEST_F(WeightDomain, OfANodeTrainsAsOneRank) {
  for (const bool text : {true, false}) {
    const std::string family = text ? "text" : "protein";
    const Ran alone = run(config(family + "-1", {"parallel.ranks=1"}, text), 1);
    for (const auto& [ranks, node] : {std::pair(4, 2), std::pair(6, 3), std::pair(6, 2)}) {
      for (const char* planner : {"borders", "groups"}) {
        const std::string name = family + planner + std::to_string(ranks) + std::to_string(node);
        SCOPED_TRACE(name);
        const Ran nodes =
            run(config(
                    name,
                    {"parallel.ranks=" + std::to_string(ranks),
                     "parallel.batch_planner=" + std::string(planner),
                     "parallel.weight_domain=node"},
                    text),
                node);
        expect_same(alone, nodes, 1e-9);
        for (const Plan& plan : plans_of(name)) {
          EXPECT_EQ(plan.weight_domain, node);
          EXPECT_TRUE(whole_weights(plan));
        }
        for (const StepReport& step : nodes.steps) {
          EXPECT_LE(step.peak_bytes, std::int64_t{64} << 20);
        }
      }
    }
  }
}

// Also where nothing is known of memory, and to the same bits after a checkpoint.
TEST_F(WeightDomain, OfANodeResumes) {
  const std::vector<std::string> settings = {
      "parallel.ranks=4", "parallel.weight_domain=node", "parallel.memory_per_rank=0"};
  const Ran straight = run(config("straight", settings), 2);
  const LoadedConfig asked = config("parts", settings);
  run(asked, 2, {}, 2);
  const Ran rest = run(asked, 2, {.resume = folder_ / "parts"});
  ASSERT_EQ(rest.steps.size(), 2U);
  EXPECT_EQ(rest.steps.back().loss, straight.steps.back().loss);
  EXPECT_EQ(model_of("parts"), model_of("straight"));
  // One copy is saved, not two.
  int files = 0;
  for (const fs::directory_entry& file :
       fs::recursive_directory_iterator(folder_ / "parts" / "checkpoints" / "000002")) {
    files += file.path().extension() == ".safetensors" ? 1 : 0;
  }
  EXPECT_EQ(files, 2);
}

// Plans of another run say how its weights were sharded.
TEST_F(WeightDomain, IsThatOfGivenPlans) {
  const std::vector<std::string> settings = {"parallel.ranks=4"};
  run(config("first", {"parallel.ranks=4", "parallel.weight_domain=node"}), 2);
  run(config("again", settings), 4, {.replay = folder_ / "first"});
  EXPECT_EQ(model_of("again"), model_of("first"));
  EXPECT_THAT(
      test::refusal([&] {
        run(config("world", {"parallel.ranks=4", "parallel.weight_domain=world"}),
            2,
            {.replay = folder_ / "first"});
      }),
      testing::AllOf(
          testing::HasSubstr("parallel.weight_domain is world"),
          testing::HasSubstr("set parallel.weight_domain = auto")));
}

TEST_F(WeightDomain, NeedsSeveralRanksOnANode) {
  EXPECT_THAT(
      test::refusal(
          [&] { run(config("one", {"parallel.ranks=4", "parallel.weight_domain=node"}), 1); }),
      testing::HasSubstr("each node has one rank"));
  EXPECT_FALSE(fs::exists(folder_ / "one"));
}

TEST_F(WeightDomain, IsChosenByPredictedTime) {
  const Ran chosen = run(config("auto", {"parallel.ranks=4", "costs.correct=true"}), 2);
  EXPECT_THAT(
      chosen.notes,
      testing::Contains(testing::HasSubstr("parallel.weight_domain = auto): the first steps")));
  for (const Plan& plan : plans_of("auto")) {
    EXPECT_TRUE(plan.weight_domain == 2 || plan.weight_domain == 4);
  }
  run(config("one node", {"parallel.ranks=4"}), 4);
  for (const Plan& plan : plans_of("one node")) {
    EXPECT_EQ(plan.weight_domain, 4);
  }
}

// Tensor-parallel and streamed weights are those of all ranks: auto finds that out by itself.
TEST_F(WeightDomain, IsTheWorldWhereAStrategyNeedsIt) {
  const Ran alone = run(config("alone", {"parallel.ranks=1"}), 1);
  for (const auto& [attention, mlp] :
       {std::pair("METP", "pass"), std::pair("MegatronTS", "hold")}) {
    SCOPED_TRACE(attention);
    const Ran nodes =
        run(config(
                attention,
                {"parallel.ranks=4",
                 "parallel.batch_planner=groups-of-all",
                 "parallel.attention=" + std::string(attention),
                 "parallel.mlp=" + std::string(mlp)}),
            2);
    expect_same(alone, nodes, 1e-9);
    for (const Plan& plan : plans_of(attention)) {
      EXPECT_EQ(plan.weight_domain, 4);
    }
  }
}

TEST_F(WeightDomain, GathersAsOftenAsAskedFor) {
  for (const bool text : {true, false}) {
    const std::string family = text ? "text" : "protein";
    const Ran alone = run(config(family + "-1", {"parallel.ranks=1"}, text), 1);
    for (const std::string often : {"micro-batch", "step"}) {
      for (const std::string planner : {"groups", "borders", "groups-of-1"}) {
        for (const std::string memory : {"0", "64MiB"}) {
          const std::string name = family + often + planner + memory;
          SCOPED_TRACE(name);
          const Ran ran =
              run(config(
                      name,
                      {"parallel.ranks=3",
                       "parallel.batch_planner=" + planner,
                       "parallel.gather_weights=" + often,
                       "parallel.memory_per_rank=" + memory},
                      text),
                  3);
          expect_same(alone, ran, 1e-9);
          for (const Plan& plan : plans_of(name)) {
            EXPECT_EQ(whole_weights(plan), often == "step");
          }
        }
      }
    }
  }
}

TEST_F(WeightDomain, IsNotGatheredInEachMicroBatchOverNodes) {
  const std::vector<std::string> each = {"parallel.ranks=4", "parallel.gather_weights=micro-batch"};
  run(config("auto", each), 2);
  for (const Plan& plan : plans_of("auto")) {
    EXPECT_EQ(plan.weight_domain, 4);
    EXPECT_FALSE(whole_weights(plan));
  }
  std::vector<std::string> node = each;
  node.emplace_back("parallel.weight_domain=node");
  EXPECT_THAT(
      test::refusal([&] { run(config("node", node), 2); }),
      testing::HasSubstr("parallel.gather_weights is micro-batch"));
  EXPECT_FALSE(fs::exists(folder_ / "node"));
  EXPECT_THAT(
      test::refusal([&] {
        run(config(
                "published",
                {"parallel.layer_planner=paradyse-heuristic", "parallel.gather_weights=step"}),
            4);
      }),
      testing::HasSubstr("take the layer planner 'exact'"));
}

// Of one machine all weights are a node's, however often they are gathered; and a run whose nodes
// held copies resumes as it is asked to.
TEST_F(WeightDomain, GathersInEachMicroBatchFromHereOn) {
  run(config(
          "one",
          {"parallel.ranks=2",
           "parallel.weight_domain=node",
           "parallel.gather_weights=micro-batch"}),
      2);
  for (const Plan& plan : plans_of("one")) {
    EXPECT_FALSE(whole_weights(plan));
  }
  run(config("parts", {"parallel.ranks=4", "parallel.weight_domain=node"}), 2, {}, 2);
  run(config(
          "parts",
          {"parallel.ranks=4",
           "parallel.weight_domain=auto",
           "parallel.gather_weights=micro-batch"}),
      2,
      {.resume = folder_ / "parts"});
  for (int step = 1; step <= 4; ++step) {
    const Plan plan =
        read_plan(folder_ / "parts" / "plans" / ("step-0000" + std::to_string(step) + ".json"));
    EXPECT_EQ(plan.weight_domain, step <= 2 ? 2 : 4) << step;
    EXPECT_EQ(whole_weights(plan), step <= 2) << step;
  }
}

TEST(Links, AreMeasuredBetweenNodesAlone) {
  OnNodes one(4);
  EXPECT_FALSE(measure_links(4, one, c10::Device(c10::kCPU)));
  OnNodes two(2);
  const auto links = measure_links(4, two, c10::Device(c10::kCPU));
  ASSERT_TRUE(links);
  EXPECT_GT(links->inside_node.bytes_per_second, 0);
  EXPECT_GT(links->between_nodes.bytes_per_second, 0);
  OnNodes alone(1);
  EXPECT_TRUE(measure_links(3, alone, c10::Device(c10::kCPU)));
}

}  // namespace
}  // namespace paradyse
