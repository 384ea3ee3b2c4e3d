#include "paradyse/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace paradyse {
namespace {

// Rungs of the ladder: a quarter of a doubling apart.
constexpr double kRungsPerDoubling = 4;

std::int64_t rung(int i) {
  return static_cast<std::int64_t>(std::llround(std::exp2(i / kRungsPerDoubling)));
}

std::vector<LayerChoice> all_layers(const ModelShape& model, const LayerChoice& choice) {
  return std::vector<LayerChoice>(static_cast<std::size_t>(model.layers), choice);
}

std::string mebibytes(std::int64_t bytes) {
  return std::to_string(bytes >> 20) + "." + std::to_string((bytes >> 10) % 1024 * 10 / 1024) +
         " MiB";
}

}  // namespace

std::string Option::name() const {
  std::string text = layer.attention + "+" + layer.mlp;
  if (layer.attention_recompute != Recompute::none) {
    text += ", recompute " + to_string(layer.attention_recompute);
  }
  return text;
}

Planner::Planner(PlanningTask task) : task_(std::move(task)) {
  for (int r = 0; r < task_.ranks; ++r) {
    static_bytes_ = std::max(
        static_bytes_,
        stored_elements(task_.model, task_.ranks, r) * task_.static_bytes_per_element);
  }
  if (!task_.attention.empty()) {
    strategy(task_.attention);  // refuses unknown names
  }
  std::vector<Verb> verbs(std::begin(kVerbs), std::end(kVerbs));
  if (!task_.mlp.empty()) {
    verbs = {verb(task_.mlp)};
  }
  std::vector<Recompute> levels(std::begin(kRecomputeLevels), std::end(kRecomputeLevels));
  if (!task_.recompute.empty()) {
    levels = {recompute(task_.recompute)};
  }
  for (const Strategy& s : strategies()) {
    if (!task_.attention.empty() && s.name != task_.attention) {
      continue;
    }
    for (const Verb v : verbs) {
      // on one rank all strategies compute alike: whole documents need no second name
      const bool alone = s.one_rank;
      if (v != Verb::gather && alone && task_.ranks > 1) {
        continue;
      }
      if (task_.ranks == 1 && !alone && task_.attention.empty()) {
        continue;
      }
      for (const Recompute level : levels) {
        options_.push_back({{s.name, to_string(v), level, level}, alone});
      }
    }
  }
  if (options_.empty()) {
    throw std::invalid_argument(
        "planner: no strategy is left with attention '" + task_.attention + "' and mlp '" +
        task_.mlp + "' on " + std::to_string(task_.ranks) +
        " ranks; weights can be held only by all ranks together");
  }
}

bool Planner::fits(std::int64_t bytes) const {
  return task_.memory_per_rank == 0 || bytes <= task_.memory_per_rank;
}

double Planner::wall_seconds(const std::vector<double>& busy) const {
  const double sum = std::accumulate(busy.begin(), busy.end(), 0.0);
  return std::max(*std::max_element(busy.begin(), busy.end()), sum / task_.machine.cores);
}

const Planner::Estimate& Planner::at(std::size_t option, std::int64_t length) {
  const auto found = folded_.find({option, length});
  if (found != folded_.end()) {
    return found->second;
  }
  const Option& o = options_[option];
  const int ranks = o.one_rank ? 1 : task_.ranks;
  const Task task{
      .model = &task_.model,
      .tokens = token_layout({length}, ranks, task_.model.causal),
      .domain = task_.ranks};
  const Timeline parts = timeline(task, all_layers(task_.model, o.layer), task_.training);
  Estimate estimate;
  std::vector<double> busy;
  for (int r = 0; r < ranks; ++r) {
    const Seat seat{.group_rank = r, .domain_rank = r};
    busy.push_back(seconds(totals(parts, seat, task_.precision), task_.machine));
    const Footprint held = footprint(parts, seat, task_.precision, static_bytes_);
    estimate.saved = std::max(estimate.saved, held.saved_bytes);
    estimate.peak = std::max(estimate.peak, held.peak_bytes);
  }
  estimate.busy = *std::max_element(busy.begin(), busy.end());
  estimate.wall = wall_seconds(busy);
  return folded_.emplace(std::pair(option, length), estimate).first->second;
}

Planner::Estimate Planner::read_off(std::size_t option, std::int64_t length) {
  int i = static_cast<int>(std::floor(
      std::log2(static_cast<double>(std::max<std::int64_t>(length, 1))) * kRungsPerDoubling));
  while (rung(i) > length && i > 0) {
    --i;
  }
  const std::int64_t low = rung(i);
  std::int64_t high = low;
  while (high <= low) {
    high = rung(++i);
  }
  const Estimate a = at(option, low);
  const Estimate b = at(option, high);
  const double share = static_cast<double>(length - low) / static_cast<double>(high - low);
  const auto between = [&](auto x, auto y) {
    return static_cast<decltype(x)>(
        static_cast<double>(x) + share * (static_cast<double>(y) - static_cast<double>(x)));
  };
  return {
      .wall = between(a.wall, b.wall),
      .busy = between(a.busy, b.busy),
      .saved = between(a.saved, b.saved),
      .peak = between(a.peak, b.peak)};
}

// The fastest option on all ranks together for one document, judged by exact bytes.
std::optional<std::size_t> Planner::best_long(std::int64_t length) {
  std::vector<std::pair<double, std::size_t>> candidates;
  for (std::size_t o = 0; o < options_.size(); ++o) {
    if (!options_[o].one_rank) {
      candidates.emplace_back(read_off(o, length).wall, o);
    }
  }
  std::sort(candidates.begin(), candidates.end());
  for (const auto& [wall, o] : candidates) {
    if (fits(at(o, length).peak)) {
      return o;
    }
  }
  return std::nullopt;
}

// Whole documents, longest first to the least busy rank with room, in as few micro-batches as
// memory allows.  A rank's packed documents hold at most what one document of as many tokens would.
// Empty when a document has room nowhere.
std::vector<PlanMicroBatch> Planner::deal(
    const std::vector<std::int64_t>& lengths,
    const std::vector<std::int64_t>& documents,
    std::size_t option) {
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
            fits(read_off(option, rank.tokens + n).peak)) {
          best = &rank;
        }
      }
      if (best != nullptr) {
        break;
      }
    }
    if (best == nullptr) {
      if (!fits(read_off(option, n).peak)) {
        return {};
      }
      best = &micro_batches.emplace_back(ranks).front();
    }
    best->busy += read_off(option, n).busy;
    best->tokens += n;
    best->documents.push_back(d);
  }
  std::vector<PlanMicroBatch> result;
  for (std::vector<Rank>& micro : micro_batches) {
    PlanMicroBatch& batch = result.emplace_back();
    for (std::size_t r = 0; r < ranks; ++r) {
      std::sort(micro[r].documents.begin(), micro[r].documents.end());
      batch.groups.push_back(
          {.ranks = {static_cast<int>(r)},
           .documents = std::move(micro[r].documents),
           .program = options_[option].name(),
           .predicted = {}});
    }
  }
  return result;
}

// The first `long_documents` of `order` are split over all ranks, the rest dealt whole.
std::optional<Plan> Planner::build(
    const std::vector<std::int64_t>& lengths,
    const std::vector<std::int64_t>& order,
    std::size_t long_documents,
    std::size_t short_option) {
  Plan plan;
  plan.model_name = task_.model.architecture;
  plan.model_sha256 = fingerprint(task_.model);
  plan.layers = task_.model.layers;
  plan.cluster_name = "local-" + std::to_string(task_.ranks);
  plan.ranks = task_.ranks;
  plan.weight_domain = task_.ranks;
  plan.lengths = lengths;
  plan.planner_name = "first";
  plan.planner_space = "short documents whole, long ones over all ranks";
  const auto use = [&](std::size_t o) {
    const std::string name = options_[o].name();
    plan.programs[name] = runs_of(all_layers(task_.model, options_[o].layer));
    return name;
  };
  std::vector<int> everyone(static_cast<std::size_t>(task_.ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  for (std::size_t i = 0; i < long_documents; ++i) {
    const auto o = best_long(lengths[static_cast<std::size_t>(order[i])]);
    if (!o) {
      return std::nullopt;
    }
    plan.micro_batches.push_back(
        {.groups =
             {{.ranks = everyone, .documents = {order[i]}, .program = use(*o), .predicted = {}}},
         .predicted = {}});
  }
  if (long_documents < order.size()) {
    use(short_option);
    const std::vector<std::int64_t> rest(
        order.begin() + static_cast<std::ptrdiff_t>(long_documents), order.end());
    std::vector<PlanMicroBatch> dealt = deal(lengths, rest, short_option);
    if (dealt.empty()) {
      return std::nullopt;
    }
    for (PlanMicroBatch& micro : dealt) {
      plan.micro_batches.push_back(std::move(micro));
    }
  }
  return plan;
}

// Folds every micro-batch exactly.
void Planner::predict(Plan& plan) const {
  double total = 0;
  for (PlanMicroBatch& micro : plan.micro_batches) {
    std::vector<double> busy;
    for (PlanGroup& group : micro.groups) {
      std::vector<std::int64_t> lengths;
      lengths.reserve(group.documents.size());
      for (const std::int64_t d : group.documents) {
        lengths.push_back(plan.lengths[static_cast<std::size_t>(d)]);
      }
      const int ranks = static_cast<int>(group.ranks.size());
      const Task task{
          .model = &task_.model,
          .tokens = token_layout(std::move(lengths), ranks, task_.model.causal),
          .domain = plan.weight_domain};
      const Timeline parts =
          timeline(task, choices(plan.programs.at(group.program)), task_.training);
      PredictedBytes fullest;
      std::int64_t peak = 0;
      double slowest = 0;
      for (int r = 0; r < ranks; ++r) {
        const int rank = group.ranks[static_cast<std::size_t>(r)];
        const Seat seat{.group_rank = r, .domain_rank = rank % plan.weight_domain};
        const std::int64_t held =
            stored_elements(task_.model, plan.weight_domain, seat.domain_rank) *
            task_.static_bytes_per_element;
        const Footprint foot = footprint(parts, seat, task_.precision, held);
        if (foot.peak_bytes > peak) {
          peak = foot.peak_bytes;
          fullest = {
              .static_bytes = held,
              .saved = foot.saved_bytes,
              .transient = foot.peak_bytes - held - foot.saved_bytes};
        }
        busy.push_back(seconds(totals(parts, seat, task_.precision), task_.machine));
        slowest = std::max(slowest, busy.back());
      }
      group.predicted.bytes = fullest;
      group.predicted.seconds = slowest;
    }
    micro.predicted.seconds = wall_seconds(busy);
    total += *micro.predicted.seconds;
  }
  plan.predicted.seconds = total;
}

Planner::Answer Planner::plan(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto length = [&](std::int64_t d) { return lengths[static_cast<std::size_t>(d)]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return length(a) > length(b);
  });

  // Every border, every option for the short side, by estimates; then the best by exact bytes.
  struct Candidate {
    double seconds;
    std::size_t long_documents;
    std::size_t short_option;
  };
  std::vector<Candidate> candidates;
  double long_seconds = 0;
  double least_seconds = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k <= order.size(); ++k) {
    if (k == order.size()) {
      candidates.push_back({long_seconds, k, 0});
    }
    for (std::size_t o = 0; o < options_.size() && k < order.size(); ++o) {
      if (!options_[o].one_rank) {
        continue;
      }
      const std::vector<std::int64_t> rest(
          order.begin() + static_cast<std::ptrdiff_t>(k), order.end());
      double sum = long_seconds;
      const std::vector<PlanMicroBatch> dealt = deal(lengths, rest, o);
      for (const PlanMicroBatch& micro : dealt) {
        std::vector<double> busy;
        busy.reserve(micro.groups.size());
        for (const PlanGroup& group : micro.groups) {
          double its = 0;
          for (const std::int64_t d : group.documents) {
            its += read_off(o, length(d)).busy;
          }
          busy.push_back(its);
        }
        sum += wall_seconds(busy);
      }
      if (!dealt.empty()) {
        candidates.push_back({sum, k, o});
        least_seconds = std::min(least_seconds, sum);
      }
    }
    if (long_seconds >= least_seconds) {
      break;  // a later border can only cost more
    }
    if (k < order.size()) {
      const auto o = best_long(length(order[k]));
      if (!o) {
        break;  // this document must stay whole, and with it all shorter ones may
      }
      long_seconds += read_off(*o, length(order[k])).wall;
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return a.seconds < b.seconds;
  });
  for (const Candidate& c : candidates) {
    std::optional<Plan> plan = build(lengths, order, c.long_documents, c.short_option);
    if (!plan) {
      continue;
    }
    predict(*plan);
    const bool all_fit = std::all_of(
        plan->micro_batches.begin(), plan->micro_batches.end(), [&](const PlanMicroBatch& micro) {
          return std::all_of(micro.groups.begin(), micro.groups.end(), [&](const PlanGroup& group) {
            const PredictedBytes& b = *group.predicted.bytes;
            return fits(b.static_bytes + b.saved + b.transient);
          });
        });
    if (all_fit) {
      return {.plan = std::move(plan), .why_not = {}};
    }
  }

  // Nothing fits: the longest document is to blame, since any shorter one may run alone like it.
  const std::int64_t longest = order.empty() ? 0 : length(order[0]);
  const auto least = [&](std::int64_t n) {
    std::pair<std::int64_t, std::size_t> best{std::numeric_limits<std::int64_t>::max(), 0};
    for (std::size_t o = 0; o < options_.size(); ++o) {
      best = std::min(best, {at(o, n).peak, o});
    }
    return best;
  };
  std::int64_t low = 0;
  std::int64_t high = longest;
  while (low + 1 < high) {
    const std::int64_t middle = (low + high) / 2;
    (fits(least(middle).first) ? low : high) = middle;
  }
  const auto [needed, o] = least(longest);
  return {
      .plan = std::nullopt,
      .why_not = "no plan fits: a document of " + std::to_string(longest) + " tokens needs " +
                 mebibytes(needed) + " on a rank (" + mebibytes(static_bytes_) +
                 " of them for parameters, gradients and optimizer) even with " +
                 options_[o].name() + ", the budget is " + mebibytes(task_.memory_per_rank) +
                 "; the longest document that fits has " + std::to_string(low) +
                 " tokens. Give more memory, more ranks, or set data.max_tokens"};
}

std::vector<Planner::Row> Planner::table(const std::vector<std::int64_t>& lengths) {
  std::vector<Row> rows;
  for (const std::int64_t n : lengths) {
    for (std::size_t o = 0; o < options_.size(); ++o) {
      const Estimate& e = at(o, n);
      rows.push_back(
          {.length = n,
           .option = options_[o].name(),
           .seconds = e.wall,
           .peak_bytes = e.peak,
           .fits = fits(e.peak)});
    }
  }
  return rows;
}

}  // namespace paradyse
