#include "paradyse/run/play.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/plan/group_timeline.h"
#include "src/run/device/device.h"
#include "src/run/execute/breakdown.h"
#include "src/run/execute/executor.h"
#include "src/run/execute/part_times.h"
#include "src/run/execute/trace.h"

namespace paradyse {

using Clock = std::chrono::steady_clock;

Communicator& RankResources::domain(int weight_domain) const {
  const int first = communicators->rank() / weight_domain * weight_domain;
  std::vector<int> ranks;
  for (int r = first; r < first + weight_domain; ++r) {
    ranks.push_back(r);
  }
  return communicators->group(ranks);
}

Communicator& RankResources::replicas(int weight_domain) const {
  std::vector<int> ranks;
  for (int r = communicators->rank() % weight_domain; r < communicators->size();
       r += weight_domain) {
    ranks.push_back(r);
  }
  return communicators->group(ranks);
}

RankPart rank_part(
    const Plan& plan,
    const PlanMicroBatch& micro_batch,
    const ModelShape& model,
    int rank,
    bool keep) {
  for (std::size_t g = 0; g < micro_batch.groups.size(); ++g) {
    const PlanGroup& group = micro_batch.groups[g];
    const auto me = std::find(group.ranks.begin(), group.ranks.end(), rank);
    if (me == group.ranks.end()) {
      continue;
    }
    GroupTimeline built = group_timeline(plan, group, model, keep);
    return {
        .group = g,
        .seat = built.seats[static_cast<std::size_t>(me - group.ranks.begin())],
        .timeline = std::move(built.parts)};
  }
  throw std::invalid_argument(fmt::format("plan: rank {} is in no group of a micro-batch", rank));
}

namespace {

void expect_fitting(const Plan& plan, const ModelShape& shape, const BatchOptions& options) {
  if (shape.masked_lm && options.labels.size() != plan.lengths.size()) {
    throw std::invalid_argument(fmt::format(
        "the model predicts masked tokens: it takes labels for each of the {} documents, there are "
        "{}; give data with {{\"tokens\": [...], \"labels\": [...]}}",
        plan.lengths.size(),
        options.labels.size()));
  }
  if (!options.labels.empty() && options.labels.size() != plan.lengths.size()) {
    throw std::invalid_argument(fmt::format(
        "{} lists of labels for {} documents: each takes one, or none does",
        options.labels.size(),
        plan.lengths.size()));
  }
  for (std::size_t d = 0; d < plan.lengths.size(); ++d) {
    if (shape.learned_positions && plan.lengths[d] > shape.max_positions) {
      throw std::invalid_argument(fmt::format(
          "document {} of the batch has {} tokens; the model has learned {} positions: cut it",
          d,
          plan.lengths[d],
          shape.max_positions));
    }
  }
}

// All ranks must hold the same plan before any of them acts on it.
void agree(const Plan& plan, Communicator& world) {
  if (world.size() == 1) {
    return;
  }
  const HostScope control;
  const std::string mine = hash(plan);
  const at::Tensor ours = at::empty({static_cast<std::int64_t>(mine.size())}, at::kLong);
  auto* data = ours.mutable_data_ptr<std::int64_t>();
  std::copy(mine.begin(), mine.end(), data);
  world.broadcast(ours, 0, {.op = "plan hash", .part = ""});
  if (!std::equal(mine.begin(), mine.end(), data)) {
    throw CommunicatorError(fmt::format(
        "rank {} holds another plan than rank 0 (hash {}): was a plan file changed during the run?",
        world.rank(),
        mine));
  }
}

}  // namespace

BatchResult play(
    const Plan& plan,
    std::span<const std::vector<std::int32_t>* const> documents,
    const RankResources& rank,
    Parameters& parameters,
    bool backward,
    double loss_scale,
    const BatchOptions& options) {
  expect_fitting(plan, parameters.shape(), options);
  const MemoryScope scope(*rank.memory, Category::communication, "agreement");
  const auto start = Clock::now();
  agree(plan, rank.world());
  const auto traced = [&](const char* what, Clock::time_point from) {
    const Clock::time_point to = Clock::now();
    if (rank.trace != nullptr) {
      rank.trace->add(rank.communicators->rank(), what, "switch", from, to);
    }
    return std::chrono::duration<double>(to - from).count();
  };

  BatchResult result;
  result.switching_seconds = traced("agree on the plan", start);
  std::vector<std::int64_t> first_tokens;  // of every document of the batch
  std::int64_t tokens = 0;
  for (std::size_t d = 0; d < plan.lengths.size(); ++d) {
    first_tokens.push_back(tokens);
    tokens += plan.lengths[d];
    const std::vector<std::int32_t>& labels =
        options.labels.empty() ? *documents[d] : *options.labels[d];
    const std::ptrdiff_t unused = parameters.shape().masked_lm || labels.empty() ? 0 : 1;
    result.predicted_tokens +=
        std::count_if(labels.begin() + unused, labels.end(), [](auto label) { return label >= 0; });
  }
  const double scale =
      result.predicted_tokens == 0 ? 0.0 : 1.0 / static_cast<double>(result.predicted_tokens);

  const auto count = static_cast<std::int64_t>(plan.lengths.size());
  const at::Tensor sums = [&] {  // loss sums, then counts
    const HostScope control;
    return at::zeros({2, count}, at::kDouble);
  }();
  auto* data = sums.mutable_data_ptr<double>();
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    const auto begin = Clock::now();
    const RankPart part =
        rank_part(plan, micro, parameters.shape(), rank.communicators->rank(), backward);
    result.switching_seconds += traced("build the programs", begin);
    const PlanGroup& group = micro.groups[part.group];
    std::vector<const std::vector<std::int32_t>*> mine;
    std::vector<const std::vector<std::int32_t>*> labels;
    std::vector<std::int64_t> firsts;
    for (const std::int64_t document : group.documents) {
      const auto d = static_cast<std::size_t>(document);
      mine.push_back(documents[d]);
      firsts.push_back(first_tokens[d]);
      if (!options.labels.empty()) {
        labels.push_back(options.labels[d]);
      }
    }
    MicroBatch batch = micro_batch(
        part.timeline.front().program().tokens,
        mine,
        part.seat.group_rank,
        labels,
        firsts,
        parameters.shape().masked_lm);
    batch.dropout_seed = options.dropout_seed;
    const RankContext context{
        .seat = part.seat,
        .group = &rank.communicators->group(group.ranks),
        .domain = &rank.domain(plan.weight_domain),
        .memory = rank.memory,
        .trace = rank.trace,
        .world_rank = rank.communicators->rank(),
        .breakdown = rank.breakdown,
        .part_times = rank.part_times};
    const MicroBatchResult done =
        run_micro_batch(part.timeline, batch, context, parameters, scale * loss_scale, backward);
    result.saved_bytes = std::max(result.saved_bytes, done.saved_bytes);
    synchronize(parameters.device());
    result.micro_batch_seconds.push_back(
        std::chrono::duration<double>(Clock::now() - begin).count());
    for (std::size_t d = 0; d < group.documents.size(); ++d) {
      data[group.documents[d]] += done.loss_sums[d];
      data[count + group.documents[d]] += static_cast<double>(done.counts[d]);
    }
  }
  if (backward) {
    finish_gradients(parameters, rank.world(), rank.replicas(plan.weight_domain));
  }
  if (count > 0) {
    const HostScope control;
    rank.world().all_reduce(sums, {.op = "losses", .part = ""});
  }
  double total = 0;
  for (std::int64_t d = 0; d < count; ++d) {
    result.loss_sums.push_back(data[d]);
    result.counts.push_back(static_cast<std::int64_t>(data[count + d]));
    total += data[d];
  }
  result.loss = total * scale;
  if (!std::isfinite(result.loss)) {
    std::size_t d = 0;
    while (d + 1 < result.loss_sums.size() && std::isfinite(result.loss_sums[d])) {
      ++d;
    }
    throw NotFinite(fmt::format(
        "the loss is {}, first in document {} of the batch ({} tokens); the weights or their sums "
        "are "
        "outside the range of the number format: check the weights, lower the learning rate, or "
        "take "
        "float64",
        result.loss,
        d,
        plan.lengths.empty() ? 0 : plan.lengths[d]));
  }
  return result;
}

}  // namespace paradyse
