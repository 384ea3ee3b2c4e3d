#include "paradyse/run/gradients.h"

#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/data.h"
#include "src/plan/cost/whole_weights.h"
#include "src/plan/plan/group_timeline.h"
#include "src/run/execute/gather.h"

namespace paradyse {
namespace {

void check_ids(
    TokenView ids, std::int64_t vocabulary, const char* what, std::int32_t least, std::size_t d) {
  for (const std::int32_t id : ids) {
    if (id < least || id >= vocabulary) {
      throw std::invalid_argument(fmt::format(
          "document {} of the batch has the {} {}; the model's vocabulary has {} entries, numbered "
          "from 0",
          d,
          what,
          id,
          vocabulary));
    }
  }
}

}  // namespace

GradientAnswer gradients(const GradientRequest& request) {
  const Plan& plan = *request.plan;
  GradientAnswer answer;
  const BatchSizes sizes = sizes_of(plan);
  for (std::size_t i = 0; i < request.items.size(); ++i) {
    const Item& item = request.items[i];
    if (request.model.of_samples()) {
      check_sample(item, request.model, i < sizes.dims.size() ? sizes.dims[i] : plan.dims);
    } else {
      check_ids(item.tokens, request.model.vocab(), "token id", 0, i);
      check_ids(item.labels, request.model.vocab(), "label", kNoLabel, i);
    }
  }
  request.backend->run(plan.ranks, [&](Communicators& communicators) {
    RankSession session(
        communicators,
        request.model,
        {.dtype = request.dtype,
         .weight_domain = plan.weight_domain,
         .memory_bytes = request.memory_per_rank,
         .device = request.device,
         .attention_dense_from = request.attention_dense_from,
         .trace = request.trace});
    Parameters& parameters = session.parameters();
    request.fill(parameters);
    // float16 has no numbers below 6e-8: gradients are made 1024 times as large.
    const double loss_scale = request.dtype == Dtype::float16 ? 1024 : 1;
    const BatchResult batch = session.play(
        plan,
        {.items = request.items, .dropout_seed = request.dropout_seed},
        /*backward=*/true,
        loss_scale);
    communicators.world().barrier({.op = "batch done", .part = ""});
    const Counters counters = communicators.counters();
    const std::vector<std::vector<std::int64_t>> reports = gather(
        {counters.bytes_sent, counters.messages, batch.saved_bytes, session.memory().peak_bytes()},
        communicators.world());
    if (session.rank() == 0) {
      answer.batch = batch;
      for (const auto& report : reports) {
        answer.ranks.push_back(
            {.bytes_sent = report[0],
             .messages = report[1],
             .saved_bytes = report[2],
             .peak_bytes = report[3]});
      }
    }
    if (loss_scale != 1) {
      parameters.scale_gradients(1 / loss_scale);
    }
    if (session.rank() < plan.weight_domain) {
      Accountant answers(
          "answer of rank " + std::to_string(session.rank()));  // no part of the run's budget
      const MemoryScope outside(answers, Category::communication, "collected gradients");
      collect(
          parameters,
          Which::gradients,
          session.domain(),
          [&](const std::string& name, const at::Tensor& tensor) {
            answer.gradients[name] = tensor.clone();
          });
    }
  });
  return answer;
}

namespace {

// all_reduce is a reduce-scatter and an all-gather of even pieces.
Traffic all_reduce_traffic(std::int64_t elements, std::int64_t width, int rank, int ranks) {
  const Layout pieces = matrix("rows", {elements, 1}, even_cuts(elements, ranks));
  const Sent out = sent(pieces, pieces.whole(), ranks, false)[idx(rank)];
  const Sent in = sent(pieces, pieces.whole(), ranks, true)[idx(rank)];
  return {
      .bytes = (out.elements + in.elements) * width,
      .messages = out.messages + in.messages,
      .collectives = 2};
}

}  // namespace

void expect_finite(const GradientAnswer& answer) {
  for (const auto& [name, gradient] : answer.gradients) {
    if (!at::isfinite(gradient).all().item<bool>()) {
      throw std::runtime_error(
          "the gradient of " + name +
          " has values that are not finite; the weights or their sums are outside the range of the "
          "data type: check the weights, or take --dtype float64");
    }
  }
}

RankReport predicted_report(
    const Plan& plan, const Model& model, int rank, Precision precision, Keeps keeps) {
  const std::int64_t base = static_bytes(
      model, plan.weight_domain, rank % plan.weight_domain, precision, keeps, plan.messages);
  RankReport report;
  Traffic sent;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    const RankPart part = rank_part(plan, micro, model, rank, true);
    const Footprint held = footprint(part.timeline, part.seat, precision, base);
    report.saved_bytes = std::max(report.saved_bytes, held.saved_bytes);
    report.peak_bytes = std::max(report.peak_bytes, held.peak_bytes);
    sent += totals(part.timeline, part.seat, precision).traffic;
  }
  if (whole_weights(plan)) {
    sent += step_traffic(model, plan.weight_domain, rank % plan.weight_domain, precision, keeps);
  }
  if (plan.ranks > 1) {
    // plan hash (64 int64 from rank 0), gradients of vectors and of replicas, losses and counts
    if (rank == 0) {
      sent += {.bytes = std::int64_t{64} * 8 * (plan.ranks - 1), .messages = plan.ranks - 1};
    }
    std::int64_t vectors = 0;
    std::int64_t summed = 0;  // elements beside what is kept: the rank's piece of a sum
    const int replicas = plan.ranks / plan.weight_domain;
    for (const ModelPart& part : model.parts) {
      const PartWeights weights = part.part->weights(plan.weight_domain);
      std::int64_t own = 0;
      for (const Vector& vector : weights.vectors) {
        own += vector.frozen ? 0 : vector.size;
      }
      vectors += own;
      const std::int64_t stack = weights.trained_elements(rank % plan.weight_domain) - own;
      if (replicas > 1 && stack > 0) {
        const int replica = rank / plan.weight_domain;
        sent += all_reduce_traffic(stack, precision.statistic, replica, replicas);
        summed = std::max(summed, size(even_cuts(stack, replicas)[idx(replica)]));
      }
    }
    sent += all_reduce_traffic(vectors, precision.statistic, rank, plan.ranks);
    // vectors lie side by side for it
    summed = std::max(summed, vectors + size(even_cuts(vectors, plan.ranks)[idx(rank)]));
    const std::int64_t kept =
        static_bytes(model, plan.weight_domain, rank % plan.weight_domain, precision, keeps);
    report.peak_bytes = std::max(report.peak_bytes, kept + summed * precision.statistic);
    sent +=
        all_reduce_traffic(2 * static_cast<std::int64_t>(plan.lengths.size()), 8, rank, plan.ranks);
  }
  report.bytes_sent = sent.bytes;
  report.messages = sent.messages;
  return report;
}

}  // namespace paradyse
