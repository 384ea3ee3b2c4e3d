// What planners choose and what folds count, to the byte, as stored in tests/golden/.
#include "tests/support/golden.h"

#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/batch_planner.h"

namespace paradyse {
namespace {

ModelShape llama() {  // query heads share key/value heads; sizes that ranks do not divide
  ModelShape m;
  m.layers = 6;
  m.hidden = 96;
  m.heads = 6;
  m.kv_heads = 2;
  m.head_dim = 16;
  m.ffn = 250;
  m.vocab = 259;
  m.tied = true;
  return m;
}

ModelShape gpt2() {
  ModelShape m;
  m.architecture = "gpt2";
  m.layers = 5;
  m.hidden = 80;
  m.heads = m.kv_heads = 5;
  m.head_dim = 16;
  m.ffn = 320;
  m.vocab = 10007;  // two tiles
  m.max_positions = 1 << 14;
  m.learned_positions = m.layer_norm = true;
  m.qkv_bias = m.out_bias = m.mlp_bias = true;
  m.tied = true;
  m.activation = Activation::gelu_tanh;
  m.embedding_dropout = m.residual_dropout = 0.1;
  return m;
}

ModelShape bert() {
  ModelShape m = gpt2();
  m.architecture = "bert";
  m.layers = 4;
  m.vocab = 331;
  m.causal = false;
  m.post_norm = m.masked_lm = true;
  m.segments = 2;
  m.activation = Activation::gelu;
  return m;
}

ModelShape qwen3() {
  ModelShape m = llama();
  m.architecture = "qwen3";
  m.layers = 12;
  m.qk_norm = true;
  m.tied = false;
  return m;
}

// --- plans ---------------------------------------------------------------------------------------

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
  std::vector<Lengths> batches;  // planned one after the other
};

std::vector<PlanCase> plan_cases() {
  std::vector<PlanCase> all;
  const auto add = [&](
                       const std::string& name,
                       const ModelShape& model,
                       int ranks,
                       std::int64_t memory,
                       std::vector<Lengths> batches,
                       const std::function<void(PlanningTask&)>& change = [](PlanningTask&) {}) {
    PlanningTask task;
    task.model = model;
    task.ranks = ranks;
    task.machine.cores = 2;
    task.memory_per_rank = memory;
    change(task);
    all.push_back({name, std::move(task), std::move(batches)});
  };
  const Lengths shorts(24, 120);
  const Lengths one_long = {16000};
  const Lengths mixed = long_tailed(1, 24);
  const Lengths more = long_tailed(2, 40);

  for (const int ranks : {1, 2, 3, 4, 8}) {
    add("llama_" + std::to_string(ranks) + "_ranks", llama(), ranks, 0, {mixed});
  }
  add("llama_shorts", llama(), 4, 0, {shorts});
  add("llama_one_long", llama(), 4, 0, {one_long});
  add("llama_48MiB", llama(), 4, 48 * kMiB, {mixed, one_long});
  add("llama_30MiB", llama(), 4, 30 * kMiB, {mixed, one_long});
  add("llama_20MiB", llama(), 4, 20 * kMiB, {shorts, mixed});
  add("gpt2_4_ranks", gpt2(), 4, 0, {more});
  add("gpt2_80MiB", gpt2(), 4, 80 * kMiB, {more, one_long});
  add("gpt2_3_ranks_90MiB", gpt2(), 3, 90 * kMiB, {more});
  add("bert_4_ranks", bert(), 4, 0, {more});
  add("bert_40MiB", bert(), 4, 40 * kMiB, {more, one_long});
  add("qwen3_8_ranks_26MiB", qwen3(), 8, 26 * kMiB, {mixed, one_long});
  add("qwen3_bfloat16", qwen3(), 4, 40 * kMiB, {mixed, one_long}, [](PlanningTask& t) {
    t.precision = precision_of(Dtype::bfloat16);
  });
  add("llama_paper",
      llama(),
      4,
      32 * kMiB,
      {one_long, {15000}, {9000}, {400}},
      [](PlanningTask& t) { t.planner = "paradyse-heuristic"; });
  add("llama_alike", llama(), 4, 32 * kMiB, {one_long, mixed}, [](PlanningTask& t) {
    t.mix = false;
  });
  add("llama_offload", llama(), 4, 22 * kMiB, {one_long, mixed}, [](PlanningTask& t) {
    t.offload = true;
  });
  add("llama_metp", llama(), 4, 32 * kMiB, {one_long}, [](PlanningTask& t) {
    t.attention = "METP";
    t.mlp = "pass";
  });
  add("llama_full_recompute", llama(), 4, 0, {one_long, mixed}, [](PlanningTask& t) {
    t.recompute = "full";
  });
  add("llama_without", llama(), 4, 40 * kMiB, {one_long, mixed}, [](PlanningTask& t) {
    t.without = {"MegatronTS", "UlyssesZ", "DataZ"};
  });
  add("llama_evaluation", llama(), 4, 24 * kMiB, {one_long, mixed}, [](PlanningTask& t) {
    t.training = false;
  });
  add("llama_overhead", llama(), 2, 88 * kMiB, {one_long, mixed}, [](PlanningTask& t) {
    t.memory_overhead = 0.25;
    t.step_seconds = 0.01;
  });
  add("gpt2_slow_messages", gpt2(), 4, 0, {one_long, more}, [](PlanningTask& t) {
    t.machine.sent_bytes_per_second = 1e8;
    t.machine.collective_seconds = 2e-3;
  });
  return all;
}

// Without what is not hashed: predictions depend on the last digits of libm.
void forget_predictions(nlohmann::json& json) {
  if (json.is_object()) {
    json.erase("predicted");
  }
  for (auto& inner : json) {
    if (inner.is_structured()) {
      forget_predictions(inner);
    }
  }
}

class GoldenPlans : public testing::TestWithParam<std::size_t> {};

// Of every batch, planned one after the other.
std::vector<BatchPlanner::Answer> answers_of(const PlanCase& c) {
  const std::unique_ptr<DocumentPlanner> planner = batch_planner(c.task);
  std::vector<BatchPlanner::Answer> answers;
  for (const Lengths& lengths : c.batches) {
    answers.push_back(planner->plan(lengths));
  }
  return answers;
}

std::string text_of(const std::vector<BatchPlanner::Answer>& answers) {
  std::string text;
  for (const BatchPlanner::Answer& answer : answers) {
    if (!answer.plan) {
      text += "no plan: " + answer.why_not + "\n";
      continue;
    }
    nlohmann::json json = nlohmann::json::parse(to_json(*answer.plan));
    forget_predictions(json);
    text += "hash " + hash(*answer.plan) + "\n" + json.dump() + "\n";
  }
  return text;
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
  if (c.task.memory_per_rank == 0) {
    return;
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
    const std::string& title, const ModelShape& model, int domain, const Variant& v) {
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
std::string counts_of_all(const std::string& title, ModelShape model) {
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

TEST(GoldenCounts, OfLlama) {
  test::expect_golden("counts/llama.txt", counts_of_all("llama", llama()));
}
TEST(GoldenCounts, OfGpt2) {
  test::expect_golden("counts/gpt2.txt", counts_of_all("gpt2", gpt2()));
}
TEST(GoldenCounts, OfBert) {
  test::expect_golden("counts/bert.txt", counts_of_all("bert", bert()));
}

// What a layer may run beside its strategy and level.
TEST(GoldenCounts, OfVariants) {
  std::string text;
  for (const auto& [title, shape] :
       {std::pair{"llama", llama()}, {"qwen3", qwen3()}, {"gpt2", gpt2()}, {"bert", bert()}}) {
    ModelShape model = shape;
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
