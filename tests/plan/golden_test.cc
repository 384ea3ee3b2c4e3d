// What planners choose and what folds count, to the byte, as stored in tests/golden/.
#include "tests/support/golden.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/plan/simulate/additive.h"
#include "tests/plan/golden_models.h"
#include "tests/support/grid_layers.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

// --- plans ---------------------------------------------------------------------------------------

// Of every batch, planned one after the other.
std::vector<BatchPlanner::Answer> answers_of(
    BatchPlanner& planner, const std::vector<BatchSizes>& batches) {
  std::vector<BatchPlanner::Answer> answers;
  for (const BatchSizes& batch : batches) {
    answers.push_back(planner.plan(batch));
  }
  return answers;
}

// Without what is not hashed: predictions depend on the last digits of libm, and where a part
// leaves its streams is where it took them.
void forget_predictions(nlohmann::json& json) {
  if (json.is_object()) {
    json.erase("predicted");
    json.erase("out");
  }
  for (auto& inner : json) {
    if (inner.is_structured()) {
      forget_predictions(inner);
    }
  }
}

std::string text_of(Plan plan) {
  plan.planner_seconds.reset();
  nlohmann::json json = nlohmann::json::parse(to_json(plan));
  forget_predictions(json);
  return "hash " + hash(plan) + "\n" + json.dump() + "\n";
}

std::string text_of(const std::vector<BatchPlanner::Answer>& answers) {
  std::string text;
  for (const BatchPlanner::Answer& answer : answers) {
    text += answer.plan ? text_of(*answer.plan) : "no plan: " + answer.why_not + "\n";
  }
  return text;
}

// Of language models.

using Lengths = std::vector<std::int64_t>;

// Mostly short, a few long; the same on every machine.
Lengths long_tailed(std::uint64_t seed, int count) {
  Lengths lengths;
  std::uint64_t state = seed * 2654435761U + 12345;
  for (int i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto doublings = static_cast<int>((state >> 33) % 100);  // half of them below 256
    const int shift = doublings < 50 ? 5 : doublings < 80 ? 8 : doublings < 95 ? 10 : 12;
    lengths.push_back(
        (std::int64_t{1} << shift) +
        static_cast<std::int64_t>((state >> 40) % (std::uint64_t{3} << shift)));
  }
  return lengths;
}

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

struct PlanCase {
  std::string name;
  PlanningTask task;
  std::vector<BatchSizes> batches;
};

std::vector<PlanCase> plan_cases() {
  std::vector<PlanCase> all;
  const auto add = [&](
                       const std::string& name,
                       const TextShape& model,
                       int ranks,
                       std::int64_t memory,
                       const std::vector<Lengths>& batches,
                       const std::function<void(PlanningTask&)>& change = [](PlanningTask&) {}) {
    PlanningTask task;
    task.model = model;
    task.ranks = ranks;
    task.batch_planner = "borders";
    task.machine.cores = 2;
    task.memory_per_rank = memory;
    change(task);
    all.push_back({name, std::move(task), {}});
    for (const Lengths& lengths : batches) {
      all.back().batches.push_back({.lengths = lengths});
    }
  };
  const Lengths shorts(24, 120);
  const Lengths one_long = {16000};
  const Lengths mixed = long_tailed(1, 24);
  const Lengths more = long_tailed(2, 40);

  for (const int ranks : {1, 2, 3, 4, 8}) {
    add("llama_" + std::to_string(ranks) + "_ranks", test::llama(), ranks, 0, {mixed});
  }
  add("llama_shorts", test::llama(), 4, 0, {shorts});
  add("llama_one_long", test::llama(), 4, 0, {one_long});
  add("llama_48MiB", test::llama(), 4, 48 * kMiB, {mixed, one_long});
  add("llama_30MiB", test::llama(), 4, 30 * kMiB, {mixed, one_long});
  add("llama_20MiB", test::llama(), 4, 20 * kMiB, {shorts, mixed});
  add("gpt2_4_ranks", test::gpt2(), 4, 0, {more});
  add("gpt2_80MiB", test::gpt2(), 4, 80 * kMiB, {more, one_long});
  add("gpt2_3_ranks_90MiB", test::gpt2(), 3, 90 * kMiB, {more});
  add("bert_4_ranks", test::bert(), 4, 0, {more});
  add("bert_40MiB", test::bert(), 4, 40 * kMiB, {more, one_long});
  add("qwen3_8_ranks_26MiB", test::qwen3(), 8, 26 * kMiB, {mixed, one_long});
  add("qwen3_bfloat16", test::qwen3(), 4, 40 * kMiB, {mixed, one_long}, [](PlanningTask& t) {
    t.precision = precision_of(Dtype::bfloat16);
  });
  add("llama_paper",
      test::llama(),
      4,
      32 * kMiB,
      {one_long, {15000}, {9000}, {400}},
      [](PlanningTask& t) { t.planner = "paradyse-heuristic"; });
  add("llama_alike", test::llama(), 4, 32 * kMiB, {one_long, mixed}, [](PlanningTask& t) {
    t.mix = false;
  });
  add("llama_offload", test::llama(), 4, 22 * kMiB, {one_long, mixed}, [](PlanningTask& t) {
    t.offload = true;
  });
  add("llama_metp", test::llama(), 4, 32 * kMiB, {one_long}, [](PlanningTask& t) {
    t.attention = "METP";
    t.mlp = "pass";
  });
  add("llama_full_recompute", test::llama(), 4, 0, {one_long, mixed}, [](PlanningTask& t) {
    t.recompute = "full";
  });
  add("llama_without", test::llama(), 4, 40 * kMiB, {one_long, mixed}, [](PlanningTask& t) {
    t.without = {"MegatronTS", "UlyssesZ", "DataZ"};
  });
  add("llama_evaluation", test::llama(), 4, 24 * kMiB, {one_long, mixed}, [](PlanningTask& t) {
    t.training = false;
  });
  add("llama_overhead", test::llama(), 2, 88 * kMiB, {one_long, mixed}, [](PlanningTask& t) {
    t.memory_overhead = 0.25;
    t.step_seconds = 0.01;
  });
  add("gpt2_slow_messages", test::gpt2(), 4, 0, {one_long, more}, [](PlanningTask& t) {
    t.machine.sent_bytes_per_second = 1e8;
    t.machine.collective_seconds = 2e-3;
  });
  return all;
}

class GoldenPlans : public testing::TestWithParam<std::size_t> {};

std::vector<BatchPlanner::Answer> answers_of(const PlanCase& c) {
  return answers_of(*batch_planner(c.task), c.batches);
}

TEST_P(GoldenPlans, AreTheSame) {
  PlanCase c = plan_cases()[GetParam()];
  c.task.try_options = false;
  test::expect_golden("plans/" + c.name + ".txt", text_of(answers_of(c)));
}

// Options of strategies are tried where memory is short; what is planned so is no slower, as
// predicted, and fits where nothing did.
TEST_P(GoldenPlans, WithOptionsAreTheSameAndNoSlower) {
  PlanCase c = plan_cases()[GetParam()];
  if (c.task.memory_per_rank == 0 || (test::kSanitized && GetParam() % 3 != 0)) {
    return;  // sanitized, every third: the release build compares all
  }
  const std::vector<BatchPlanner::Answer> with = answers_of(c);
  test::expect_golden("plans_with_options/" + c.name + ".txt", text_of(with));
  c.task.try_options = false;
  const std::vector<BatchPlanner::Answer> without = answers_of(c);
  for (std::size_t i = 0; i < with.size(); ++i) {
    if (without[i].plan) {
      ASSERT_TRUE(with[i].plan);
      EXPECT_LE(*with[i].plan->predicted.seconds, *without[i].plan->predicted.seconds * 1.001);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tasks,
    GoldenPlans,
    testing::Range(std::size_t{0}, plan_cases().size()),
    [](const auto& tested) { return plan_cases()[tested.param].name; });

// Of multi-axis models: a file for each, a title for each task.

class GoldenGrids : public testing::TestWithParam<test::GridModel> {};

PlanningTask sample_task(const test::GridModel& model, int ranks) {
  PlanningTask task{.model = model.shape, .dims = model.dims, .ranks = ranks, .machine = {}};
  task.machine.cores = 2;
  task.batch_planner = "groups-of-all";
  return task;
}

std::vector<std::int64_t> lengths_of(const test::GridModel& model) {
  return Lengths(idx(model.samples), model.shape.rows(model.dims));
}

std::int64_t peak(const Plan& plan) {
  std::int64_t most = 0;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      most = std::max(most, group.predicted.bytes.value().total());
    }
  }
  return most;
}

// A batch whose last sample is of another size.
BatchSizes unlike(const test::GridModel& model) {
  BatchSizes batch{.lengths = {}, .dims = {model.dims, model.dims, model.dims}};
  for (auto& [dim, size] : batch.dims.back()) {
    size -= dim == "patches" ? 0 : 3;
  }
  for (const DimSizes& dims : batch.dims) {
    batch.lengths.push_back(model.shape.rows(dims));
  }
  return batch;
}

// Of samples within memory: budgets are shares of what a plan without one needs.
TEST_P(GoldenGrids, PlansOfSamplesAreTheSame) {
  const test::GridModel& model = GetParam();
  if (test::kSanitized) {
    GTEST_SKIP() << "takes minutes under sanitizers; the release build compares it";
  }
  const BatchSizes batch{.lengths = lengths_of(model)};
  std::string text;
  const auto add =
      [&](const std::string& title, const PlanningTask& task, const BatchSizes& sizes) {
        const std::unique_ptr<BatchPlanner> planner = batch_planner(task);
        const std::vector<BatchPlanner::Answer> answers = answers_of(*planner, {sizes});
        text += "== " + title + ", " + std::to_string(task.memory_per_rank) + " bytes\n";
        text += text_of(answers);
      };
  const auto task_of = [&](int ranks, double share) {
    PlanningTask task = sample_task(model, ranks);
    if (share > 0) {
      const auto free = static_cast<double>(peak(batch_planner(task)->plan(batch).plan.value()));
      task.memory_per_rank = static_cast<std::int64_t>(free * share);
    }
    return task;
  };
  for (const auto& [ranks, share] : std::vector<std::pair<int, double>>{
           {1, 0}, {2, 0}, {2, 100}, {2, 0.4}, {2, 0.05}, {3, 0}, {3, 0.7}, {4, 0}, {8, 0}}) {
    add(std::to_string(ranks) + " ranks", task_of(ranks, share), batch);
  }
  const auto changed = [&](const std::string& title,
                           const std::vector<std::string>& models,
                           int ranks,
                           const std::function<void(PlanningTask & task)>& change) {
    if (std::ranges::find(models, model.name) != models.end()) {
      PlanningTask task = task_of(ranks, 0.5);
      change(task);
      add(std::to_string(ranks) + " ranks, " + title, task, batch);
    }
  };
  changed("within half", {"stdit", "evoformer"}, 4, [](PlanningTask&) {});
  changed("bfloat16", {"stdit", "extra_msa"}, 2, [](PlanningTask& t) {
    t.precision = precision_of(Dtype::bfloat16);
  });
  changed("evaluation", {"stdit_text", "multimer"}, 2, [](PlanningTask& t) { t.training = false; });
  changed("offload", {"stdit_text", "multimer"}, 2, [](PlanningTask& t) { t.offload = true; });
  changed("recompute full", {"stdit_text", "extra_msa"}, 3, [](PlanningTask& t) {
    t.recompute = "full";
  });
  changed("recompute layer", {"stdit", "multimer"}, 3, [](PlanningTask& t) {
    t.recompute = "layer+light";
  });
  changed("mesh 2 x 2", {"stdit", "evoformer"}, 4, [](PlanningTask& t) { t.mesh = {2, 2}; });
  changed("slow messages", {"stdit_text", "extra_msa"}, 2, [](PlanningTask& t) {
    t.machine.sent_bytes_per_second = 1e8;
    t.machine.collective_seconds = 2e-3;
  });
  add("3 ranks, unlike samples", sample_task(model, 3), unlike(model));
  for (const char* const planner : {"borders", "groups"}) {
    PlanningTask task = task_of(4, 0.6);
    task.batch_planner = planner;
    add(std::string("4 ranks, unlike samples, ") + planner, task, unlike(model));
  }

  // After a plan that ran out of memory.
  const std::unique_ptr<BatchPlanner> planner = batch_planner(sample_task(model, 2));
  const std::optional<Plan> leaner = planner->leaner(planner->plan(batch).plan.value());
  text += "== 2 ranks, leaner\n" + (leaner ? text_of(*leaner) : "none\n");
  test::expect_golden("plans/" + model.name + ".txt", text);
}

// Means over ranks, so their sums are whole.
std::string elements(const LayoutPlan& plan, int ranks, std::size_t layers) {
  const double times = static_cast<double>(ranks) * static_cast<double>(layers);
  const auto sum = [&](double mean) { return std::to_string(std::llround(mean * times)); };
  return sum(plan.elements_forward) + " forward, " + sum(plan.elements_backward) + " backward";
}

// Of layouts: what all layers send over all ranks, once and one after another, and what others'
// would; and plans by seconds on a cluster.
TEST_P(GoldenGrids, LayoutsAreTheSame) {
  const test::GridModel& of = GetParam();
  const Model model = Model(of.shape);
  const Cluster cluster = read_cluster(PARADYSE_SOURCE_DIR "/configs/clusters/8xH100.toml");
  std::string text;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const std::vector<int>& mesh : {std::vector<int>{}, {2, ranks / 2}}) {
      if (!mesh.empty() && ranks % 4 != 0) {
        continue;
      }
      LayoutTask task{
          .model = &model,
          .documents =
              test::documents_of_samples(of.dims, of.shape.rows(of.dims), of.samples, ranks),
          .seconds = part_seconds(cluster, ranks, {})};
      task.documents.mesh = mesh;
      const std::string title =
          "== " + std::to_string(ranks) + " ranks" + (mesh.empty() ? ", " : ", 2 axes, ");
      const LayoutPlan once = plan_layouts(task, model.layers);
      text += title + "once: " + elements(once, ranks, 1) + ", hash " +
              hash(checked_plan(task, once, 0)) + "\n";
      const LayoutPlan for_ever = plan_layouts(task);
      text += title + "for ever: " + elements(for_ever, ranks, for_ever.layers.size()) + ", hash " +
              hash(plan_of(task, for_ever)) + "\n";
      if (mesh.empty()) {
        for (const LayoutRival& rival : layout_rivals(model)) {
          text += title + rival.name + ": " + elements(cost_of(task, rival), ranks, 1) + "\n";
        }
      }
      task.objective = LayoutTask::Objective::seconds;
      task.recompute = {.parts = Recompute::full};
      text += title + "by seconds, recompute full\n" +
              text_of(checked_plan(task, plan_layouts(task, model.layers), 0));
    }
  }
  test::expect_golden("layouts/" + of.name + ".txt", text);
}

INSTANTIATE_TEST_SUITE_P(
    Models, GoldenGrids, testing::ValuesIn(test::grid_models()), [](const auto& tested) {
      return tested.param.name;
    });

// --- counts --------------------------------------------------------------------------------------

std::string number(double value) { return std::to_string(static_cast<std::int64_t>(value)); }

std::string text_of(const Work& work) {
  return number(work.matmul_flops) + " " + number(work.attention_flops) + " " +
         number(work.touched_bytes) + " " + std::to_string(work.calls);
}

// A line a rank: saved, in host memory, peak; bytes, messages, collectives; products', attention's
// operations, touched bytes and kernels of forward, backward, recomputation.
std::string counts(
    const std::string& title,
    const Timeline& timeline,
    int ranks,
    int domain,
    Precision precision) {
  std::string text;
  for (int r = 0; r < domain; ++r) {
    const Seat seat{.group_rank = r % ranks, .domain_rank = r};
    const Footprint held = footprint(timeline, seat, precision, 0);
    const Totals all = totals(timeline, seat, precision);
    text += title + " " + std::to_string(r) + ": " + std::to_string(held.saved_bytes) + " " +
            std::to_string(held.offloaded_bytes) + " " + std::to_string(held.peak_bytes) + "; " +
            std::to_string(all.traffic.bytes) + " " + std::to_string(all.traffic.messages) + " " +
            std::to_string(all.traffic.collectives) + "; " + text_of(all.forward) + "; " +
            text_of(all.backward) + "; " + text_of(all.recompute) + "\n";
  }
  return text;
}

struct Variant {
  std::string name = "";
  LayerChoice choice = {};
  Precision precision = {};
  bool keep = true;
  std::vector<double> shares = {};
};

std::string counts_of(
    const std::string& title, const TextShape& model, int domain, const Variant& v) {
  const int ranks =
      strategy("attention", part_of(v.choice, "attention").strategy).one_rank ? 1 : domain;
  const Lengths lengths = {1, 37, 2, 64, 5};
  const std::vector<double> shares =
      ranks == static_cast<int>(v.shares.size()) ? v.shares : std::vector<double>{};
  const std::vector<LayerChoice> layers(static_cast<std::size_t>(model.layers), v.choice);
  LayerChoice titled = v.choice;  // the name of the variant says its options
  for (PartChoice& part : titled) {
    part.options.clear();
  }
  return counts(
      title + " " + name(titled) + (v.name.empty() ? "" : ", " + v.name) + ", " +
          std::to_string(domain) + " ranks, rank",
      timeline(
          text_model(model), packed(lengths, ranks, model.causal, shares), domain, layers, v.keep),
      ranks,
      domain,
      v.precision);
}

// Every strategy with the MLP of its verb, every level, on 1 to 4 ranks.
std::string counts_of_all(const std::string& title, TextShape model) {
  model.layers = 2;
  std::string text;
  for (const int domain : {1, 2, 3, 4}) {
    for (const Strategy& s : strategies("attention")) {
      for (const Recompute level : kRecomputeLevels) {
        text += counts_of(
            title, model, domain, {.choice = text_layer(s.name, to_string(s.verb), level, level)});
      }
    }
  }
  return text;
}

// Of multi-axis models: what the layers run, and below it the counts.
class LayerCounts {
 public:
  LayerCounts(const test::GridModel& of, const std::string& title, LayerChoice layer)
      : of_(of), model_(with_layers(of.shape, 2)), layer_(std::move(layer)) {
    text_ = title + ":";
    for (const PartChoice& part : layer_) {
      text_ += " " + part.part + " " + part.strategy;
      for (const auto& [stream, placement] : part.in) {
        text_ += " " + stream + " " + to_string(placement);
      }
      text_ += ";";
    }
    text_ += "\n";
  }

  // By a level, on 1 to 4 ranks.
  void add_level(const std::string& level) {
    LayerChoice layer = layer_;
    set_recompute(layer, layer_recompute(level));
    for (const int ranks : {1, 2, 3, 4}) {
      add(level, ranks, layer);
    }
  }

  // What a layer may run beside its strategies and level, on 3.
  void add_variants() {
    add("bfloat16", 3, layer_, {.precision = {2, 4}});
    add("evaluation", 3, layer_, {.keep = false});
    add("weights kept", 3, layer_, {}, {.overlap = true, .reshard_after_forward = false});
    LayerChoice other = layer_;
    for (PartChoice& part : other) {
      part.offload = true;
    }
    add("offload", 3, other);
    other = layer_;
    for (PartChoice& part : other) {
      if (takes(kind_of(part.part), part.strategy, kTilesOption)) {
        part.options[kTilesOption] = 3;
      }
    }
    add("3 token tiles", 3, other);
  }

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void add(
      const std::string& what,
      int ranks,
      const LayerChoice& layer,
      const Variant& v = {},
      Messages messages = {}) {
    const std::vector<LayerChoice> layers = layers_of(model_, layer);
    const Documents documents =
        test::documents_of_samples(of_.dims, of_.shape.rows(of_.dims), of_.samples, ranks);
    text_ += counts(
        what + " on " + std::to_string(ranks),
        timeline(model_, documents, ranks, layers, v.keep, messages),
        ranks,
        ranks,
        v.precision);
  }

  const test::GridModel& of_;
  Model model_;
  LayerChoice layer_;
  std::string text_;
};

class GoldenGridCounts : public testing::TestWithParam<test::GridModel> {};

TEST_P(GoldenGridCounts, AreTheSame) {
  const test::GridModel& of = GetParam();
  const Model model = Model(of.shape);
  std::string text;
  for (const LayoutRival& rival : layout_rivals(model)) {
    LayerCounts counts(of, rival.name, rival.parts);
    counts.add_level("none");
    text += counts.text();
  }
  // Models whose parts another has as well show in two layers what is their own.
  std::vector<LayerChoice> layers = test::layers_of_every_strategy(model, of.dims);
  if (of.name == "stdit_text" || of.name == "multimer" || of.name == "openfold_extra") {
    layers.resize(2);
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerCounts counts(of, "layer " + std::to_string(i), layers[i]);
    for (const std::string level : {"none", "light", "attention-output", "full", "layer"}) {
      counts.add_level(level);
    }
    counts.add_variants();
    text += counts.text();
  }
  test::expect_golden("counts/" + of.name + ".txt", text);
}

INSTANTIATE_TEST_SUITE_P(
    Models, GoldenGridCounts, testing::ValuesIn(test::grid_models()), [](const auto& tested) {
      return tested.param.name;
    });

TEST(GoldenCounts, OfLlama) {
  test::expect_golden("counts/llama.txt", counts_of_all("llama", test::llama()));
}
TEST(GoldenCounts, OfGpt2) {
  test::expect_golden("counts/gpt2.txt", counts_of_all("gpt2", test::gpt2()));
}
TEST(GoldenCounts, OfBert) {
  test::expect_golden("counts/bert.txt", counts_of_all("bert", test::bert()));
}

// What a layer may run beside its strategy and level.
TEST(GoldenCounts, OfVariants) {
  std::string text;
  for (const auto& [title, shape] :
       {std::pair{"llama", test::llama()},
        {"qwen3", test::qwen3()},
        {"gpt2", test::gpt2()},
        {"bert", test::bert()}}) {
    TextShape model = shape;
    model.layers = 2;
    std::vector<Variant> variants;
    for (const Strategy& s : strategies("attention")) {
      const LayerChoice plain = text_layer(s.name, to_string(s.verb));
      variants.push_back({.name = "bfloat16", .choice = plain, .precision = {2, 4}});
      variants.push_back({.name = "float64", .choice = plain, .precision = {8, 8}});
      variants.push_back({.name = "evaluation", .choice = plain, .keep = false});
      variants.push_back({.name = "shares", .choice = plain, .shares = {3, 1, 2}});
      LayerChoice other = plain;
      for (PartChoice& part : other) {
        part.offload = true;
      }
      variants.push_back({.name = "", .choice = other});
      other = plain;
      part_of(other, "mlp").options["token_tiles"] = 3;
      part_of(other, "attention").recompute = Recompute::attention_output;
      variants.push_back({.name = "3 token tiles", .choice = other});
      for (const char* mlp : {"hold", "gather", "pass"}) {
        if (!s.one_rank && mlp != part_of(plain, "mlp").strategy) {
          variants.push_back({.choice = text_layer(s.name, mlp)});
        }
      }
    }
    for (const Variant& v : variants) {
      text += counts_of(title, model, 3, v);
    }
    LayerChoice groups = text_layer("METP", "pass");
    part_of(groups, "attention").options["head_groups"] = 1;
    text += counts_of(title, model, 4, {.name = "1 head group", .choice = groups});
    for (const int degree : {1, 2, 4}) {
      LayerChoice usp = text_layer("USP", "gather");
      part_of(usp, "attention").options["ulysses_degree"] = degree;
      text += counts_of(
          title, model, 4, {.name = "Ulysses degree " + std::to_string(degree), .choice = usp});
    }
  }
  test::expect_golden("counts/variants.txt", text);
}

}  // namespace
}  // namespace paradyse
