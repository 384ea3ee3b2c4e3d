// Saved bytes and peak as measured by the accountant against the footprint fold, at sizes where
// attention's and the logits' workspace matters.
#include <cstdlib>

#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "paradyse/run/gradients.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/support/models.h"

namespace paradyse {
namespace {

bool all_cases() { return std::getenv("PARADYSE_TEST_LONG") != nullptr; }

struct Case {
  std::string name;
  TextShape model;
  std::vector<std::int64_t> lengths;
};

TextShape model(
    std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads, std::int64_t vocab) {
  return test::llama(
      {.layers = 2,
       .heads = heads,
       .kv_heads = kv_heads,
       .head_dim = hidden / heads,
       .hidden = hidden,
       .ffn = hidden * 11 / 4,
       .vocab = vocab});
}

// The tiles of attention change at 64, 512 and 768 tokens.
std::vector<Case> cases() {
  return {
      {"gqa", model(64, 8, 2, 260), {40, 200, 300}},
      {"mha", model(64, 4, 4, 260), {700}},
      {"gqa long", model(64, 4, 2, 260), {900}},
      {"long and short", model(64, 6, 3, 260), {40, 900, 1, 200}},
      {"mha long", model(128, 8, 8, 512), {1500}},
      {"wide", model(256, 8, 8, 512), {300, 40}},
      {"mqa", model(128, 2, 1, 3000), {191, 768}},
  };
}

// What may be off, of the predicted peak: the losses of the batch (0.012 % in these cases).
constexpr double kTolerance = 0.002;

void expect_predicted(
    const Case& c,
    int ranks,
    const std::string& attention,
    const std::string& mlp,
    LayerRecompute level,
    Dtype dtype) {
  LayerChoice layer = text_layer(attention, mlp);
  set_recompute(layer, level);
  const std::vector<LayerChoice> layers(static_cast<std::size_t>(c.model.layers), layer);
  const Plan plan = uniform_plan(c.model, c.lengths, ranks, layers);
  const auto documents = test::random_documents(c.lengths, c.model.vocab, 3);
  GradientRequest request{
      .model = text_model(c.model),
      .fill = [](Parameters& parameters) { parameters.initialize(1); },
      .plan = &plan,
      .items = items_of(documents),
      .dtype = dtype};
  const GradientAnswer answer = gradients(request);
  const Precision precision = precision_of(dtype);
  for (int r = 0; r < ranks; ++r) {
    const RankReport predicted = predicted_report(plan, text_model(c.model), r, precision);
    const RankReport& measured = answer.ranks[static_cast<std::size_t>(r)];
    const std::string what = c.name + " " + to_string(dtype) + " " + attention + " " +
                             to_string(level) + ", rank " + std::to_string(r) + " of " +
                             std::to_string(ranks);
    EXPECT_EQ(measured.saved_bytes, predicted.saved_bytes) << what;
    const auto peak = static_cast<double>(predicted.peak_bytes);
    EXPECT_NEAR(static_cast<double>(measured.peak_bytes), peak, peak * kTolerance) << what;
  }
}

// All of it in make test-long; else every thirteenth.
void expect_all(Dtype dtype) {
  int turn = 0;
  for (const Case& c : cases()) {
    for (const int p : {1, 2, 4}) {
      for (const auto& [attention, mlp] : test::pure_strategies()) {
        for (const LayerRecompute level : test::recompute_levels()) {
          if (all_cases() || turn++ % 13 == 0) {
            expect_predicted(c, p, attention, mlp, level, dtype);
          }
        }
      }
    }
  }
}

TEST(Memory, Float32) { expect_all(Dtype::float32); }
TEST(Memory, Float64) { expect_all(Dtype::float64); }
TEST(Memory, BFloat16) { expect_all(Dtype::bfloat16); }

}  // namespace
}  // namespace paradyse
