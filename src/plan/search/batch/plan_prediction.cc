#include "src/plan/search/batch/plan_prediction.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "paradyse/plan/detail/index.h"
#include "src/plan/cost/memory_signature.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/program/bodies.h"
#include "src/plan/search/batch/micro_batches.h"

namespace paradyse {
namespace {

// Ranks that are folded each by itself: to see which of more hold the same takes part of a fold of
// each.
constexpr std::size_t kFewRanks = 16;

// Whose parts are kept: a planner tries other layers for groups side by side.
constexpr std::size_t kGroupsKept = 8;

// Of the slowest rank: what it sends to other nodes takes their links' time.
double seconds_over(const NodeLinks& links, const std::vector<SentOnce>& sent) {
  double slowest = 0;
  for (const SentOnce& one : sent) {
    double seconds = 0;
    for (const SentOnce::Phase& phase : {one.weights, one.gradients}) {
      const NodeLinks::Link& far =
          phase.between_nodes > 0 ? links.between_nodes : links.inside_node;
      seconds += (phase.bytes - phase.between_nodes) / links.inside_node.bytes_per_second +
                 phase.between_nodes / far.bytes_per_second +
                 phase.collectives * far.latency_seconds;
    }
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

// Beside a group whose ranks are alike, all it takes being computing: of even cuts its slowest
// rank's time, of cuts by shares what is left of their speeds.
double times_as_long(const std::vector<double>& slowness, bool by_shares) {
  if (slowness.empty()) {
    return 1;
  }
  if (!by_shares) {
    return std::ranges::max(slowness);
  }
  double speeds = 0;
  for (const double times : slowness) {
    speeds += 1 / times;
  }
  return static_cast<double>(slowness.size()) / speeds;
}

}  // namespace

PlanPrediction::PlanPrediction(
    const PlanningTask& task,
    const Correction& correction,
    const RankSpeeds& speeds,
    GroupCosts& costs)
    : task_(task),
      correction_(correction),
      speeds_(speeds),
      model_(task.model),
      seconds_(seconds_of(task, task.domain())),
      whole_seconds_(seconds_of(task, 0)),
      costs_(costs),
      folded_(
          [this](const GroupTask& group, const std::vector<Seat>& seats, const Slowness& slowness) {
            return fold(group, seats, slowness);
          }) {}

double PlanPrediction::wall_seconds(const std::vector<GroupSeconds>& groups) const {
  double slowest = 0;
  BusyCores busy(node_cores(task_));
  for (const GroupSeconds& group : groups) {
    slowest = std::max(slowest, group.seconds);
    busy.add(group.ranks, group.seconds);
  }
  // one group has nobody beside it
  return groups.size() == 1 ? slowest : std::max(slowest, busy.seconds());
}

std::vector<double> PlanPrediction::seconds_beside(const std::vector<GroupSeconds>& groups) const {
  const NodeCores cores = node_cores(task_);
  BusyCores busy(cores);
  std::vector<double> slowest(idx(cores.nodes()));
  for (const GroupSeconds& group : groups) {
    busy.add(group.ranks, group.seconds);
    for (const int rank : group.ranks) {
      double& its = slowest[idx(cores.node(rank))];
      its = std::max(its, group.seconds);
    }
  }
  std::vector<double> beside;
  beside.reserve(groups.size());
  for (const GroupSeconds& group : groups) {
    double times = 1;
    for (const int rank : group.ranks) {
      const double its = slowest[idx(cores.node(rank))];
      times = its > 0 ? std::max(times, busy.seconds({&rank, 1}) / its) : times;
    }
    beside.push_back(group.seconds * times);
  }
  return beside;
}

PlanPrediction::Parts& PlanPrediction::parts_of(
    const GroupTask& group, const std::vector<Seat>& seats) {
  GroupTask any_layers = group;
  any_layers.layers.clear();
  const auto same_seat = [&](const Seat& a, const Seat& b) {
    return a.across_nodes == b.across_nodes &&
           (group.weight_domain == 1 || a.domain_rank == b.domain_rank);
  };
  const auto known = std::ranges::find_if(parts_, [&](const Parts& one) {
    return one.group == any_layers && std::ranges::equal(one.seats, seats, same_seat);
  });
  if (known != parts_.end()) {
    return *known;
  }
  if (parts_.size() == kGroupsKept) {
    parts_.pop_front();
  }
  return parts_.emplace_back(
      Parts{.group = std::move(any_layers), .seats = seats, .built = {}, .seconds = {}});
}

FoldedGroup PlanPrediction::fold(
    const GroupTask& group, const std::vector<Seat>& seats, const Slowness& slowness) {
  Parts& known = parts_of(group, seats);
  const Timeline parts = group.tiles == model_.tiles() ? timeline(group, model_, known.built)
                                                       : timeline(group, model_);
  FoldedGroup folded{
      .domain = parts.front().program().domain, .costed = costed_parts(group.layers)};
  std::map<std::vector<std::int64_t>, Footprint> alike_seats;
  for (const Seat& seat : seats) {
    if (seats.size() <= kFewRanks) {
      folded.held.push_back(footprint(parts, seat, task_.precision, 0));
      continue;
    }
    const auto [held, fresh] =
        alike_seats.try_emplace(memory_signature(parts, seat, task_.precision));
    if (fresh) {
      held->second = footprint(parts, seat, task_.precision, 0);
    }
    folded.held.push_back(held->second);
  }
  if (const TimeModel& by = seconds_from(folded.domain); by.by_work()) {
    folded.parts.resize(folded.costed.size());
    for (const auto& [body, alike] : bodies(parts)) {
      const ScheduledPart& part = parts[alike.front()];
      const auto [seconds, fresh] = known.seconds.try_emplace({body, slowness});
      if (fresh) {
        seconds->second = {
            part.body, seconds_together(task_, by, {&part, 1}, seats, slowness).total()};
      }
      folded.parts[place_among(folded.costed, costed_part(part))] +=
          static_cast<double>(alike.size()) * seconds->second.seconds;
    }
    for (const ScheduledPart& part : parts) {
      folded.parts[place_among(folded.costed, costed_part(part))] +=
          copying_seconds({&part, 1}, seats, task_.precision, machine_of(task_, seats));
    }
  }
  return folded;
}

const std::vector<std::int64_t>& PlanPrediction::static_bytes(bool whole) {
  std::vector<std::int64_t>& known = static_bytes_[whole];
  if (known.empty()) {
    for (int rank = 0; rank < task_.domain(); ++rank) {
      known.push_back(paradyse::static_bytes(
          model_,
          task_.domain(),
          rank,
          task_.precision,
          task_.keeps(),
          {.reshard_after_backward = !whole}));
    }
  }
  return known;
}

PredictedBytes PlanPrediction::fullest_rank(
    const GroupTask& group, const std::vector<Seat>& seats, const Slowness& slowness) {
  const FoldedGroup& folded = folded_.of(group, seats, slowness);
  const std::vector<std::int64_t>& all_time = static_bytes(folded.domain < task_.domain());
  PredictedBytes fullest;
  for (std::size_t i = 0; i < seats.size(); ++i) {
    const std::int64_t held = all_time[idx(seats[i].domain_rank)];
    const Footprint& foot = folded.held[i];
    if (held + foot.peak_bytes > fullest.total()) {
      fullest = {
          .static_bytes = held,
          .saved = foot.saved_bytes,
          .transient = foot.peak_bytes - foot.saved_bytes};
    }
  }
  return fullest;
}

PredictedBytes PlanPrediction::bytes_of(
    const LayerRuns& program, const std::vector<std::vector<std::int64_t>>& groups, int ranks) {
  PredictedBytes most;
  int first = 0;  // of the group's ranks
  for (const std::vector<std::int64_t>& lengths : groups) {
    std::vector<Seat> seats;
    seats.reserve(idx(ranks));
    for (int r = 0; r < ranks; ++r) {
      seats.push_back({.group_rank = r, .domain_rank = first++ % task_.domain()});
    }
    const GroupTask group{
        .layers = program,
        .lengths = lengths,
        .ranks = ranks,
        .shares = {},
        .weight_domain = costs_.domain(),
        .keep = task_.training,
        .tiles = task_.model.tiles()};
    const PredictedBytes bytes = fullest_rank(group, seats);
    if (bytes.total() > most.total()) {
      most = bytes;
    }
  }
  return most;
}

// Folds every micro-batch exactly.
void PlanPrediction::predict(Plan& plan, bool hoped) {
  double total = task_.step_seconds * correction_.common_factor();
  for (PlanMicroBatch& micro : plan.micro_batches) {
    std::vector<GroupSeconds> groups;
    for (PlanGroup& group : micro.groups) {
      const GroupTask of_group = group_task(plan, group, task_.training);
      const std::vector<Seat> seats = seats_of(plan, group, task_.on_a_node());
      const Slowness slowness = slowness_of(group);
      group.predicted.bytes = fullest_rank(of_group, seats, slowness);
      group.predicted.seconds = group_seconds(of_group, seats, slowness, correction_, hoped);
      groups.push_back({.ranks = group.ranks, .seconds = *group.predicted.seconds});
    }
    const double seconds = wall_seconds(groups);
    micro.predicted.seconds = seconds;
    total += whole_weights(plan) ? 0 : seconds;
  }
  if (whole_weights(plan)) {
    total += seconds_without_meeting(plan) + correction_.common_factor() * whole_weights_seconds();
  }
  plan.predicted.seconds = total;
}

double PlanPrediction::seconds_of_step(bool whole) const {
  return correction_.common_factor() * (task_.step_seconds + (whole ? whole_weights_seconds() : 0));
}

double PlanPrediction::seconds_without_meeting(const Plan& plan) const {
  BusyCores busy(node_cores(task_));
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      busy.add(group.ranks, group.predicted.seconds.value_or(0));
    }
  }
  return std::max(until_last_rank(plan), busy.seconds());
}

double PlanPrediction::whole_weights_seconds() const {
  if (!whole_weights_seconds_) {
    const std::vector<SentOnce> sent =
        sent_once(model_, task_.ranks, task_.domain(), task_.on_a_node(), task_.precision);
    whole_weights_seconds_ = task_.links ? seconds_over(*task_.links, sent) : seconds_by_work(sent);
  }
  return *whole_weights_seconds_;
}

double PlanPrediction::seconds_each_time(const Plan& plan) const {
  double sum = task_.step_seconds * correction_.common_factor();
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    sum +=
        micro.predicted.seconds.value_or(0) + correction_.common_factor() * whole_weights_seconds();
  }
  return sum;
}

// By what was measured of exchanges, wherever ranks are.
double PlanPrediction::seconds_by_work(const std::vector<SentOnce>& sent) const {
  std::vector<PartWork> works;
  for (const SentOnce& one : sent) {
    PartWork& work = works.emplace_back();
    const auto add = [&](PartPhase phase, const SentOnce::Phase& its) {
      work.phases[idx(phase)].values[Amounts::weight_bytes] = its.bytes;
      work.phases[idx(phase)].values[Amounts::weight_collectives] = its.collectives;
    };
    add(PartPhase::forward, one.weights);
    add(PartPhase::backward, one.gradients);
  }
  PartQuestion question{
      .part = "rest", .ranks = task_.ranks, .work = together(works, task_.machine.cores)};
  if (!model_.of_samples()) {  // exchanges alike were measured in MLPs that gather, on one rank
    question.part = "mlp";
    question.strategy = to_string(Verb::gather);
    question.ranks = 1;
  }
  return whole_seconds_->seconds(question).total();
}

std::vector<std::vector<double>> PlanPrediction::uncorrected_parts(
    const Plan& plan, const PlanMicroBatch& micro) {
  std::vector<std::vector<double>> parts;
  std::vector<GroupSeconds> groups;
  parts.reserve(micro.groups.size());
  groups.reserve(micro.groups.size());
  for (const PlanGroup& group : micro.groups) {
    const std::vector<double>& its = parts.emplace_back(parts_alone(plan, group));
    groups.push_back(
        {.ranks = group.ranks, .seconds = std::accumulate(its.begin(), its.end(), 0.0)});
  }
  const std::vector<double> beside = whole_weights(plan)
                                         ? seconds_beside(groups)
                                         : std::vector<double>(groups.size(), wall_seconds(groups));
  for (std::size_t g = 0; g < parts.size(); ++g) {
    for (double& part : parts[g]) {
      part *= groups[g].seconds > 0 ? beside[g] / groups[g].seconds : 1;
    }
  }
  return parts;
}

std::vector<double> PlanPrediction::parts_alone(const Plan& plan, const PlanGroup& group) {
  const GroupTask task = group_task(plan, group, task_.training);
  const Slowness slowness = slowness_of(group);
  return seconds_from(task.weight_domain).by_work()
             ? folded_.of(task, seats_of(plan, group, task_.on_a_node()), slowness).parts
             : measured_parts(task, seats_of(plan, group, task_.on_a_node()), slowness);
}

// Weights are gathered once, as for one token, with documents or without; the rest is each's.
std::vector<double> PlanPrediction::measured_parts(
    const GroupTask& group, const std::vector<Seat>& seats, const Slowness& slowness) {
  LayerCosts& costs = costs_.of(group.ranks, group.weight_domain);
  const std::vector<CostedPart> costed = costed_parts(group.layers);
  // beside nobody its ranks share no cores, or those of their nodes among themselves
  const double shared =
      std::max(1.0, static_cast<double>(group.ranks) / machine_of(task_, seats).cores);
  const double times = times_as_long(slowness, !group.shares.empty());
  std::vector<double> sums(costed.size());
  // `parts_of`: [of these parts] what they cost at a length
  const auto add = [&](const std::vector<CostedPart>& parts, double layers, const auto& parts_of) {
    const auto seconds = [&](std::int64_t n) {
      std::vector<double> all;
      for (const PartCost& cost : parts_of(n)) {
        all.push_back(std::min(shared * cost.busy, cost.wall));
      }
      return all;
    };
    const std::vector<double> once = seconds(1);
    std::vector<double> sum = once;
    for (const std::int64_t n : group.lengths) {
      const std::vector<double> all = seconds(n);
      for (std::size_t p = 0; p < all.size(); ++p) {
        sum[p] += std::max(0.0, all[p] - once[p]);
      }
    }
    for (std::size_t p = 0; p < sum.size(); ++p) {
      sums[place_among(costed, parts[p])] += times * layers * sum[p];
    }
  };
  for (const LayerRun& run : group.layers) {
    std::vector<CostedPart> parts;
    std::ranges::transform(run.choice, std::back_inserter(parts), [](const PartChoice& part) {
      return costed_part(part);
    });
    add(parts, static_cast<double>(run.layers), [&](std::int64_t n) {
      return costs.predicted_parts(run.choice, n);
    });
  }
  add({{.part = kRest, .strategy = {}}}, 1, [&](std::int64_t n) {
    return std::vector<PartCost>{costs.predicted_rest(n)};
  });
  return sums;
}

// Of a group that is alone on the machine; of one rank beside others: on a core of its own.
double PlanPrediction::group_seconds(
    const GroupTask& group,
    const std::vector<Seat>& seats,
    const Slowness& slowness,
    const Correction& correction,
    bool hoped) {
  const std::int64_t longest = longest_of(group.lengths);
  const auto corrected = [&](const std::vector<CostedPart>& costed,
                             const std::vector<double>& parts) {
    double sum = 0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      sum +=
          parts[p] == 0 ? 0 : parts[p] * correction.factor(costed[p], group.ranks, longest, hoped);
    }
    return sum;
  };
  if (seconds_from(group.weight_domain).by_work()) {
    const FoldedGroup& folded = folded_.of(group, seats, slowness);
    return corrected(folded.costed, folded.parts);
  }
  return corrected(costed_parts(group.layers), measured_parts(group, seats, slowness));
}

std::vector<double> PlanPrediction::work_of_ranks(const Plan& plan) {
  std::vector<double> all(idx(plan.ranks));
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      const GroupTimeline built = group_timeline(plan, group, model_, task_.training);
      for (const auto& [body, alike] : bodies(built.parts)) {
        const ScheduledPart& part = built.parts[alike.front()];
        for (std::size_t r = 0; r < group.ranks.size(); ++r) {
          all[idx(group.ranks[r])] +=
              static_cast<double>(alike.size()) *
              computing_seconds(part_work(part, built.seats[r], task_.precision), task_.machine);
        }
      }
    }
  }
  return all;
}

Slowness PlanPrediction::slowness_of(const PlanGroup& group) const {
  const std::vector<double>& speeds = speeds_.speeds();
  Slowness slowness;
  if (std::ranges::any_of(group.ranks, [&](int rank) {
        return idx(rank) < speeds.size() && speeds[idx(rank)] < 1;
      })) {
    for (const int rank : group.ranks) {
      slowness.push_back(1 / speeds[idx(rank)]);
    }
  }
  return slowness;
}

}  // namespace paradyse
