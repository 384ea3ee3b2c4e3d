// What a plan takes: bytes counted exactly, seconds by a time model and what measurements taught.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "paradyse/plan/detail/correction.h"
#include "paradyse/plan/detail/rank_speeds.h"
#include "paradyse/plan/plan.h"
#include "src/plan/cost/whole_weights.h"
#include "src/plan/search/batch/folded_groups.h"
#include "src/plan/search/layers/group_costs.h"

namespace paradyse {

// Seconds of a group that has the cores of its nodes to itself.
struct GroupSeconds {
  std::span<const int> ranks;
  double seconds = 0;
};

class PlanPrediction {
 public:
  // All live longer.
  PlanPrediction(
      const PlanningTask& task,
      const Correction& correction,
      const RankSpeeds& speeds,
      GroupCosts& costs);

  // Fills in `predicted` of the plan, its micro-batches and groups: as planners compare it, with
  // the benefit of the doubt for what was not tried; and as it is expected to run, for people.
  void predict(Plan& plan) { predict(plan, /*hoped=*/true); }
  void expect(Plan& plan) { predict(plan, /*hoped=*/false); }
  // Of every plan, beside what its groups take.
  [[nodiscard]] double seconds_of_step(bool whole) const;
  // About what a predicted plan that leaves weights whole would take, if it exchanged them with
  // each micro-batch: all ranks then meet in each.
  [[nodiscard]] double seconds_each_time(const Plan& plan) const;
  // By the time model alone, what measurements are held against: [group][costed_parts() of its
  // program] seconds in a micro-batch, as long as its ranks are at it beside the other groups,
  // which share its cores and, where weights are gathered, wait for one another.
  [[nodiscard]] std::vector<std::vector<double>> uncorrected_parts(
      const Plan& plan, const PlanMicroBatch& micro);

  // [world rank] Seconds that it computes for a plan by the closed form, alone on a core.
  [[nodiscard]] std::vector<double> work_of_ranks(const Plan& plan);

  // Of a group, with what measurements taught; and of its rank that needs most.
  [[nodiscard]] double group_seconds(const GroupTask& group, const std::vector<Seat>& seats) {
    return group_seconds(group, seats, {}, correction_, /*hoped=*/true);
  }
  [[nodiscard]] PredictedBytes fullest_rank(
      const GroupTask& group, const std::vector<Seat>& seats, const Slowness& slowness = {});
  // [rank of a sharding group] static_bytes() of plans that leave weights whole, or do not.
  const std::vector<std::int64_t>& static_bytes(bool whole);

  // Of the fullest rank when groups of `ranks` ranks, side by side, run documents of these lengths
  // as `program` says.
  [[nodiscard]] PredictedBytes bytes_of(
      const LayerRuns& program, const std::vector<std::vector<std::int64_t>>& groups, int ranks);

  // Of a micro-batch: its slowest group; where ranks share cores, no less than all of them keep
  // the cores of a node busy together.
  [[nodiscard]] double wall_seconds(const std::vector<GroupSeconds>& groups) const;

 private:
  // [group] The same where no group waits for another: until then all groups that share cores have
  // as much longer as these are busy.
  [[nodiscard]] std::vector<double> seconds_beside(const std::vector<GroupSeconds>& groups) const;
  void predict(Plan& plan, bool hoped);
  // Of the micro-batches, whose groups are predicted, of a plan that leaves weights whole: nobody
  // waits but for the ranks of his groups, or for cores.
  [[nodiscard]] double seconds_without_meeting(const Plan& plan) const;
  // In which weights are gathered, and their gradients summed, once.
  [[nodiscard]] double whole_weights_seconds() const;
  [[nodiscard]] double seconds_by_work(const std::vector<SentOnce>& sent) const;
  // Of the ranks of a group of a plan.
  [[nodiscard]] Slowness slowness_of(const PlanGroup& group) const;
  double group_seconds(
      const GroupTask& group,
      const std::vector<Seat>& seats,
      const Slowness& slowness,
      const Correction& correction,
      bool hoped);
  // [costed_parts()] Of a group with the cores of its nodes to itself.
  std::vector<double> parts_alone(const Plan& plan, const PlanGroup& group);
  // The same where seconds do not go by the work.
  std::vector<double> measured_parts(
      const GroupTask& group, const std::vector<Seat>& seats, const Slowness& slowness);
  FoldedGroup fold(
      const GroupTask& group, const std::vector<Seat>& seats, const Slowness& slowness);
  // Of groups that differ in layers alone.
  struct Parts {
    struct Seconds {
      std::shared_ptr<const ScheduledPart::Body> of;  // keeps it, so that no other has its address
      double seconds = 0;
    };
    GroupTask group;
    std::vector<Seat> seats;
    BuiltParts built;
    std::map<std::pair<const ScheduledPart::Body*, Slowness>, Seconds> seconds;
  };
  Parts& parts_of(const GroupTask& group, const std::vector<Seat>& seats);
  // Of programs that gather weights from so many ranks.
  [[nodiscard]] const TimeModel& seconds_from(int domain) const {
    return domain < task_.domain() ? *whole_seconds_ : *seconds_;
  }

  const PlanningTask& task_;
  const Correction& correction_;
  const RankSpeeds& speeds_;
  const Model& model_;
  std::shared_ptr<const TimeModel> seconds_;
  std::shared_ptr<const TimeModel> whole_seconds_;
  GroupCosts& costs_;
  FoldedGroups folded_;
  std::deque<Parts> parts_;                                 // of the last groups that were folded
  std::map<bool, std::vector<std::int64_t>> static_bytes_;  // [whole]; found when first asked for
  mutable std::optional<double> whole_weights_seconds_;     // found when first asked for
};

}  // namespace paradyse
