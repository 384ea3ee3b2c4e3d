// How long the exact layer planner takes (Google Benchmark):
//
//   cmake --preset release -DPARADYSE_BENCHMARKS=ON
//   cmake --build --preset release --target benchmark.layer_planner
//   build/release/bin/benchmark.layer_planner
#include "src/plan/search/layers/layer_planner.h"

#include <map>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "src/plan/search/batch/document_plans.h"

namespace paradyse {
namespace {

constexpr std::int64_t kLayers = 96;
constexpr const char* kGpt3 =
    R"({"model_type": "gpt2", "n_layer": 96, "n_embd": 12288, "n_head": 96,
    "n_inner": 49152, "n_positions": 131072, "vocab_size": 50257})";

// From a capacity at which the leanest plan fits to one at which the fastest does.
std::int64_t capacity_between(const std::vector<LayerCost>& ways, double share) {
  const std::int64_t least = plan_layers(ways, kLayers, 0).peak_bytes;
  const std::int64_t most = plan_layers(ways, kLayers, std::int64_t{1} << 60).peak_bytes;
  return least + static_cast<std::int64_t>(share * static_cast<double>(most - least));
}

void plan(benchmark::State& state, const std::vector<LayerCost>& ways, double share) {
  const std::int64_t capacity = capacity_between(ways, share);
  for (auto _ : state) {
    benchmark::DoNotOptimize(plan_layers(ways, kLayers, capacity));
  }
  state.counters["ways"] = static_cast<double>(ways.size());
}

// Every attention strategy, MLP verb, option, recompute level and place of saved tensors that no
// other beats, for GPT-3 175B on 64 ranks: what a step's planning asks.
const std::vector<LayerCost>& ways_of_a_model(std::int64_t tokens) {
  static std::map<std::int64_t, std::vector<LayerCost>> known;  // it takes seconds to fold them
  const auto found = known.find(tokens);
  if (found != known.end()) {
    return found->second;
  }
  PlanningTask task;
  task.model = model_from_config(kGpt3, "GPT-3 175B");
  task.ranks = 64;
  task.machine.cores = 64;
  task.offload = true;
  return known[tokens] = DocumentPlans(task).choices(tokens, task.ranks).ways.costs;
}

void OfAModel(benchmark::State& state) {
  plan(state, ways_of_a_model(state.range(0)), 0.01 * static_cast<double>(state.range(1)));
}
BENCHMARK(OfAModel)
    ->ArgNames({"tokens", "percent"})
    ->ArgsProduct({{8192, 131072}, {2, 50, 98}})
    ->Unit(benchmark::kMicrosecond);

// Any costs: what is faster keeps more, on the whole.
void OfRandomCosts(benchmark::State& state) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> noise(0.8, 1.25);
  std::vector<LayerCost> ways;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    const double seconds = noise(random) * (1 + static_cast<double>(i) / 50);
    ways.push_back(
        {.name = std::to_string(i),
         .seconds = seconds,
         .saved_bytes = static_cast<std::int64_t>(1e9 * noise(random) / seconds),
         .transient_bytes = static_cast<std::int64_t>(1e9 * noise(random))});
  }
  plan(state, ways, 0.01 * static_cast<double>(state.range(1)));
}
BENCHMARK(OfRandomCosts)
    ->ArgNames({"ways", "percent"})
    ->ArgsProduct({{24, 216, 1000}, {2, 50, 98}})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace paradyse
