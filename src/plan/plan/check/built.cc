#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"
#include "src/plan/base/plan_path.h"
#include "src/plan/plan/check/findings.h"
#include "src/plan/plan/group_timeline.h"

namespace paradyse::check {
namespace {

// The collectives of a micro-batch in the order in which the walk issues them.  A program is one
// list for all ranks of its group, so the ranks of a group cannot differ; that each copy has a
// seat for every one of them is checked here.
class Recorder : public Machine {
 public:
  struct Collective {
    std::string what;
    Exchange exchange;
  };

  Recorder(const Timeline& timeline, Precision precision)
      : timeline_(timeline), precision_(precision) {
    walk_forward(timeline, *this);
    walk_backward(timeline, *this);
  }

  // Those over the weight domain.
  [[nodiscard]] const std::vector<Collective>& over_domain() const { return over_domain_; }

  void prefetch(std::size_t part, int op) override {
    asked_.insert({part, op});
    record(part, op, Phase::forward);
  }
  void forward(std::size_t part, int op) override {
    if (asked_.erase({part, op}) == 0) {
      record(part, op, Phase::forward);
    }
  }
  void begin_adjoint(std::size_t part, int op) override {
    begun_.insert({part, op});
    record(part, op, Phase::adjoint);
  }
  void adjoint(std::size_t part, int op) override {
    if (begun_.erase({part, op}) == 0) {
      record(part, op, Phase::adjoint);
    }
  }
  void drop_value(std::size_t /*part*/, ValueId /*value*/) override {}
  void offload(std::size_t /*part*/, ValueId /*value*/) override {}
  void fetch(std::size_t /*part*/, ValueId /*value*/) override {}
  void drop_gradients(std::size_t /*part*/, int /*op*/) override {}
  void hand_forward(std::size_t /*part*/, std::size_t /*end*/) override {}
  void hand_backward(std::size_t /*part*/) override {}

 private:
  [[nodiscard]] const Op& op_of(std::size_t part, int op) const {
    return timeline_[part].program().ops[idx(op)];
  }

  void record(std::size_t part, int i, Phase phase) {
    const ScheduledPart& scheduled = timeline_[part];
    const Program& program = scheduled.program();
    const Op& op = op_of(part, i);
    const OpTraits& of_kind = traits(op.kind);
    const bool over_domain = of_kind.meets == OpTraits::Meets::domain;
    const std::string layer = scheduled.layer < 0 ? "" : "layer " + text(scheduled.layer) + " ";
    const std::string what = layer + program.part + ": " + to_string(op.kind) +
                             (phase == Phase::forward ? " forward" : " backward");
    for (const Exchange& exchange : of_kind.exchanges({program, op, Seat{}, phase, precision_})) {
      if (exchange.copy == nullptr) {  // a hop of a ring
        continue;
      }
      const int seats = over_domain ? program.domain : program.ranks();
      if (exchange.copy->ranks() != seats) {
        throw std::logic_error(
            "problems: " + to_string(op.kind) + " of " + program.strategy + " has a copy for " +
            text(exchange.copy->ranks()) + " ranks, but runs on " + text(seats));
      }
      if (over_domain) {
        over_domain_.push_back({what, exchange});
      }
    }
  }

  const Timeline& timeline_;
  Precision precision_;
  std::set<std::pair<std::size_t, int>> asked_;  // recorded, and yet to run
  std::set<std::pair<std::size_t, int>> begun_;
  std::vector<Collective> over_domain_;
};

// But for the width of what is sent.
bool same(const Recorder::Collective& a, const Recorder::Collective& b) {
  return a.what == b.what && a.exchange.transposed == b.exchange.transposed &&
         a.exchange.copy->same_as(*b.exchange.copy);
}

bool alike(const Recorder::Collective& a, const Recorder::Collective& b) {
  return same(a, b) && a.exchange.element_bytes == b.exchange.element_bytes;
}

void check_collectives(
    Findings& findings,
    const CheckedGroup& a,
    const Timeline& of_a,
    const CheckedGroup& b,
    const Timeline& of_b) {
  const Recorder first(of_a, findings.context.precision);
  const Recorder second(of_b, findings.context.precision);
  const auto& x = first.over_domain();
  const auto& y = second.over_domain();
  std::size_t i = 0;
  while (i < x.size() && i < y.size() && alike(x[i], y[i])) {
    ++i;
  }
  if (i < x.size() && i < y.size() && same(x[i], y[i])) {
    findings.say(
        b.path,
        y[i].what + " sends " + text(y[i].exchange.element_bytes) +
            " bytes an element over sharding group " + text(b.domain) + ", that of " + a.path +
            " " + text(x[i].exchange.element_bytes) +
            ": in this type parts in token_tiles send wider gradients; give the option to all "
            "groups of the micro-batch or to none");
  } else if (i < x.size() || i < y.size()) {
    findings.say(
        b.path,
        "collective " + text(i) + " over sharding group " + text(b.domain) + " is " +
            (i < y.size() ? y[i].what : "missing") + ", that of " + a.path + " is " +
            (i < x.size() ? x[i].what : "missing") +
            ": the ranks would wait for each other forever");
  }
}

// What each rank of a group has; {}: not known, or of another number of ranks.
std::vector<std::int64_t> memory_of(const Findings& findings, const std::vector<int>& ranks) {
  const CheckContext& context = findings.context;
  if (context.memory_of_ranks.empty()) {
    return context.memory_per_rank
               ? std::vector<std::int64_t>(ranks.size(), *context.memory_per_rank)
               : std::vector<std::int64_t>();
  }
  std::vector<std::int64_t> memory;
  if (idx(findings.plan.ranks) == context.memory_of_ranks.size()) {
    for (const int rank : ranks) {
      memory.push_back(context.memory_of_ranks[idx(rank)]);
    }
  }
  return memory;
}

// Every rank's footprint; the one that lacks most is named.
void check_memory(
    Findings& findings,
    const Model& model,
    const CheckedGroup& group,
    const GroupTimeline& timeline) {
  const std::vector<std::int64_t> memory = memory_of(findings, group.group->ranks);
  if (memory.empty()) {
    return;
  }
  const Keeps keeps = findings.context.keeps.value_or(
      findings.context.training ? Keeps::optimizer : Keeps::weights);
  const std::string what =
      findings.context.training ? "parameters, gradients and optimizer state" : "parameters";
  std::int64_t most = 0;  // that a rank lacks
  std::string worst;
  for (std::size_t i = 0; i < group.group->ranks.size(); ++i) {
    const int rank = group.group->ranks[i];
    const std::int64_t limit = memory[i];
    const Seat seat = timeline.seats[i];
    const Precision& precision = findings.context.precision;
    const std::int64_t base = static_bytes(
        model,
        findings.plan.weight_domain,
        seat.domain_rank,
        precision,
        keeps,
        findings.plan.messages);
    const Footprint held = footprint(timeline.parts, seat, precision, base);
    if (held.peak_bytes - limit > most) {
      most = held.peak_bytes - limit;
      worst = "rank " + text(rank) + " needs " + text(held.peak_bytes) + " bytes at its peak (" +
              what + " " + text(base) + ", saved for the backward pass " + text(held.saved_bytes) +
              "), but has " + text(limit) + ": give the documents more ranks" +
              (group.group->shares.empty() ? "" : ", this one a smaller share") +
              " or recompute more";
    }
  }
  if (!worst.empty()) {
    findings.say(group.path, worst);
  }
}

}  // namespace

void check_built(Findings& findings, const std::vector<CheckedGroup>& groups) {
  std::map<const CheckedGroup*, GroupTimeline> timelines;  // of one vector: in its order
  for (const CheckedGroup& group : groups) {
    if (group.buildable) {
      findings.known(group.path, [&] {
        timelines[&group] =
            group_timeline(findings.plan, *group.group, *findings.model, findings.context.training);
      });
    }
  }
  for_each_pair_of_a_domain(groups, [&](const CheckedGroup& a, const CheckedGroup& b) {
    if (timelines.contains(&a) && timelines.contains(&b)) {
      check_collectives(findings, a, timelines.at(&a).parts, b, timelines.at(&b).parts);
    }
  });
  for (const auto& [group, built] : timelines) {
    check_expected(findings, *group, built);
  }
  if (findings.model) {
    for (const CheckedGroup& group : groups) {
      if (timelines.contains(&group)) {
        check_memory(findings, *findings.model, group, timelines.at(&group));
      }
    }
  }
}

}  // namespace paradyse::check
