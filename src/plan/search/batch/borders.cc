// Short documents are packed and dealt to the ranks whole (DataZ), each long one is split over all
// ranks; where the border lies is found by trying documents as the longest short one (of very many
// the longest and some others), or only with all on one side of it, which is soon done.  What each
// layer runs is the layer planner's (layer_planner.h): the fastest mix that fits.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/largest.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/plan/search/batch/micro_batches.h"
#include "src/plan/search/batch/table.h"

namespace paradyse {
namespace {

// Which borders are tried, and what counts as room for whole documents.
enum class Effort {
  some,   // those that can be the fastest, by estimates of layers that are alike
  every,  // all of them
  exact   // a document alone on its rank also where only the layer planner finds layers that fit
};

// Borders that are tried, about, of more documents, each of which deals all that are whole: every
// one among the longest, where the best mostly lies, and some of the others.
constexpr std::size_t kEveryBorder = 256;
constexpr std::size_t kOtherBorders = 256;

// What the documents of a batch take whole on one rank, all layers alike: what
// DocumentPlans::estimate() says, found once for all borders.
class WholeCosts {
 public:
  WholeCosts(
      DocumentPlans& documents,
      const LayerChoice& layer,
      const std::vector<std::int64_t>& lengths,
      Caps caps,
      Effort effort)
      : documents_(documents),
        layer_(layer),
        caps_(caps),
        effort_(effort),
        layers_(documents.task().model.layers) {
    LayerCosts& costs = documents.costs().of(1);
    const std::vector<PartCost> parts_once = costs.predicted_parts_once(layer);
    const PartCost rest_once = costs.predicted_rest_once();
    std::map<std::int64_t, Known> found;  // [length]
    for (const std::int64_t n : lengths) {
      const auto [known, fresh] = found.try_emplace(n);
      if (fresh) {
        Known& one = known->second;
        const std::vector<PartCost> parts = costs.predicted_parts(layer, n);
        const std::vector<double> factors = costs.factors(layer, n);
        for (std::size_t p = 0; p < parts.size(); ++p) {
          const double busy = std::max(0.0, parts[p].busy - parts_once[p].busy);
          one.busy.push_back(static_cast<double>(layers_) * busy);
          one.factors.push_back(factors[p]);
        }
        one.busy.push_back(std::max(0.0, costs.predicted_rest(n).busy - rest_once.busy));
        one.factors.push_back(costs.rest_factor(n));
      }
      known_.push_back(known->second);
    }
    once_ = documents.once(layer, 1).busy;
    // Bytes grow with tokens, unless lengths were held to less.
    if (documents.held_to().empty() || caps == Caps::passed) {
      most_tokens_ = largest_that(
          [&](std::int64_t tokens) { return estimated_to_fit(tokens); },
          std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
    }
  }

  // Seconds of document `d` of the batch, beside once(), on a rank whose longest is `longest`.
  [[nodiscard]] double busy(std::int64_t d, std::int64_t longest) const {
    const std::vector<double>& busy = known_[idx(d)].busy;
    return std::inner_product(busy.begin(), busy.end(), known_[idx(longest)].factors.begin(), 0.0);
  }
  // Of every rank, with or without documents: it gathers weights.
  [[nodiscard]] double once() const { return once_; }
  [[nodiscard]] bool fits(std::int64_t tokens) const {
    return most_tokens_ ? tokens <= *most_tokens_ : estimated_to_fit(tokens);
  }
  // Of a document that has a rank to itself.
  [[nodiscard]] bool fits_alone(std::int64_t length) {
    if (fits(length) || effort_ != Effort::exact) {
      return fits(length);
    }
    const auto [known, fresh] = alone_.try_emplace(length);
    if (fresh) {
      std::vector<std::vector<std::int64_t>> ranks(idx(documents_.task().ranks));
      ranks.front() = {length};
      known->second = documents_.program_for(length, 1, ranks, caps_).has_value();
    }
    return known->second;
  }

 private:
  // [part of a layer], then the rest
  struct Known {
    std::vector<double> busy = {};     // seconds of all layers beside once(), by the time model
    std::vector<double> factors = {};  // where it is the longest of its rank
  };

  [[nodiscard]] bool estimated_to_fit(std::int64_t tokens) const {
    return documents_.fits(documents_.estimate(layer_, tokens, 1).peak, tokens, caps_);
  }

  DocumentPlans& documents_;
  const LayerChoice& layer_;
  Caps caps_;
  Effort effort_;
  std::int64_t layers_;
  std::vector<Known> known_;            // [document]
  std::map<std::int64_t, bool> alone_;  // [length] beyond what estimates have room for
  double once_ = 0;
  std::optional<std::int64_t> most_tokens_;
};

class Borders {
 public:
  enum class Tries { every_border, none };  // none: all documents whole, or all split
  Borders(DocumentPlans& documents, Tries tries) : documents_(documents), tries_(tries) {}

  BatchPlanner::Answer make(const std::vector<std::int64_t>& lengths, Caps caps);

 private:
  DocumentPlans& documents() { return documents_; }
  [[nodiscard]] const PlanningTask& task() const { return documents_.task(); }

  // The documents of every rank, of every micro-batch.
  using Dealt = std::vector<std::vector<std::vector<std::int64_t>>>;
  Dealt deal(
      const std::vector<std::int64_t>& lengths,
      const std::vector<std::int64_t>& whole,
      WholeCosts& costs);
  std::optional<Plan> build(
      const std::vector<std::int64_t>& lengths,
      const std::vector<std::int64_t>& order,
      std::size_t long_documents,
      WholeCosts* short_costs,
      Caps caps);
  std::optional<Plan> best_of_borders(
      const std::vector<std::int64_t>& lengths,
      const std::vector<std::int64_t>& order,
      Effort effort,
      Caps caps);

  DocumentPlans& documents_;
  Tries tries_;
};

// Whole documents, longest first to the least busy rank with room, in as few micro-batches as
// memory allows.  A rank's packed documents hold at most what one document of as many tokens would.
// Empty when a document has room nowhere.
Borders::Dealt Borders::deal(
    const std::vector<std::int64_t>& lengths,
    const std::vector<std::int64_t>& whole,
    WholeCosts& costs) {
  struct Rank {
    double busy = 0;
    std::int64_t tokens = 0;
    std::vector<std::int64_t> documents;
  };
  const auto ranks = idx(task().ranks);
  std::vector<std::vector<Rank>> micro_batches;
  for (const std::int64_t d : whole) {
    const std::int64_t n = lengths[idx(d)];
    Rank* best = nullptr;
    for (std::vector<Rank>& micro : micro_batches) {
      for (Rank& rank : micro) {
        if ((best == nullptr || rank.busy < best->busy) &&
            (rank.documents.empty() ? costs.fits_alone(n) : costs.fits(rank.tokens + n))) {
          best = &rank;
        }
      }
      if (best != nullptr) {
        break;
      }
    }
    if (best == nullptr) {
      if (!costs.fits_alone(n)) {
        return {};
      }
      best = &micro_batches.emplace_back(ranks).front();
    }
    best->busy += costs.busy(d, best->documents.empty() ? d : best->documents[0]);
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
std::optional<Plan> Borders::build(
    const std::vector<std::int64_t>& lengths,
    const std::vector<std::int64_t>& order,
    std::size_t long_documents,
    WholeCosts* short_costs,
    Caps caps) {
  Plan plan = empty_plan(
      task(),
      lengths,
      tries_ == Tries::none ? "all documents whole or all over all ranks"
                            : "short documents whole, long ones over all ranks");
  const auto length = [&](std::int64_t d) { return lengths[idx(d)]; };
  std::vector<int> everyone(idx(task().ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  for (std::size_t i = 0; i < long_documents; ++i) {
    const std::optional<DocumentPlan> whole =
        documents().best(length(order[i]), task().ranks, caps);
    if (!whole) {
      return std::nullopt;
    }
    plan.micro_batches.push_back(
        {.groups =
             {{.ranks = everyone,
               .documents = {order[i]},
               .program = use(plan, whole->program),
               .predicted = {}}},
         .predicted = {}});
  }
  if (long_documents == order.size()) {
    return plan;
  }
  const std::vector<std::int64_t> rest(
      order.begin() + static_cast<std::ptrdiff_t>(long_documents), order.end());
  const Dealt dealt = deal(lengths, rest, *short_costs);
  if (dealt.empty()) {
    return std::nullopt;
  }
  for (const auto& of_ranks : dealt) {
    // Where the micro-batch leaves room, its layers do with less recomputation.
    std::vector<std::vector<std::int64_t>> groups;
    std::int64_t most_tokens = 0;
    for (const auto& of_rank : of_ranks) {
      std::vector<std::int64_t>& group = groups.emplace_back();
      for (const std::int64_t d : of_rank) {
        group.push_back(length(d));
      }
      most_tokens =
          std::max(most_tokens, std::accumulate(group.begin(), group.end(), std::int64_t{0}));
    }
    const std::optional<DocumentPlans::Fitting> fitting =
        documents().program_for(most_tokens, 1, groups, caps);
    if (!fitting) {
      return std::nullopt;
    }
    const std::string key = use(plan, fitting->program);
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

BatchPlanner::Answer Borders::make(const std::vector<std::int64_t>& lengths, Caps caps) {
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto length = [&](std::int64_t d) { return lengths[idx(d)]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return length(a) > length(b);
  });
  // More effort only where less finds nothing that fits.
  for (const Effort effort : {Effort::some, Effort::every, Effort::exact}) {
    if (std::optional<Plan> plan = best_of_borders(lengths, order, effort, caps)) {
      return {.plan = std::move(plan), .why_not = {}};
    }
  }
  // Nothing fits: the longest document is to blame, since any shorter one may run alone like it.
  return {
      .plan = std::nullopt, .why_not = documents().refusal(order.empty() ? 0 : length(order[0]))};
}

// Every border, every option for the short side, by estimates; then the best by exact bytes.
std::optional<Plan> Borders::best_of_borders(
    const std::vector<std::int64_t>& lengths,
    const std::vector<std::int64_t>& order,
    Effort effort,
    Caps caps) {
  const auto length = [&](std::int64_t d) { return lengths[idx(d)]; };
  struct Candidate {
    double seconds;
    std::size_t long_documents;
    WholeCosts* short_costs;  // null: there are none
  };
  std::vector<int> ranks(idx(documents().task().ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<WholeCosts> whole;
  whole.reserve(documents().whole().size());
  for (const LayerChoice& layer : documents().whole()) {
    whole.emplace_back(documents(), layer, lengths, caps, effort);
  }
  std::vector<Candidate> candidates;
  double long_seconds = 0;
  double least_seconds = std::numeric_limits<double>::infinity();
  const std::size_t every = 1 + order.size() / kOtherBorders;
  for (std::size_t k = 0; k <= order.size(); ++k) {
    if (k == order.size()) {
      candidates.push_back({long_seconds, k, nullptr});
      break;
    }
    const bool tried =
        (k < kEveryBorder || k % every == 0) && (tries_ == Tries::every_border || k == 0);
    const std::vector<std::int64_t> rest(
        tried ? order.begin() + static_cast<std::ptrdiff_t>(k) : order.end(), order.end());
    for (WholeCosts& costs : tried ? std::span(whole) : std::span<WholeCosts>()) {
      double sum = long_seconds;
      const Dealt dealt = deal(lengths, rest, costs);
      for (const auto& of_ranks : dealt) {
        std::vector<GroupSeconds> busy;
        busy.reserve(of_ranks.size());
        for (const auto& of_rank : of_ranks) {
          double its = costs.once();
          const std::int64_t longest =
              of_rank.empty() ? 0 : *std::ranges::max_element(of_rank, {}, length);
          for (const std::int64_t d : of_rank) {
            its += costs.busy(d, longest);
          }
          busy.push_back({.ranks = {&ranks[busy.size()], 1}, .seconds = its});
        }
        sum += documents().prediction().wall_seconds(busy);
      }
      if (!dealt.empty()) {
        candidates.push_back({sum, k, &costs});
        least_seconds = std::min(least_seconds, sum);
      }
    }
    if (long_seconds >= least_seconds && effort == Effort::some) {
      break;  // a later border can only cost more
    }
    const std::optional<DocumentPlan> split =
        documents().best(length(order[k]), task().ranks, caps);
    if (!split) {
      break;  // this document must stay whole, and with it all shorter ones may
    }
    long_seconds += split->seconds;
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return a.seconds < b.seconds;
  });
  for (const Candidate& c : candidates) {
    std::optional<Plan> plan = build(lengths, order, c.long_documents, c.short_costs, caps);
    if (!plan) {
      continue;
    }
    if (predicted_to_fit(documents(), *plan, caps)) {
      return plan;
    }
  }
  return std::nullopt;
}

template <Borders::Tries tries>
class Planner final : public DocumentPlanner {
 public:
  using DocumentPlanner::DocumentPlanner;

 private:
  Answer make(const std::vector<std::int64_t>& lengths, Caps caps) override {
    return Borders(documents(), tries).make(lengths, caps);
  }
};

}  // namespace

BatchPlanner::Answer plan_by_borders(
    DocumentPlans& documents, const std::vector<std::int64_t>& lengths, Caps caps) {
  return Borders(documents, Borders::Tries::every_border).make(lengths, caps);
}

std::vector<int> one_or_all(int ranks) {
  return ranks == 1 ? std::vector{1} : std::vector{1, ranks};
}

BatchPlannerRow borders() {
  return {
      .name = "borders",
      .summary = "short documents on one rank each, long ones split over all ranks",
      .make = [](PlanningTask task) -> std::unique_ptr<BatchPlanner> {
        return std::make_unique<Planner<Borders::Tries::every_border>>(std::move(task));
      },
      .sizes = one_or_all};
}

BatchPlannerRow whole_or_split() {
  return {
      .name = "whole-or-split",
      .summary = "all documents on one rank each, or all split over all ranks",
      .make = [](PlanningTask task) -> std::unique_ptr<BatchPlanner> {
        return std::make_unique<Planner<Borders::Tries::none>>(std::move(task));
      },
      .sizes = one_or_all};
}

}  // namespace paradyse
