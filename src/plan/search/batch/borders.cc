// Which documents of a step stay whole, each on one rank, and which are split over all ranks.
#include <algorithm>
#include <limits>
#include <numeric>

#include "paradyse/plan/planner.h"
#include "src/plan/search/batch/micro_batches.h"

namespace paradyse {

Planner::Estimate Planner::estimate(
    LayerCosts& costs, const LayerChoice& layer, std::int64_t length) {
  const PartCost one = costs.layer(layer, length);
  const PartCost rest = costs.rest(length);
  const std::int64_t layers = task_.model.layers;
  const auto L = static_cast<double>(layers);
  Estimate e{
      .wall = L * one.wall + rest.wall,
      .busy = L * one.busy + rest.busy,
      .saved = layers * one.saved_bytes + rest.saved_bytes,
      .peak = 0};
  e.peak = static_bytes_ + e.saved +
           std::max(layers > 0 ? one.transient_bytes : 0, rest.transient_bytes);
  return e;
}

// Whole documents, longest first to the least busy rank with room, in as few micro-batches as
// memory allows.  A rank's packed documents hold at most what one document of as many tokens would.
// Empty when a document has room nowhere.
Planner::Dealt Planner::deal(
    const std::vector<std::int64_t>& lengths,
    const std::vector<std::int64_t>& documents,
    const LayerChoice& layer) {
  struct Rank {
    double busy = 0;
    std::int64_t tokens = 0;
    std::vector<std::int64_t> documents;
  };
  const auto ranks = static_cast<std::size_t>(task_.ranks);
  std::vector<std::vector<Rank>> micro_batches;
  for (const std::int64_t d : documents) {
    const std::int64_t n = lengths[static_cast<std::size_t>(d)];
    Rank* best = nullptr;
    for (std::vector<Rank>& micro : micro_batches) {
      for (Rank& rank : micro) {
        if ((best == nullptr || rank.busy < best->busy) &&
            fits(estimate(one_, layer, rank.tokens + n).peak, rank.tokens + n)) {
          best = &rank;
        }
      }
      if (best != nullptr) {
        break;
      }
    }
    if (best == nullptr) {
      if (!fits(estimate(one_, layer, n).peak, n)) {
        return {};
      }
      best = &micro_batches.emplace_back(ranks).front();
    }
    best->busy += estimate(one_, layer, n).busy;
    best->tokens += n;
    best->documents.push_back(d);
  }
  Dealt result;
  for (std::vector<Rank>& micro : micro_batches) {
    auto& batch = result.emplace_back();
    for (Rank& rank : micro) {
      std::sort(rank.documents.begin(), rank.documents.end());
      batch.push_back(std::move(rank.documents));
    }
  }
  return result;
}

// The first `long_documents` of `order` are split over all ranks, the rest dealt whole.
std::optional<Plan> Planner::build(
    const std::vector<std::int64_t>& lengths,
    const std::vector<std::int64_t>& order,
    std::size_t long_documents,
    const LayerChoice& short_layer) {
  Plan plan;
  plan.model_name = task_.model.architecture;
  plan.model_sha256 = fingerprint(task_.model);
  plan.layers = task_.model.layers;
  plan.cluster_name = "local-" + std::to_string(task_.ranks);
  plan.ranks = task_.ranks;
  plan.weight_domain = task_.ranks;
  plan.lengths = lengths;
  plan.planner_name = task_.planner;
  plan.planner_space = "short documents whole, long ones over all ranks";
  const auto length = [&](std::int64_t d) { return lengths[static_cast<std::size_t>(d)]; };
  const auto use = [&](const LayerProgram& program) {
    const std::string key = name(program);
    plan.programs[key] = program;
    return key;
  };
  std::vector<int> everyone(static_cast<std::size_t>(task_.ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  for (std::size_t i = 0; i < long_documents; ++i) {
    const std::optional<DocumentPlan> whole = document(length(order[i]));
    if (!whole) {
      return std::nullopt;
    }
    plan.micro_batches.push_back(
        {.groups =
             {{.ranks = everyone,
               .documents = {order[i]},
               .program = use(whole->program),
               .predicted = {}}},
         .predicted = {}});
  }
  if (long_documents == order.size()) {
    return plan;
  }
  const std::vector<std::int64_t> rest(
      order.begin() + static_cast<std::ptrdiff_t>(long_documents), order.end());
  const Dealt dealt = deal(lengths, rest, short_layer);
  if (dealt.empty()) {
    return std::nullopt;
  }
  for (const auto& of_ranks : dealt) {
    // Where the micro-batch leaves room, its layers do with less recomputation.
    std::vector<std::vector<std::int64_t>> groups;
    std::int64_t most_tokens = 0;
    for (const auto& documents : of_ranks) {
      std::vector<std::int64_t>& group = groups.emplace_back();
      for (const std::int64_t d : documents) {
        group.push_back(length(d));
      }
      most_tokens =
          std::max(most_tokens, std::accumulate(group.begin(), group.end(), std::int64_t{0}));
    }
    const std::optional<Fitting> fitting = program_for(one_, most_tokens, groups);
    if (!fitting) {
      return std::nullopt;
    }
    const std::string key = use(fitting->program);
    PlanMicroBatch& micro = plan.micro_batches.emplace_back();
    for (std::size_t r = 0; r < of_ranks.size(); ++r) {
      micro.groups.push_back(
          {.ranks = {static_cast<int>(r)},
           .documents = of_ranks[r],
           .program = key,
           .predicted = {}});
    }
  }
  return plan;
}

Planner::Answer Planner::make(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto length = [&](std::int64_t d) { return lengths[static_cast<std::size_t>(d)]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return length(a) > length(b);
  });
  // Borders that cannot be the fastest are left out, unless all that is faster turns out not to
  // fit.
  for (const bool all_borders : {false, true}) {
    if (std::optional<Plan> plan = best_of_borders(lengths, order, all_borders)) {
      return {.plan = std::move(plan), .why_not = {}};
    }
  }
  // Nothing fits: the longest document is to blame, since any shorter one may run alone like it.
  return {.plan = std::nullopt, .why_not = refusal(order.empty() ? 0 : length(order[0]))};
}

// Every border, every option for the short side, by estimates; then the best by exact bytes.
std::optional<Plan> Planner::best_of_borders(
    const std::vector<std::int64_t>& lengths,
    const std::vector<std::int64_t>& order,
    bool all_borders) {
  const auto length = [&](std::int64_t d) { return lengths[static_cast<std::size_t>(d)]; };
  struct Candidate {
    double seconds;
    std::size_t long_documents;
    LayerChoice short_layer;
  };
  std::vector<Candidate> candidates;
  double long_seconds = 0;
  double least_seconds = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k <= order.size(); ++k) {
    if (k == order.size()) {
      candidates.push_back({long_seconds, k, {}});
      break;
    }
    const std::vector<std::int64_t> rest(
        order.begin() + static_cast<std::ptrdiff_t>(k), order.end());
    for (const LayerChoice& layer : whole_) {
      double sum = long_seconds;
      const Dealt dealt = deal(lengths, rest, layer);
      for (const auto& of_ranks : dealt) {
        std::vector<double> busy;
        busy.reserve(of_ranks.size());
        for (const auto& documents : of_ranks) {
          // a rank without documents still gathers weights: as for one token
          double its = documents.empty() ? estimate(one_, layer, 1).busy : 0;
          for (const std::int64_t d : documents) {
            its += estimate(one_, layer, length(d)).busy;
          }
          busy.push_back(its);
        }
        sum += prediction_.wall_seconds(busy);
      }
      if (!dealt.empty()) {
        candidates.push_back({sum, k, layer});
        least_seconds = std::min(least_seconds, sum);
      }
    }
    if (long_seconds >= least_seconds && !all_borders) {
      break;  // a later border can only cost more
    }
    const std::optional<DocumentPlan> split = document(length(order[k]));
    if (!split) {
      break;  // this document must stay whole, and with it all shorter ones may
    }
    long_seconds += split->seconds;
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return a.seconds < b.seconds;
  });
  for (const Candidate& c : candidates) {
    std::optional<Plan> plan = build(lengths, order, c.long_documents, c.short_layer);
    if (!plan) {
      continue;
    }
    prediction_.predict(*plan);
    const bool all_fit = std::all_of(
        plan->micro_batches.begin(), plan->micro_batches.end(), [&](const PlanMicroBatch& micro) {
          return std::all_of(micro.groups.begin(), micro.groups.end(), [&](const PlanGroup& group) {
            return fits(group.predicted.bytes->total(), fullest(*plan, micro));
          });
        });
    if (all_fit) {
      return plan;
    }
  }
  return std::nullopt;
}

}  // namespace paradyse
