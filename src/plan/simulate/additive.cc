#include "src/plan/simulate/additive.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>

#include "paradyse/plan/detail/index.h"
#include "src/plan/program/bodies.h"

namespace paradyse {

AdditiveSeconds AdditiveGroup::seconds() const {
  AdditiveSeconds seconds{.group = 0, .weights = weights};
  for (const AdditiveRank& rank : ranks) {
    seconds.group = std::max(seconds.group, rank.sum());
  }
  return seconds;
}

namespace {

// Ranks have as much of each document, or sample, and see as many pairs of it.
bool evenly_cut(const Program& program, const Op& op) {
  const Documents& documents = program.documents;
  const std::int64_t pieces =
      (documents.causal ? 2 : 1) * static_cast<std::int64_t>(program.ranks());
  if (documents.dims.empty()) {
    return std::ranges::all_of(
        documents.lengths, [&](std::int64_t length) { return length % pieces == 0; });
  }
  const Layout& of = program.values[idx(op.in[0])].layout;
  for (int rank = 1; rank < program.ranks(); ++rank) {
    if (of.elements(rank) != of.elements(0)) {
      return false;
    }
  }
  return true;
}

// All ranks do the same at each hop of a ring: zigzag pieces of a document that they divide evenly
// see as many pairs of each other wherever they lie.
bool even_ring(
    const Program& program, const Op& op, const GroupSeats& seats, const Cluster& cluster) {
  const Documents& documents = program.documents;
  return documents.shares.empty() && program.shape.window == 0 && evenly_cut(program, op) &&
         std::ranges::all_of(
             op.heads,
             [&](const Heads& heads) { return heads.query.size() == op.heads[0].query.size(); }) &&
         std::ranges::all_of(seats.ranks, [&](int rank) {
           return &cluster.device(rank) == &cluster.device(seats.ranks[0]);
         });
}

}  // namespace

// The sums over a timeline's ops.  `one_for_all`: where all ranks do the same, one is asked.
struct AdditiveCosts::Fold {
  const GroupSeats& seats;
  const Cluster& cluster;
  Precision precision;
  bool one_for_all = false;
  ExchangeCosts& exchange_costs;
  AdditiveGroup sums = {};

  void add(const Timeline& parts) {
    sums.ranks.resize(seats.ranks.size());
    for (const auto& [body, alike] : bodies(parts)) {
      const auto times = static_cast<double>(alike.size());
      for (const auto* steps : body->schedule.passes()) {
        for (const ScheduledOp& step : whole(*steps)) {
          add(body->program,
              body->program.ops[idx(step.op)],
              step.adjoint ? Phase::adjoint : Phase::forward,
              times);
        }
      }
      for (const std::size_t part : alike) {
        add_copies_to_host(parts[part]);
      }
    }
  }

 private:
  void add(const Program& program, const Op& op, Phase phase, double times) {
    const bool one =
        one_for_all && traits(op.kind).rings > 0 && even_ring(program, op, seats, cluster);
    double computed = 0;
    for (std::size_t r = 0; r < seats.ranks.size(); ++r) {
      if (r == 0 || !one) {
        const OpView view{program, op, seats.seat(r), phase, precision};
        computed = times * compute_seconds(view, cluster.device(seats.ranks[r]));
      }
      sums.ranks[r].compute += computed;
    }
    const OpMeetings met = op_meetings(program, op, phase, seats, precision, exchange_costs);
    sums.weights += times * met.domain_seconds;
    for (std::size_t r = 0; r < met.meeting_of.size(); ++r) {
      sums.ranks[r].communication += times * met.seconds[idx(met.meeting_of[r])];
    }
    if (met.ring.rounds > 0) {
      add_ring(met, phase, times);
    }
  }

  // A hop takes what the slower of handing on and receiving takes.
  void add_ring(const OpMeetings& met, Phase phase, double times) {
    for (const std::vector<int>& members : met.meetings) {
      const std::size_t p = members.size();
      for (std::size_t hop = 0; hop + 1 < p; ++hop) {
        add_shift(met, members, met.ring.handed_on(hop), hop, times);
        if (phase == Phase::adjoint) {
          add_shift(met, members, met.ring.sums_bytes, hop + 1, times);
        }
      }
    }
  }

  // All members hand on what the one `behind` places before them had.
  void add_shift(
      const OpMeetings& met,
      const std::vector<int>& members,
      const std::vector<std::int64_t>& bytes,
      std::size_t behind,
      double times) {
    const std::size_t p = members.size();
    const auto passing = [&](std::size_t i) {
      const int from = seats.ranks[idx(members[i])];
      const int to = seats.ranks[idx(members[i + 1 < p ? i + 1 : 0])];
      const std::size_t owner = i >= behind ? i - behind : i + p - behind;
      return met.ring.shift_seconds(
          cluster.link(from, to), idx(members[i]), bytes[idx(members[owner])]);
    };
    double before = passing(p - 1);
    for (std::size_t i = 0; i < p; ++i) {
      const double mine = passing(i);
      sums.ranks[idx(members[i])].communication += times * met.ring.rounds * std::max(mine, before);
      before = mine;
    }
  }

  // There and back.
  void add_copies_to_host(const ScheduledPart& part) {
    for (const ValueId value : part.through_host()) {
      for (std::size_t r = 0; r < seats.ranks.size(); ++r) {
        sums.ranks[r].communication +=
            2 * static_cast<double>(bytes(part.program(), value, seats.seat(r), precision)) /
            cluster.device(seats.ranks[r]).host_bytes_per_second;
      }
    }
  }
};

AdditiveGroup AdditiveCosts::group(const Timeline& parts, const GroupSeats& seats) {
  Fold fold{seats, cluster_, precision_, /*one_for_all=*/false, exchange_costs_};
  fold.add(parts);
  return std::move(fold.sums);
}

AdditiveSeconds AdditiveCosts::seconds(
    const GroupTask& task, const std::vector<int>& ranks, const Model& model) {
  const int domain = std::max(task.weight_domain, 1);
  const int first = ranks.empty() ? 0 : ranks.front() / domain * domain;
  if (ranks.empty() || ranks.size() != idx(task.ranks) || ranks.front() < 0 ||
      ranks.back() >= std::min(first + domain, cluster_.ranks()) ||
      !std::ranges::is_sorted(ranks, std::ranges::less_equal())) {
    throw std::invalid_argument(
        "additive seconds: a group of " + std::to_string(task.ranks) +
        " takes as many ranks, ascending, " + "of one sharding group of " +
        std::to_string(task.weight_domain) + " on a cluster of " +
        std::to_string(cluster_.ranks()) + "; given are " + std::to_string(ranks.size()) +
        (ranks.empty()
             ? ""
             : ", from " + std::to_string(ranks.front()) + " to " + std::to_string(ranks.back())));
  }
  GroupTask asked = task;
  asked.keep = training_;
  const GroupSeats seats{.ranks = ranks, .domain_first = first, .domain = domain};
  Fold fold{seats, cluster_, precision_, /*one_for_all=*/true, exchange_costs_};
  fold.add(timeline(asked, model));
  return fold.sums.seconds();
}

std::function<double(const ScheduledPart& part)> part_seconds(
    const Cluster& cluster, int ranks, const SimulationOptions& options) {
  GroupSeats seats{.ranks = std::vector<int>(idx(ranks)), .domain = ranks};
  std::iota(seats.ranks.begin(), seats.ranks.end(), 0);
  return [costs = std::make_shared<AdditiveCosts>(cluster, options),
          seats](const ScheduledPart& part) {
    return costs->group(linked({part}), seats).seconds().sum();
  };
}

}  // namespace paradyse
