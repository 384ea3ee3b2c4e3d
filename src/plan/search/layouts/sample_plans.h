// What samples of one size take on a group of so many ranks: what planners of whole batches put
// together.
//
// The layout that sends least (layout_planner.h); for a group that crosses nodes, also the one
// whose parts and moves take the fewest predicted seconds, and of both what is predicted to be
// faster as a whole.  Inside a node, predictions of small messages err by more than layouts differ.
// Within memory, of each part of each layer, is chosen what is recomputed and in how many tiles it
// runs (placed_layers.h); bytes are those of the fullest rank, counted.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "paradyse/plan/layout_planner.h"
#include "src/plan/search/batch/planning.h"
#include "src/plan/search/layers/part_choices.h"
#include "src/plan/search/layouts/sample_units.h"

namespace paradyse {

// So many samples at once, all of these sizes; groups as large lie beside it.
struct SampleGroup {
  DimSizes dims;
  std::int64_t rows = 0;  // of a sample
  std::int64_t samples = 1;
  int ranks = 1;

  friend auto operator<=>(const SampleGroup&, const SampleGroup&) = default;
};

class SamplePlans final : public Planning {
 public:
  explicit SamplePlans(PlanningTask asked);

  struct Fitting {
    LayerRuns program;
    PredictedBytes bytes;
    double seconds = 0;  // forward and backward, predicted
  };
  struct Found {
    std::optional<Fitting> fitting = {};  // the fastest that fits
    PredictedBytes least = {};            // else, what the program needs that needs least
  };
  // Remembered until the correction or what rows are held to changes.  Layers are recomputed as a
  // whole where that is asked for, or where others need not do the same: the group has all ranks,
  // or weights are whole while a step lasts.  In two-byte types that goes for tiles, too, since
  // gradients of parts in tiles are wider.  Throws std::invalid_argument where a part has no way to
  // run.
  const Found& best(const SampleGroup& group, Messages messages, Caps caps);

 private:
  void forget() override { known_.clear(); }
  [[nodiscard]] Documents documents(const SampleGroup& group) const;
  [[nodiscard]] Fitting priced(
      const SampleGroup& group, Messages messages, const std::vector<LayerChoice>& layers);
  [[nodiscard]] Found find(const SampleGroup& group, Messages messages, Caps caps);
  // Looks for what is faster than `found` in the placements of `all_saved`, of which nothing is
  // made again.  `alike`: seconds of the fastest whose layers save alike, in all placements so far.
  void find_in(
      const Fitting& all_saved,
      const SampleGroup& group,
      Messages messages,
      Caps caps,
      Found& found,
      double& alike);
  [[nodiscard]] LayoutTask layout_task(const SampleGroup& group);
  // What is recomputed in the layouts of this group that are sought by seconds; empty: none are.
  [[nodiscard]] std::vector<Recompute> levels_by_seconds(const SampleGroup& group) const;
  // Of strategies whose seconds compare, and of those that the other has.
  LayerRuns fastest_layout(const SampleGroup& group, const LayerRuns& sends_least, Recompute level);
  // Placements of the layers of a group, which know nothing of memory: those that send least, and
  // across nodes the fastest where they are others.
  const std::vector<LayerRuns>& layouts(const SampleGroup& group);

  SavingChoices savings_;
  // By the ranks that weights are gathered from, too; what steps teach does not change them.  A
  // corpus may have any number of sizes: after so many they are forgotten.
  std::map<std::pair<SampleGroup, int>, std::vector<LayerRuns>> layouts_;
  std::map<std::tuple<SampleGroup, Messages, Caps>, Found> known_;
};

// A plan for samples of these lengths that has no micro-batches yet.
Plan plan_of_samples(const PlanningTask& task, const std::vector<std::int64_t>& lengths);
// The name of a program, which is added to the plan if it is new.
std::string name_in(Plan& plan, const LayerRuns& program);

// Groups of these numbers of ranks, with samples of one size each, side by side: the fastest plan
// of those that are looked at.  None: there is no room, or no way to run on so few.
std::optional<Plan> samples_in_groups(
    SamplePlans& samples,
    const BatchSizes& batch,
    const std::vector<SamplesOfASize>& sizes,
    const std::vector<int>& ranks,
    Caps caps);

}  // namespace paradyse
