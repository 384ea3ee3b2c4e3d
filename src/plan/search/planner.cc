#include "paradyse/planner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>

#include "src/plan/program/bodies.h"

namespace paradyse {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 4;

// The layer planner adds up bytes part by part; the exact fold finds what parts share and overlap.
// So often it is asked again, with what the fold found left over or missing; at last for the plan
// that needs least.
constexpr int kAttempts = 8;

// Plans remembered by their lengths.
constexpr std::size_t kPlansKept = 1024;

std::string mebibytes(std::int64_t bytes) {
  return std::to_string(bytes >> 20) + "." + std::to_string((bytes >> 10) % 1024 * 10 / 1024) +
         " MiB";
}

std::string name(const LayerProgram& program) {
  std::string text;
  for (const LayerRun& run : program) {
    text += text.empty() ? "" : "; ";
    text += program.size() == 1 ? "" : std::to_string(run.layers) + " x ";
    text += name(run.choice);
  }
  return text;
}

// Tokens of the fullest group.
std::int64_t fullest(const Plan& plan, const PlanMicroBatch& micro) {
  std::int64_t most = 0;
  for (const PlanGroup& group : micro.groups) {
    std::int64_t tokens = 0;
    for (const std::int64_t d : group.documents) {
      tokens += plan.lengths[static_cast<std::size_t>(d)];
    }
    most = std::max(most, tokens);
  }
  return most;
}

std::int64_t longest_of(const Plan& plan, const PlanMicroBatch& micro) {
  std::int64_t longest = 0;
  for (const PlanGroup& group : micro.groups) {
    for (const std::int64_t d : group.documents) {
      longest = std::max(longest, plan.lengths[static_cast<std::size_t>(d)]);
    }
  }
  return longest;
}

PlanningTask checked(PlanningTask task) {
  if (!task.attention.empty()) {
    strategy(task.attention);  // refuses unknown names
  }
  for (const std::string& name : task.without) {
    strategy(name);
  }
  if (task.planner != "exact" && task.planner != "paper") {
    throw std::invalid_argument(
        "planner '" + task.planner + "' is not known; there are exact and paper");
  }
  return task;
}

}  // namespace

Planner::Planner(PlanningTask task)
    : task_(checked(std::move(task))),
      model_(task_.seconds ? task_.seconds : closed_form(task_.machine)),
      all_(task_, task_.ranks, correction_),
      one_(task_, 1, correction_) {
  for (int r = 0; r < task_.ranks; ++r) {
    static_bytes_ = std::max(
        static_bytes_,
        stored_elements(task_.model, task_.ranks, r) * task_.static_bytes_per_element);
  }
  // The publication splits every document over all ranks.
  if (task_.planner == "exact" || all_.uniform().empty()) {
    whole_ = one_.uniform();
  }
  if (all_.uniform().empty() && whole_.empty()) {
    throw std::invalid_argument(
        "planner: no strategy is left with attention '" + task_.attention + "' and mlp '" +
        task_.mlp + "' on " + std::to_string(task_.ranks) +
        " ranks; weights can be held only by all ranks together");
  }
}

std::int64_t Planner::budget(std::int64_t tokens) const {
  const std::int64_t bytes =
      task_.memory_per_rank == 0
          ? kUnlimited
          : static_cast<std::int64_t>(
                static_cast<double>(task_.memory_per_rank) / (1 + task_.memory_overhead));
  const auto cap = caps_.find(log2_bucket(tokens));
  return cap == caps_.end() || past_caps_ ? bytes : std::min(bytes, cap->second);
}

bool Planner::fits(std::int64_t bytes, std::int64_t tokens) const {
  return bytes <= budget(tokens);
}

std::optional<Plan> Planner::leaner(const Plan& plan) {
  std::int64_t most = 0;
  std::int64_t tokens = 0;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      const PredictedBytes bytes = group.predicted.bytes.value_or(PredictedBytes{});
      const std::int64_t sum = bytes.total();
      if (sum > most) {
        most = sum;
        tokens = fullest(plan, micro);
      }
    }
  }
  if (most == 0) {
    return std::nullopt;
  }
  caps_[log2_bucket(tokens)] = most - most / 20;
  documents_.clear();
  plans_.clear();
  return make(plan.lengths).plan;
}

Planner::Learned Planner::learned() const {
  return {.ratios = correction_.ratios(), .caps = caps_};
}

void Planner::learn(const Learned& learned) {
  correction_.learn(learned.ratios);  // so that plans are made anew
  caps_ = learned.caps;
}

double Planner::wall_seconds(const std::vector<double>& busy) const {
  const double sum = std::accumulate(busy.begin(), busy.end(), 0.0);
  return std::max(*std::max_element(busy.begin(), busy.end()), sum / task_.machine.cores);
}

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

PredictedBytes Planner::fullest_rank(const Timeline& parts, const std::vector<Seat>& seats) const {
  PredictedBytes fullest;
  for (const Seat& seat : seats) {
    const std::int64_t held = stored_elements(task_.model, task_.ranks, seat.domain_rank) *
                              task_.static_bytes_per_element;
    const Footprint foot = footprint(parts, seat, task_.precision, held);
    if (foot.peak_bytes > fullest.total()) {
      fullest = {
          .static_bytes = held,
          .saved = foot.saved_bytes,
          .transient = foot.peak_bytes - held - foot.saved_bytes};
    }
  }
  return fullest;
}

// Exact bytes.  One group: all ranks; else one rank each.
PredictedBytes Planner::bytes_of(
    const LayerProgram& program, const std::vector<std::vector<std::int64_t>>& groups) const {
  const int ranks = groups.size() == 1 ? task_.ranks : 1;
  PredictedBytes most;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const Task task{
        .model = &task_.model,
        .tokens = token_layout(groups[g], ranks, task_.model.causal),
        .domain = task_.ranks};
    std::vector<Seat> seats;
    for (int r = 0; r < ranks; ++r) {
      seats.push_back(
          {.group_rank = r, .domain_rank = groups.size() == 1 ? r : static_cast<int>(g)});
    }
    const PredictedBytes bytes =
        fullest_rank(timeline(task, choices(program), task_.training), seats);
    if (bytes.total() > most.total()) {
      most = bytes;
    }
  }
  return most;
}

Planner::Choices Planner::choices_of(LayerCosts& costs, std::int64_t length) const {
  Choices found{
      .ways = costs.ways(length), .static_bytes = static_bytes_, .rest = costs.rest(length)};
  for (LayerCost& way : found.ways.costs) {
    way.transient_bytes = std::max(way.transient_bytes, found.rest.transient_bytes);
  }
  found.capacity_bytes = budget(length) - static_bytes_ - found.rest.saved_bytes;
  return found;
}

Planner::Choices Planner::choices_of(std::int64_t length) { return choices_of(all_, length); }

// At the costs of a document of `length`.
std::optional<Planner::Fitting> Planner::program_for(
    LayerCosts& costs, std::int64_t length, const std::vector<std::vector<std::int64_t>>& groups) {
  if (task_.model.layers == 0) {
    const PredictedBytes bytes = bytes_of({}, groups);
    return fits(bytes.total(), length) ? std::optional(Fitting{.program = {}, .bytes = bytes})
                                       : std::nullopt;
  }
  const Choices known = choices_of(costs, length);
  const LayerCosts::Ways& ways = known.ways;
  const auto solve = [&](std::int64_t capacity) {
    if (!task_.mix) {
      return plan_alike(ways.costs, task_.model.layers, capacity);
    }
    return task_.planner == "paper"
               ? plan_layers_as_published(ways.costs, task_.model.layers, capacity)
               : plan_layers(ways.costs, task_.model.layers, capacity);
  };
  const auto in_order = [&](const LayerPlan& plan) {
    std::vector<LayerChoice> layers;
    for (const std::size_t way : layer_order(ways.costs, plan)) {
      layers.push_back(ways.layers[way]);
    }
    return runs_of(layers);
  };
  if (ways.costs.empty()) {
    return std::nullopt;
  }
  std::optional<Fitting> best;
  double best_seconds = std::numeric_limits<double>::infinity();
  std::int64_t capacity = known.capacity_bytes;
  std::int64_t step = 1;  // what overshoots again is held shorter each time
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const bool last = attempt + 1 == kAttempts;
    const LayerPlan plan = solve(last && !best ? 0 : capacity);
    if (best && (!plan.feasible || plan.seconds >= best_seconds)) {
      break;
    }
    Fitting fitting{.program = in_order(plan), .bytes = {}};
    fitting.bytes = bytes_of(fitting.program, groups);
    const std::int64_t left = budget(length) - fitting.bytes.total();
    if (left >= 0) {
      best = std::move(fitting);
      best_seconds = plan.seconds;
    }
    if (!plan.feasible || left == 0 || task_.memory_per_rank == 0) {
      break;  // that was the plan that needs least, or all there is to find
    }
    capacity += left > 0 ? left : step * left;
    step *= left > 0 ? 1 : 2;
  }
  return best;
}

std::optional<DocumentPlan> Planner::find_document(std::int64_t length) {
  std::optional<Fitting> fitting = program_for(all_, length, {{length}});
  if (!fitting) {
    return std::nullopt;
  }
  const auto priced = [&](Fitting found) {
    DocumentPlan plan{
        .program = std::move(found.program),
        .seconds = all_.rest(length).wall,
        .bytes = found.bytes};
    for (const LayerRun& run : plan.program) {
      plan.seconds += static_cast<double>(run.layers) * all_.layer(run.choice, length).wall;
    }
    return plan;
  };
  DocumentPlan plan = priced(*std::move(fitting));
  if (task_.planner == "paper" && task_.smoothing && !last_.empty()) {
    DocumentPlan same = priced({.program = last_, .bytes = bytes_of(last_, {{length}})});
    if (fits(same.bytes.total(), length) && same.seconds <= 1.05 * plan.seconds) {
      plan = std::move(same);
    }
  }
  last_ = plan.program;
  return plan;
}

std::optional<DocumentPlan> Planner::document(std::int64_t length) {
  forget_what_is_out_of_date();
  if (all_.uniform().empty()) {
    return std::nullopt;
  }
  const auto found = documents_.find(length);
  return found != documents_.end()
             ? found->second
             : documents_.emplace(length, find_document(length)).first->second;
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

// Folds every micro-batch exactly.
void Planner::predict(Plan& plan) {
  double total = task_.step_seconds;
  for (PlanMicroBatch& micro : plan.micro_batches) {
    std::vector<double> busy;
    const std::int64_t longest = longest_of(plan, micro);
    for (PlanGroup& group : micro.groups) {
      const Task task{
          .model = &task_.model,
          .tokens = token_layout(plan, group, task_.model.causal),
          .domain = plan.weight_domain};
      const LayerProgram& program = plan.programs.at(group.program);
      const std::vector<LayerChoice> layers = choices(program);
      const Timeline parts = timeline(task, layers, task_.training);
      std::vector<Seat> seats;
      for (int r = 0; r < task.tokens.ranks(); ++r) {
        const int rank = group.ranks[static_cast<std::size_t>(r)];
        seats.push_back({.group_rank = r, .domain_rank = rank % plan.weight_domain});
      }
      group.predicted.bytes = fullest_rank(parts, seats);
      group.predicted.seconds = group_seconds(parts, layers, seats, task.tokens.lengths, longest);
      busy.push_back(*group.predicted.seconds);
    }
    // groups of several ranks: their seconds are those of the cores they share already
    micro.predicted.seconds = micro.groups.size() == 1 ? busy.front() : wall_seconds(busy);
    total += *micro.predicted.seconds;
  }
  plan.predicted.seconds = total;
}

// Of a group that is alone on the machine; of one rank beside others: on a core of its own.
double Planner::group_seconds(
    const Timeline& parts,
    const std::vector<LayerChoice>& layers,
    const std::vector<Seat>& seats,
    const std::vector<std::int64_t>& lengths,
    std::int64_t longest) {
  if (!model_->by_work()) {  // documents one after the other
    LayerCosts& costs = seats.size() == 1 && task_.ranks > 1 ? one_ : all_;
    double sum = 0;
    for (const std::int64_t n : lengths) {
      const bool busy = &costs == &one_;
      const PartCost rest = costs.rest(n);
      sum += busy ? rest.busy : rest.wall;
      for (const LayerChoice& layer : layers) {
        const PartCost one = costs.layer(layer, n);
        sum += busy ? one.busy : one.wall;
      }
    }
    return sum;
  }
  double sum = 0;
  for (const auto& [body, alike] : bodies(parts)) {
    const ScheduledPart& part = parts[alike.front()];
    PartQuestion question{
        .part = part.layer < 0 ? "rest" : part.program().part,
        .ranks = static_cast<int>(seats.size()),
        .length = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})};
    double factor = 1;  // by what was measured
    if (part.layer >= 0) {
      const LayerChoice& layer = layers[static_cast<std::size_t>(part.layer)];
      const bool attention = question.part == "attention";
      factor = correction_.factor(layer.attention, longest);
      question.strategy = attention ? layer.attention : to_string(verb(layer.mlp));
      question.recompute = attention ? layer.attention_recompute : layer.mlp_recompute;
    }
    std::vector<PartWork> works;
    works.reserve(seats.size());
    for (const Seat& seat : seats) {
      works.push_back(part_work(part, seat, task_.precision));
    }
    question.work = together(works, task_.machine.cores);
    sum += factor * static_cast<double>(alike.size()) * model_->seconds(question).total();
  }
  return sum;
}

Planner::Answer Planner::plan(const std::vector<std::int64_t>& lengths) {
  forget_what_is_out_of_date();
  const auto found = plans_.find(lengths);
  cached_ = found != plans_.end();
  if (cached_) {
    return {.plan = found->second, .why_not = {}};
  }
  Answer answer = make(lengths);
  if (!answer.plan && !caps_.empty()) {  // other documents of such lengths may still need more
    past_caps_ = true;
    documents_.clear();
    answer = make(lengths);
    past_caps_ = false;
    documents_.clear();
  }
  if (answer.plan && plans_.size() < kPlansKept) {
    plans_.emplace(lengths, *answer.plan);
  }
  return answer;
}

void Planner::forget_what_is_out_of_date() {
  if (version_ != correction_.version()) {
    version_ = correction_.version();
    documents_.clear();
    plans_.clear();
  }
}

std::optional<std::string> Planner::observe(const Plan& plan, const std::vector<double>& seconds) {
  for (std::size_t m = 0; m < plan.micro_batches.size() && m < seconds.size(); ++m) {
    const PlanMicroBatch& micro = plan.micro_batches[m];
    if (!micro.predicted.seconds) {
      continue;
    }
    const std::int64_t longest = longest_of(plan, micro);
    // The micro-batch's ratio is that of each strategy in it.
    const LayerProgram& program = plan.programs.at(micro.groups.front().program);
    std::set<std::string> used;
    double factors = 0;
    double layers = 0;
    for (const LayerRun& run : program) {
      used.insert(run.choice.attention);
      const auto n = static_cast<double>(run.layers);
      factors += n * correction_.factor(run.choice.attention, longest);
      layers += n;
    }
    if (layers == 0) {
      continue;
    }
    // predicted with the factors of then; those of now differ by little
    const double raw = *micro.predicted.seconds / (factors / layers);
    for (const std::string& strategy : used) {
      correction_.observe(strategy, longest, raw, seconds[m]);
    }
  }
  const std::optional<double> changed = correction_.machine_changed();
  if (!changed) {
    return std::nullopt;
  }
  char ratio[32];
  std::snprintf(ratio, sizeof(ratio), "%.1f", *changed > 1 ? *changed : 1 / *changed);
  return std::string("this machine has become ") + ratio + " times " +
         (*changed > 1 ? "slower" : "faster") +
         " than it was: other programs may run beside this one; plans go by what is measured now";
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
          double its = 0;
          for (const std::int64_t d : documents) {
            its += estimate(one_, layer, length(d)).busy;
          }
          busy.push_back(its);
        }
        sum += wall_seconds(busy);
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
    predict(*plan);
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

// Whether a document can run at all: on all ranks together, or whole on one of them.
bool Planner::can_run(std::int64_t length) {
  if (document(length)) {
    return true;
  }
  std::vector<std::vector<std::int64_t>> groups(static_cast<std::size_t>(task_.ranks));
  groups.front() = {length};
  for (const LayerChoice& layer : whole_) {
    if (fits(estimate(one_, layer, length).peak, length) && program_for(one_, length, groups)) {
      return true;
    }
  }
  return false;
}

std::optional<std::int64_t> Planner::longest_document() {
  if (task_.memory_per_rank == 0) {
    return std::nullopt;
  }
  std::int64_t low = 0;
  std::int64_t high = 1;
  while (high < (std::int64_t{1} << 40) && can_run(high)) {
    low = high;
    high *= 2;
  }
  while (low + 1 < high) {
    const std::int64_t middle = (low + high) / 2;
    (can_run(middle) ? low : high) = middle;
  }
  return low;
}

std::string Planner::refusal(std::int64_t longest) {
  // Of all layers alike the one that needs least.
  std::int64_t needed = std::numeric_limits<std::int64_t>::max();
  LayerChoice leanest;
  const auto consider = [&](const LayerChoice& layer, std::size_t groups) {
    const std::vector<LayerChoice> layers(static_cast<std::size_t>(task_.model.layers), layer);
    std::vector<std::vector<std::int64_t>> documents(groups);
    documents.front() = {longest};
    const std::int64_t bytes = bytes_of(runs_of(layers), documents).total();
    if (bytes < needed) {
      needed = bytes;
      leanest = layer;
    }
  };
  for (const LayerChoice& layer : all_.uniform()) {
    consider(layer, 1);
  }
  for (const LayerChoice& layer : whole_) {
    consider(layer, static_cast<std::size_t>(task_.ranks));
  }
  return "no plan fits: a document of " + std::to_string(longest) + " tokens needs " +
         mebibytes(needed) + " on a rank (" + mebibytes(static_bytes_) +
         " of them for parameters, gradients and optimizer) even with " + name(leanest) +
         ", the budget is " + mebibytes(task_.memory_per_rank) +
         "; the longest document that fits has " + std::to_string(longest_document().value_or(0)) +
         " tokens. Give more memory, more ranks, or set data.max_tokens";
}

std::vector<Planner::Row> Planner::table(const std::vector<std::int64_t>& lengths) {
  std::vector<Row> rows;
  const auto add = [&](LayerCosts& costs, const LayerChoice& layer, std::int64_t n) {
    const Estimate e = estimate(costs, layer, n);
    rows.push_back(
        {.length = n,
         .option = name(layer),
         .seconds = &costs == &all_ ? e.wall : e.busy,
         .peak_bytes = e.peak,
         .fits = fits(e.peak, n)});
  };
  for (const std::int64_t n : lengths) {
    for (const LayerChoice& layer : all_.uniform()) {
      add(all_, layer, n);
    }
    for (const LayerChoice& layer : whole_) {
      if (task_.ranks > 1) {
        add(one_, layer, n);
      }
    }
  }
  return rows;
}

}  // namespace paradyse
