#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "paradyse/plan/detail/costed_parts.h"
#include "paradyse/plan/detail/index.h"
#include "src/run/execute/executor.h"
#include "src/run/execute/session_state.h"
#include "src/run/execute/trace.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void expect_fitting(const Plan& plan, const Batch& batch, const Parameters& parameters, int ranks) {
  const Model& model = parameters.model();
  if (plan.ranks != ranks || plan.weight_domain != parameters.domain()) {
    throw std::invalid_argument(fmt::format(
        "the plan is for {} ranks with a sharding group (weight_domain) of {}, but there are {} "
        "with one of {}; "
        "make a plan for these",
        plan.ranks,
        plan.weight_domain,
        ranks,
        parameters.domain()));
  }
  if (parameters.device().is_cpu() && plan.tiles.products == 0 &&
      at::isReducedFloatingType(parameters.types().weight)) {
    throw std::invalid_argument(
        "the plan's 'tiles' are those of a GPU ('products' is 0), but this is a CPU, which needs "
        "memory to round products of narrow types; leave 'tiles' out of the plan file, or run it "
        "with --device cuda");
  }
  const bool of_samples = model.of_samples();
  if (const std::size_t samples = of_samples ? batch.items.size() : 0;
      !batch.predictions.empty() && batch.predictions.size() != samples) {
    throw std::invalid_argument(fmt::format(
        "there are {} tensors for the predictions of {} samples",
        batch.predictions.size(),
        samples));
  }
  if (batch.items.size() != plan.lengths.size()) {
    throw std::invalid_argument(fmt::format(
        "the plan is for {} {}, but there are {}",
        plan.lengths.size(),
        of_samples ? "samples" : "documents",
        batch.items.size()));
  }
  const BatchSizes sizes = sizes_of(plan);
  for (std::size_t i = 0; i < batch.items.size(); ++i) {
    const Item& item = batch.items[i];
    if (of_samples) {
      check_sizes(item, model, sizes.dims.empty() ? plan.dims : sizes.dims[i]);
    } else if (model.masked_lm && item.labels.empty() && !item.tokens.empty()) {
      throw std::invalid_argument(fmt::format(
          "the model predicts masked tokens: it takes labels for each of the {} documents, and "
          "document {} has none; give data with {{\"tokens\": [...], \"labels\": [...]}}",
          plan.lengths.size(),
          i));
    }
  }
  for (std::size_t d = 0; d < plan.lengths.size(); ++d) {
    if (!model.limits.longest.allows(plan.lengths[d])) {
      throw std::invalid_argument(fmt::format(
          "document {} of the batch has {} tokens; {}: cut it",
          d,
          plan.lengths[d],
          model.limits.longest.why));
    }
  }
}

// All ranks must hold the same plan before any of them acts on it.
void agree(const std::string& mine, Communicator& world) {
  if (world.size() == 1) {
    return;
  }
  const HostScope control;
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

// A rank that has little to do waits for those that have more, and predictions may be wrong.
std::chrono::milliseconds longest_wait(const Plan& plan) {
  constexpr double kTimes = 4;
  constexpr double kMost = 86'400e3;  // whatever somebody wrote into a plan file
  return std::chrono::milliseconds(static_cast<std::int64_t>(
      std::clamp(kTimes * 1e3 * plan.predicted.seconds.value_or(0), 0.0, kMost)));
}

// Of a batch: tokens that are scored against a label that counts, or what samples are scored by.
std::int64_t predicted_tokens(const Batch& batch, const Model& model) {
  if (batch.predicted_tokens) {
    return *batch.predicted_tokens;
  }
  std::int64_t count = 0;
  for (const Item& item : batch.items) {
    count += scored(item, model);
  }
  return count;
}

void expect_finite(const BatchResult& result, const Plan& plan) {
  if (std::isfinite(result.loss)) {
    return;
  }
  std::vector<std::int64_t> documents;
  for (std::size_t d = 0; d < result.loss_sums.size(); ++d) {
    if (!std::isfinite(result.loss_sums[d])) {
      documents.push_back(static_cast<std::int64_t>(d));
    }
  }
  const std::size_t d = documents.empty() ? 0 : idx(documents.front());
  throw NotFinite(
      fmt::format(
          "the loss is {}, first in document {} of the batch ({} tokens); the weights or their "
          "sums "
          "are outside the range of the data type: check the weights, lower the learning rate, or "
          "take "
          "float64",
          result.loss,
          d,
          plan.lengths.empty() ? 0 : plan.lengths[d]),
      std::move(documents));
}

}  // namespace

std::optional<WholeWeights> RankSession::State::whole_for(const Plan& plan, bool gradients) {
  if (!whole_weights(plan)) {
    return std::nullopt;
  }
  if (!stacks) {
    stacks = whole_stacks(parameters.model(), options.weight_domain);
  }
  return WholeWeights(parameters, *stacks, gradients, communicators.group(domain_ranks));
}

RankSession::State::Played RankSession::State::play(
    const Plan& plan,
    const PlanMicroBatch& micro,
    std::vector<PartParameters>& weights,
    const Batch& batch,
    std::span<const std::int64_t> first_tokens,
    bool backward,
    double loss_scale,
    double& switching_seconds) {
  const auto begin = Clock::now();
  const RankPlace place = rank_place(plan, micro, communicators.rank());
  const PlanGroup& group = micro.groups[place.group];
  const Timeline& timeline = programs.of(group_task(plan, group, backward), parameters.model());
  switching_seconds += seconds_since(begin);
  note("build the programs", "switch", begin);
  std::vector<Item> items;
  std::vector<at::Tensor> predictions;
  std::vector<std::int64_t> firsts;
  for (const std::int64_t document : group.documents) {
    const auto d = idx(document);
    items.push_back(batch.items[d]);
    firsts.push_back(first_tokens[d]);
    if (!batch.predictions.empty()) {
      predictions.push_back(batch.predictions[d]);
    }
  }
  const Program& last = timeline.back().program();  // it ends in the loss
  MicroBatch tokens =
      parameters.model().of_samples()
          ? micro_batch(
                last.documents,
                parameters.model(),
                std::move(items),
                last.values[idx(last.reads.front().value)].layout,
                place.seat.group_rank,
                group.documents)
          : micro_batch(
                last.documents, items, place.seat.group_rank, firsts, parameters.model().masked_lm);
  tokens.dropout_seed = batch.dropout_seed;
  tokens.predictions = std::move(predictions);
  OperationSeconds domain_seconds;
  ObservedCommunicators of_domain(communicators, domain_seconds);
  OperationSeconds group_seconds;
  ObservedCommunicators of_group(communicators, group_seconds);
  const std::vector<int> alone = {communicators.rank()};
  const RankContext context{
      .seat = place.seat,
      .group = options.device.is_cpu() ? &of_group.group(group.ranks)
                                       : &communicators.group(group.ranks),
      .domain = &of_domain.group(whole_weights(plan) ? alone : domain_ranks),
      .memory = &memory,
      .kernels = &kernels,
      .trace = options.trace,
      .world_rank = communicators.rank(),
      .breakdown = options.breakdown,
      .part_times = timing ? &part_times : options.part_times,
      .attention_dense_from = options.attention_dense_from};
  MicroBatchResult result = run_micro_batch(
      timeline,
      tokens,
      context,
      {.parts = weights, .types = parameters.types(), .device = parameters.device()},
      loss_scale,
      backward);
  HostRead losses(result.losses);
  std::vector<std::size_t> places;
  if (timing) {
    const std::vector<CostedPart> costed = costed_parts(plan.programs.at(group.program));
    places.reserve(timeline.size());
    for (const ScheduledPart& part : timeline) {
      places.push_back(place_among(costed, costed_part(part)));
    }
  }
  return {
      .of_group = place.group,
      .tokens = std::move(tokens),
      .result = std::move(result),
      .losses = std::move(losses),
      .domain = std::move(domain_seconds),
      .group = std::move(group_seconds),
      .places = std::move(places)};
}

bool RankSession::State::times_this(bool backward) const {
  const std::int64_t every = options.times_parts;
  return backward && every > 0 && (trained_with < every || trained_with % every == 0);
}

std::vector<std::vector<double>> RankSession::State::part_seconds(
    const Plan& plan, const std::vector<Played>& played) {
  std::vector<std::vector<double>> all;
  if (!timing) {
    return all;
  }
  std::size_t most = 0;
  for (const auto& [name, program] : plan.programs) {
    most = std::max(most, costed_parts(program).size());
  }
  const std::vector<PartTimes::OfMicroBatch> times = part_times.take();
  for (std::size_t m = 0; m < played.size(); ++m) {
    std::vector<double>& seconds = all.emplace_back(most);
    for (std::size_t part = 0; part < played[m].places.size(); ++part) {
      const auto& phases = times.at(m).wall.at(part);
      seconds[played[m].places[part]] += std::accumulate(phases.begin(), phases.end(), 0.0);
    }
  }
  return all;
}

BatchResult RankSession::play(
    const Plan& plan, const Batch& batch, bool backward, double loss_scale) {
  expect_fitting(plan, batch, parameters(), world().size());
  const MemoryScope scope(memory(), Category::communication, "agreement");
  communicators().allow(longest_wait(plan));
  BatchResult result;
  const auto start = Clock::now();
  result.plan_sha256 = state_->hash_of(plan);
  agree(result.plan_sha256, world());
  result.switching_seconds = seconds_since(start);
  note("agree on the plan", "switch", start);

  result.predicted_tokens = predicted_tokens(batch, parameters().model());
  const double scale =
      result.predicted_tokens == 0 ? 0.0 : 1.0 / static_cast<double>(result.predicted_tokens);
  std::vector<std::int64_t> first_tokens;  // of every document of the batch
  std::int64_t tokens = 0;
  for (const std::int64_t length : plan.lengths) {
    first_tokens.push_back(tokens);
    tokens += length;
  }

  const auto count = static_cast<std::int64_t>(plan.lengths.size());
  const at::Tensor sums = [&] {  // loss sums, then counts
    const HostScope control;
    return at::zeros({2, count}, at::kDouble);
  }();
  auto* data = sums.mutable_data_ptr<double>();
  state_->programs.begin_batch();
  const std::int64_t built_before = state_->programs.built();
  for (const at::Tensor& prediction : batch.predictions) {
    prediction.zero_();
  }
  state_->timing = state_->times_this(backward);
  state_->part_times = {};  // of a batch that was not done
  Stopwatch of_step;        // what is exchanged once
  of_step.start();
  const auto gathering = Clock::now();
  std::optional<WholeWeights> gathered = state_->whole_for(plan, backward);
  of_step.stop();
  if (gathered) {
    note("gather the weights of a step", "communication", gathering);
  }
  std::vector<PartParameters>& weights = gathered ? gathered->parts() : parameters().parts();
  std::vector<RankSession::State::Played> played;  // whose losses are on their way
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    Stopwatch whole;
    whole.start();
    played.push_back(state_->play(
        plan,
        micro,
        weights,
        batch,
        first_tokens,
        backward,
        scale * loss_scale,
        result.switching_seconds));
    whole.stop();
    played.back().whole = std::move(whole);
    result.saved_bytes = std::max(result.saved_bytes, played.back().result.saved_bytes);
  }
  result.programs_built = state_->programs.built() - built_before;
  result.part_seconds = state_->part_seconds(plan, played);
  if (gathered && backward) {
    const auto summing = Clock::now();
    of_step.start();
    gathered->sum_gradients(domain());
    of_step.stop();
    note("sum the gradients of a step", "communication", summing);
  }
  gathered.reset();
  if (backward) {
    finish_gradients(parameters(), world(), replicas());
  }
  const bool whole_step = whole_weights(plan);
  for (std::size_t m = 0; m < played.size(); ++m) {
    RankSession::State::Played& one = played[m];
    result.micro_batch_seconds.push_back(one.whole.seconds());
    if (state_->options.device.is_cpu()) {
      result.computed_seconds += one.whole.seconds() - one.domain.seconds() - one.group.seconds();
    }
    result.domain_seconds.push_back(
        one.domain.seconds() + (whole_step && m + 1 == played.size() ? of_step.seconds() : 0));
    const LossSums of = loss_sums(one.tokens, one.losses.get(), one.result.numbers_a_row);
    const std::vector<std::int64_t>& documents =
        plan.micro_batches[m].groups[one.of_group].documents;
    for (std::size_t d = 0; d < documents.size(); ++d) {
      data[documents[d]] += of.losses[d];
      data[count + documents[d]] += static_cast<double>(of.counts[d]);
    }
  }
  if (count > 0) {
    const HostScope control;
    world().all_reduce(sums, {.op = "losses", .part = ""});
  }
  for (const at::Tensor& prediction : batch.predictions) {  // a row is one rank's
    const HostScope control;
    world().all_reduce(prediction, {.op = "predictions", .part = ""});
  }
  state_->trained_with += backward ? 1 : 0;
  double total = 0;
  for (std::int64_t d = 0; d < count; ++d) {
    result.loss_sums.push_back(data[d]);
    result.counts.push_back(static_cast<std::int64_t>(data[count + d]));
    total += data[d];
  }
  result.loss = total * scale;
  if (state_->options.trace != nullptr) {
    state_->options.trace->settle(rank());
  }
  expect_finite(result, plan);
  return result;
}

}  // namespace paradyse
