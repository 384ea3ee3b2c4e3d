#include "src/run/train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

#include "src/run/device/device.h"
#include "src/run/execute/broadcast_plan.h"
#include "src/run/measure/measure.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// The largest of every rank's number.
std::int64_t largest(std::int64_t mine, Communicator& world) {
  const HostScope control;
  const at::Tensor all = at::zeros({world.size()}, at::kLong);
  all.mutable_data_ptr<std::int64_t>()[world.rank()] = mine;
  world.all_reduce(all, {.op = "largest", .part = ""});
  const auto* data = all.const_data_ptr<std::int64_t>();
  return *std::max_element(data, data + world.size());
}

std::vector<std::int64_t> lengths_of(const std::vector<const Tokens*>& documents) {
  std::vector<std::int64_t> lengths;
  for (const Tokens* document : documents) {
    lengths.push_back(static_cast<std::int64_t>(document->size()));
  }
  return lengths;
}

}  // namespace

EvalResult evaluate_corpus(
    const Corpus& corpus,
    std::int64_t tokens_per_batch,
    Planner* planner,
    const RankResources& rank,
    Parameters& parameters,
    const std::atomic<bool>* stop) {
  EvalResult result;
  result.data = corpus.counts;
  const auto begin = Clock::now();
  double sum = 0;
  Communicator& world = rank.world();
  for (std::size_t next = 0; next < corpus.documents.size();) {
    std::vector<const Tokens*> documents;
    std::vector<std::int64_t> numbers;
    std::int64_t tokens = 0;
    while (next < corpus.documents.size() && (tokens < tokens_per_batch || documents.empty())) {
      numbers.push_back(static_cast<std::int64_t>(next));
      documents.push_back(&corpus.documents[next++]);
      tokens += static_cast<std::int64_t>(documents.back()->size());
    }
    std::optional<Plan> plan;
    if (world.rank() == 0 && !(stop != nullptr && stop->load())) {
      plan = plan_or_throw(*planner, lengths_of(documents));
    }
    plan = broadcast_plan(plan, world);
    if (!plan) {
      result.interrupted = true;
      break;
    }
    const std::vector<const Tokens*> labels = labels_of(corpus, numbers);
    const BatchResult batch =
        play(*plan, documents, rank, parameters, false, 1, {.labels = labels});
    sum += std::accumulate(batch.loss_sums.begin(), batch.loss_sums.end(), 0.0);
    result.predicted_tokens += batch.predicted_tokens;
    result.documents += static_cast<std::int64_t>(documents.size());
  }
  result.loss = result.predicted_tokens == 0 ? std::numeric_limits<double>::quiet_NaN()
                                             : sum / static_cast<double>(result.predicted_tokens);
  result.seconds = seconds_since(begin);
  result.peak_bytes = largest(rank.memory->peak_bytes(), world);
  return result;
}

EvalResult evaluate(const LoadedConfig& loaded, const std::atomic<bool>* stop, Backend& backend) {
  const RunConfig& config = loaded.config;
  const ModelFolder model = model_at(config);
  const Corpus corpus = corpus_at("data.path", config.data.path, config, model.shape);
  Planner planner(planning_task(
      config, model.shape, /*training=*/false, machine_for(config, model.shape, backend)));
  const c10::Device device = device_named(config.parallel.device);
  install_accounting_allocator(device);
  EvalResult result;
  backend.run(static_cast<int>(config.parallel.ranks), [&](Communicators& communicators) {
    const int me = communicators.rank();
    const DeviceScope computing(device);
    Accountant memory(
        "rank " + std::to_string(me), parse_bytes(config.parallel.memory_per_rank), device);
    const MemoryScope scope(memory, Category::parameters, "parameters");
    const RankResources rank{.communicators = &communicators, .memory = &memory};
    Parameters parameters(
        model.shape,
        communicators.size(),
        me,
        parameter_types(config.train.dtype),
        /*gradients=*/false,
        /*masters=*/false,
        device);
    fill(parameters, model, config.model.seed);
    communicators.world().barrier({.op = "model is there", .part = ""});
    const EvalResult mine = evaluate_corpus(
        corpus, config.train.tokens_per_step, me == 0 ? &planner : nullptr, rank, parameters, stop);
    if (me == 0) {
      result = mine;
    }
  });
  return result;
}

}  // namespace paradyse
