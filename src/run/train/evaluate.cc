#include "src/run/train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

#include "src/run/device/device.h"
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
    BatchPlanner* planner,
    RankSession& session,
    const std::atomic<bool>* stop) {
  EvalResult result;
  result.data = corpus.counts;
  const auto begin = Clock::now();
  double sum = 0;
  Communicator& world = session.world();
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
    plan = session.broadcast(std::move(plan));
    if (!plan) {
      result.interrupted = true;
      break;
    }
    const std::vector<const Tokens*> labels = labels_of(corpus, numbers);
    const BatchResult batch =
        session.play(*plan, {.documents = documents, .labels = labels}, /*backward=*/false);
    sum += std::accumulate(batch.loss_sums.begin(), batch.loss_sums.end(), 0.0);
    result.predicted_tokens += batch.predicted_tokens;
    result.documents += static_cast<std::int64_t>(documents.size());
  }
  result.loss = result.predicted_tokens == 0 ? std::numeric_limits<double>::quiet_NaN()
                                             : sum / static_cast<double>(result.predicted_tokens);
  result.seconds = seconds_since(begin);
  result.peak_bytes = largest(session.memory().peak_bytes(), world);
  return result;
}

EvalResult evaluate(const LoadedConfig& loaded, const std::atomic<bool>* stop, Backend& backend) {
  const RunConfig& config = loaded.config;
  const ModelFolder model = model_at(config);
  const Corpus corpus = corpus_at("data.path", config.data.path, config, model.shape);
  const std::unique_ptr<BatchPlanner> planner = batch_planner(planning_task(
      config, model.shape, /*training=*/false, machine_for(config, model.shape, backend)));
  const c10::Device device = device_named(config.parallel.device);
  EvalResult result;
  backend.run(static_cast<int>(config.parallel.ranks), [&](Communicators& communicators) {
    RankSession session(
        communicators,
        text_model(model.shape),
        {.dtype = config.train.dtype,
         .gradients = false,
         .memory_bytes = parse_bytes(config.parallel.memory_per_rank),
         .device = device});
    fill(session.parameters(), model, config.model.seed);
    session.world().barrier({.op = "model is there", .part = ""});
    const bool first = session.rank() == 0;
    const EvalResult mine = evaluate_corpus(
        corpus, config.train.tokens_per_step, first ? planner.get() : nullptr, session, stop);
    if (first) {
      result = mine;
    }
  });
  return result;
}

}  // namespace paradyse
