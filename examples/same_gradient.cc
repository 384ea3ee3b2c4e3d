// One model, one batch, three strategies on four ranks: the same loss and gradients, different
// communication and memory.
//
// A short tour of the public interface: a model's shape, plans, and their counted and measured
// bytes.  Built and run by the tests.
#include <cmath>
#include <cstdio>

#include "paradyse/plan/plan.h"
#include "paradyse/run/gradients.h"

using namespace paradyse;  // an example may

int main() {
  // Four ranks divide neither the heads nor the feed-forward width.
  const Model model = model_from_config(
      R"({"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 6,
          "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 50,
          "vocab_size": 61})",
      "this example");

  // Three documents of odd lengths, one of a single token.
  const std::vector<std::int64_t> lengths = {41, 1, 7};
  std::vector<std::vector<std::int32_t>> documents;
  for (const std::int64_t n : lengths) {
    auto& document = documents.emplace_back();
    for (std::int64_t i = 0; i < n; ++i) {
      document.push_back(static_cast<std::int32_t>((i * i + 3 * n) % model.vocab()));
    }
  }

  std::map<std::string, at::Tensor> first;
  double worst = 0;
  for (const Strategy& s : strategies("attention")) {
    const std::vector<LayerChoice> layers(
        static_cast<std::size_t>(model.layers), text_layer(s.name, to_string(s.verb)));
    const Plan plan = uniform_plan(model, lengths, 4, layers);

    GradientRequest request{.model = model, .plan = &plan, .items = items_of(documents)};
    request.fill = [](Parameters& parameters) { parameters.initialize(/*seed=*/1); };
    const GradientAnswer answer = gradients(request);

    // Counted before anything runs, for rank 0 in float64.
    const RankReport counted = predicted_report(plan, model, 0, precision_of(Dtype::float64));
    const RankReport& did = answer.ranks[0];
    std::printf(
        "%-10s loss %.12f  rank 0 sent %lld bytes (counted %lld), saved %lld (counted %lld)\n",
        s.name.c_str(),
        answer.batch.loss,
        static_cast<long long>(did.bytes_sent),
        static_cast<long long>(counted.bytes_sent),
        static_cast<long long>(did.saved_bytes),
        static_cast<long long>(counted.saved_bytes));
    if (first.empty()) {
      first = answer.gradients;
    }
    worst = std::max(worst, compare_gradients(answer.gradients, first).worst);
    if (did.bytes_sent != counted.bytes_sent || did.saved_bytes != counted.saved_bytes) {
      return 1;
    }
  }
  std::printf("largest relative difference of any gradient: %.1e\n\n", worst);

  // What UlyssesZ runs in a layer's attention, line by line ("~": run again before the backward
  // pass).
  const ScheduledPart part = scheduled_part(
      task_of(model, "attention", packed(lengths, 4, true), 4),
      {.part = "attention", .strategy = "UlyssesZ", .recompute = Recompute::light});
  std::printf("%s", explain(part.program()).c_str());
  return worst < 1e-10 ? 0 : 1;
}
