// A grouping task with what its types run, and the plan that a grouping of it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"
#include "src/plan/search/grouping/grouping.h"

namespace paradyse {

// An item of a task that is not one document: samples of one size, which have a group to
// themselves.
struct SampleItem {
  std::vector<std::int64_t> samples;  // by number in the batch
  DimSizes dims;
  std::vector<std::size_t> programs;  // [type] of GroupSpace::programs
};

struct GroupSpace {
  std::string name;  // "flexsp", "full"
  GroupingTask task;
  std::vector<LayerRuns> programs;  // [type]; of samples see SampleItem
  LayerRuns idle;                   // of ranks without documents
  double batch_seconds = 0;         // of a batch, beside its micro-batches
  int weight_domain = 1;
  // What a plan says it is for.
  std::string model_name;
  std::string model_sha256;
  std::int64_t layers = 0;
  std::string cluster_name;
  std::string cluster_sha256;
  Tiles tiles = {};        // and in which tiles, of which the types' room is
  Messages messages = {};  // and how they travel, which takes of that room
  // Of a batch of samples: the task's items, and of each sample its rows.
  std::vector<SampleItem> items = {};
  std::vector<std::int64_t> rows = {};

  [[nodiscard]] bool of_samples() const { return !items.empty(); }
  // What a group of the task runs.
  [[nodiscard]] const LayerRuns& program(const Grouping::Group& group) const;
};

// Documents, or samples, as the space has them; predicted seconds of groups, micro-batches and the
// whole are the task's.  Ranks that no group has are idle, each by itself.  Throws std::logic_error
// for a grouping that problems() refuses.
Plan plan_of(const GroupSpace& space, const Grouping& grouping);

// A micro-batch of a plan: each group on its ranks with the program that `of_group` names; ranks
// that none has are idle, each by itself, with the one that `idle` names.  Groups in the order of
// their ranks.  Nothing: they find no room side by side, or one of them has no program.
using ProgramOfGroup = std::function<std::optional<std::string>(const Grouping::Group& group)>;
std::optional<PlanMicroBatch> side_by_side(
    const GroupingTask& task,
    const Grouping::MicroBatch& micro_batch,
    const ProgramOfGroup& of_group,
    const std::function<std::optional<std::string>()>& idle);

// Dims that all groups with samples have are the plan's.
void say_dims_once(Plan& plan);

// All layers alike.
LayerRuns uniform_program(
    std::int64_t layers, const std::string& attention, const std::string& mlp, Recompute recompute);

}  // namespace paradyse
